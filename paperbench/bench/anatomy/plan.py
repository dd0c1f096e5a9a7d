"""The parts of the measurement in order: the cheapest and most decisive first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paperbench.errors import PaperbenchError, nearest

_MODULES = "paperbench.bench.anatomy.parts"


@dataclass(frozen=True)
class Part:
    """A kind of part.

    Attributes:
        name: What `--parts` calls it.
        title: Heading in reports.
        module: Holds its function `measure(context)`.
        by_model: Whether it is done net by net, each in a process of its own.
        needs_gpu: Why it makes no sense without a GPU; None if it does.
    """

    name: str
    title: str
    module: str
    by_model: bool = False
    needs_gpu: str | None = None


@dataclass(frozen=True)
class Task:
    """A part to be carried out.

    Attributes:
        model: The net, of parts that are done net by net.
        weight: Share of the time that it may take, relative to the others; seconds, if all is done in ten minutes.
    """

    part: Part
    model: str | None
    weight: float

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.part.name} {self.model}" if self.model else self.part.name


PARTS = {
    part.name: part
    for part in (
        Part("machine", "Ceilings of the machine", f"{_MODULES}.machine"),
        Part("convolutions", "Convolutions one by one", f"{_MODULES}.convolutions"),
        Part("normalisation", "BN, ReLU and addition", f"{_MODULES}.normalisation"),
        Part("kernels", "A step's time by kind of kernel", f"{_MODULES}.kernels", by_model=True),
        Part("ladder", "Steps by engine and precision", f"{_MODULES}.ladder", by_model=True),
        Part("seeds", "Several seeds side by side", f"{_MODULES}.seeds"),
        Part("exactness", "Exactness", f"{_MODULES}.exactness"),
        Part("pieces", "Optimiser, batch, loss", f"{_MODULES}.pieces"),
        Part(
            "autotuned",
            "Convolutions with algorithms chosen by timing",
            f"{_MODULES}.convolutions",
            needs_gpu="cudnn.benchmark concerns GPUs alone",
        ),
        Part(
            "imagenet",
            "ResNet-200 on images of 224 pixels",
            f"{_MODULES}.imagenet",
            needs_gpu="a step takes minutes on a CPU",
        ),
    )
}

_WEIGHTS = {
    "machine": 30,
    "convolutions": 42,
    "normalisation": 45,
    "seeds": 26,
    "exactness": 28,
    "pieces": 14,
    "autotuned": 18,
    "imagenet": 15,
}
# Of nets below, and from, this depth. What "kernels" has compiled, the ladder finds in the compiler's cache; it has
# figures only once all its loops are built, while "kernels" writes one engine down after the other.
_DEEP = 500
_WEIGHTS_BY_MODEL = {"kernels": (45, 60), "ladder": (60, 148)}


def checked_parts(names: Sequence[str] | None) -> tuple[str, ...]:
    """The parts of these names in the plan's order; all if None.

    Raises:
        PaperbenchError: There is no such part.
    """
    for name in names or ():
        if name not in PARTS:
            raise PaperbenchError(f"There is no part {name!r}. {nearest(name, PARTS)}")
    return tuple(name for name in PARTS if names is None or name in names)


def plan(names: Sequence[str], models: dict[str, int]) -> list[Task]:
    """The tasks in order; the deepest net is the last.

    Args:
        names: Of parts.
        models: Depth of each net by name.
    """
    tasks = [Task(PARTS[name], None, _WEIGHTS[name]) for name in ("machine", "convolutions", "normalisation")]
    for model, depth in sorted(models.items(), key=lambda item: item[1]):
        for name, weights in _WEIGHTS_BY_MODEL.items():
            tasks.append(Task(PARTS[name], model, weights[depth >= _DEEP]))
    tasks += [Task(PARTS[name], None, weight) for name, weight in list(_WEIGHTS.items())[3:]]
    return [task for task in tasks if task.part.name in names]
