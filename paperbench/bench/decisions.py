"""What the first measurements on a GPU decide: reads the files that `ci/first_gpu.sh` made, and prints a summary.

python -m paperbench.bench.decisions DIRECTORY
"""

from __future__ import annotations

import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from paperbench.bench.breakdown import COMBO_KERNELS, NOT_DETERMINISTIC, TIMED, Breakdown, Row
from paperbench.bench.figures import BenchReport, Machine, NetFigures, VariantFigures
from paperbench.errors import PaperbenchError, one_line
from paperbench.runs.store import RunDirectory
from paperbench.training.engine import COMPILE_MIN_ITERATIONS
from paperbench.typed import Text, from_json, typed

_ALGORITHMS = (1.25, "set_arithmetic in training/precision.py: look for faster deterministic algorithms")
DEFAULTS = {
    NOT_DETERMINISTIC: _ALGORITHMS,
    TIMED: _ALGORITHMS,
    COMBO_KERNELS: (1.02, "combo_kernels of compile_units in training/compiling.py, if repetitions stay equal"),
}
"""For each setting, how many times as fast it must be to become the default, and where to change that."""

OTHER_LAYOUT = (1.03, "memory_layout in training/precision.py")


@typed
class BatchNormRow:
    """Batch norm in float32, forward and backward, on one input.

    Attributes:
        kernels: The library; on a CPU both are torch's.
        mean: Of the input.
        spread: Its standard deviation, relative to the mean.
        error: Norm of the error relative to float64 on the CPU, of the worst among output, moving averages and
            gradients; None if one is not finite.
    """

    layout: Text
    kernels: Literal["cudnn", "native"]
    mean: float
    spread: float
    error: float | None
    milliseconds: float


@typed
class Repetition:
    """The final states of a training, as sha256: made once, made again, and resumed halfway, in a process each."""

    engine: Text
    precision: Text
    states: tuple[Text, ...]
    problem: Text | None = None


@typed
class Checks:
    """Contents of the files that `paperbench.bench.checks` writes; each command fills in one of the two."""

    schema: Literal[1]
    machine: Machine
    net: str
    batch_norm: tuple[BatchNormRow, ...] = ()
    repetitions: tuple[Repetition, ...] = ()


def summarise(directory: Path) -> str:
    """Return each decision with its figures, from the files in a directory, one per paragraph of 100 columns."""
    parts: dict[str, Callable[[Path], Iterator[str]]] = {
        "tests*.xml": lambda path: _tests(ElementTree.parse(path).getroot()),  # noqa: S314 - pytest wrote it
        "batch-norm*.json": lambda path: _batch_norm(from_json(Checks, path.read_bytes())),
        "repetitions*.json": lambda path: _repetitions(from_json(Checks, path.read_bytes())),
        "breakdown*.json": lambda path: _settings(from_json(Breakdown, path.read_bytes())),
        "bench*.json": lambda path: _speeds(from_json(BenchReport, path.read_bytes())),
        "results/runs/*/record.json": lambda path: _run(RunDirectory(path.parent)),
        "*.exit": _failure,
    }
    lines = []
    for pattern, describe in parts.items():
        for path in sorted(directory.glob(pattern)):
            try:
                lines += list(describe(path))
            except (PaperbenchError, ElementTree.ParseError, OSError) as error:
                lines.append(f"{path.name} cannot be read: {one_line(str(error))}")
    return "\n".join(textwrap.fill(line, 100, subsequent_indent="    ") for line in lines)


def _tests(root: ElementTree.Element) -> Iterator[str]:
    cases = list(root.iter("testcase"))
    failed = [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    yield f"gpu tests: {len(cases) - skipped - len(failed)} passed, {skipped} skipped, {len(failed)} failed" + (
        f" -> train nothing before they pass: {', '.join(failed)}" if failed else ""
    )


def _batch_norm(found: Checks) -> Iterator[str]:
    """CuDNN's kernels may come back if they are as accurate on every input, and faster."""

    def of(kernels: str, layout: str) -> tuple[str, float, float]:
        rows = [row for row in found.batch_norm if (row.kernels, row.layout) == (kernels, layout)]
        worst: BatchNormRow = max(rows, key=lambda row: float("inf") if row.error is None else row.error)
        error = float("inf") if worst.error is None else worst.error
        milliseconds = statistics.median(row.milliseconds for row in rows)
        text = f"error {error:.2g} (mean {worst.mean:g}, spread {worst.spread:g}), {milliseconds:.3f} ms"
        return text, error, milliseconds

    for layout in sorted({row.layout for row in found.batch_norm}):
        (ours, error, ms), (cudnn, cudnn_error, cudnn_ms) = of("native", layout), of("cudnn", layout)
        is_better = cudnn_error <= 4 * error and cudnn_ms < ms / 1.1
        verdict = "cuDNN may be used" if is_better else "keep torch's"
        yield (
            f"batch norm, {layout}: torch's worst {ours}; cuDNN's {cudnn} -> {verdict} (TrainingBatchNorm2d in "
            "training/batch_norm.py)"
        )


def _repetitions(found: Checks) -> Iterator[str]:
    for row in found.repetitions:
        verdict = row.problem or (
            "equal bit for bit" if len(set(row.states)) == 1 else "DIFFERENT, though README promises equality"
        )
        yield f"{found.net}, {row.engine} {row.precision}, trained twice and resumed -> {verdict}"


def _settings(found: Breakdown) -> Iterator[str]:
    trained, *others = found.steps
    yield f"step of {found.net}, {found.engine} {found.precision}, as trained: {_step(trained)}"
    for row in others:
        setting = row.name.removeprefix(f"{trained.name}, ")
        worth, place = DEFAULTS.get(setting, OTHER_LAYOUT)
        if row.milliseconds is None or trained.milliseconds is None:
            yield f"  {_step(row)} -> keep what is trained"
            continue
        gain = trained.milliseconds / row.milliseconds
        verdict = f"change {place}" if gain > worth else "keep what is trained"
        yield f"  {_step(row)}, {gain:.2f} times as fast -> {verdict}"


def _step(row: Row) -> str:
    name = row.name.removeprefix("step, ")
    return f"{name}: {row.problem}" if row.milliseconds is None else f"{name} {row.milliseconds:.2f} ms"


def _speeds(found: BenchReport) -> Iterator[str]:
    for net in found.nets:
        for precision in dict.fromkeys(v.variant.precision for v in net.variants):
            yield from _speed(net, precision)
        for variant in net.variants:
            if variant.status != "measured":
                yield f"  {net.net}, {variant.variant.label}: {variant.status}: {variant.detail}"


def _speed(net: NetFigures, precision: str) -> Iterator[str]:
    """Compare the engines of a precision."""
    measured = {
        (v.variant.kind, v.variant.engine): v
        for v in net.variants
        if v.variant.precision == precision and v.images_per_second
    }
    ours = {engine: v for (kind, engine), v in measured.items() if kind == "paperbench"}
    speeds = [f"{v.variant.label} {v.images_per_second:,.0f}" for v in measured.values()]
    yield f"{net.net}, images/s: {', '.join(speeds)}"
    if {"compile", "graph"} <= ours.keys():
        yield f"  {_break_even(ours['compile'], ours['graph'])}"


def _break_even(compiled: VariantFigures, graph: VariantFigures) -> str:
    """Say from how many iterations on compiling pays off."""
    gain = statistics.median(graph.step_seconds) - statistics.median(compiled.step_seconds)
    if gain <= 0:
        return "compile is not faster than graph -> engine_candidates in training/engine.py: no compile"
    longer = max(0.0, (compiled.first_step_seconds or 0) - (graph.first_step_seconds or 0))
    iterations = longer / gain
    keep = COMPILE_MIN_ITERATIONS / 10 <= iterations <= COMPILE_MIN_ITERATIONS
    return (
        f"compile pays off from {iterations:,.0f} iterations -> {'keep' if keep else 'change'} COMPILE_MIN_ITERATIONS "
        f"({COMPILE_MIN_ITERATIONS:,}) in training/engine.py"
    )


def _run(directory: RunDirectory) -> Iterator[str]:
    if (record := directory.read_record()) and record.iteration:
        whole = record.spec.recipe.get("iterations", record.iteration)
        result = f", test error {record.result.test_error:.2f} %" if record.result else ""
        hours = record.seconds / record.iteration * whole / 3600
        yield (
            f"{record.net}, {record.spec.precision}, seed {record.seed}: {record.status}, {record.iteration:,} of "
            f"{whole:,} iterations{result} -> {hours:.2f} hours a run"
        )


def _failure(path: Path) -> Iterator[str]:
    if (status := path.read_text().strip()) != "0":
        why = "out of time" if status in ("124", "137") else f"exit status {status}"
        yield f"stage {path.stem}: {why}, see log.txt"


if __name__ == "__main__":
    print(summarise(Path(sys.argv[1])))
