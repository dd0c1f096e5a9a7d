"""The record of a run: its spec, progress and result, in one JSON file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import FailFast, Field

from paperbench.data.dataset import Dataset
from paperbench.options import is_bit_equal
from paperbench.runs.hashed import HashedJson
from paperbench.specs.experiment import Metric
from paperbench.specs.facts import Facts
from paperbench.specs.recipe import Evaluation
from paperbench.specs.run_spec import RunSpec
from paperbench.typed import Count, Line, Loss, Natural, Percent, Seconds, typed

if TYPE_CHECKING:
    from paperbench.runs.history import HistoryLine
    from paperbench.training.evaluation import EvaluationMetrics

_MAX_SESSIONS = 100
Status = Literal["partial", "finished", "diverged"]


@typed
class DataFacts:
    """The data set that the run was trained on; the spec has the same `fingerprint`.

    Attributes:
        unverified: Whether it may be canonical, see `data.dataset.Dataset`.
    """

    name: Line
    origin: Line
    canonical: bool
    fingerprint: Line
    unverified: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> DataFacts:
        return cls(dataset.name, dataset.origin, dataset.canonical, dataset.fingerprint, dataset.unverified)

    @property
    def is_comparable(self) -> bool:
        """Whether errors are comparable with the paper's."""
        return self.canonical or self.unverified


@typed
class Measured:
    """Errors in percent of the test set, and mean cross-entropy, on one central crop of each photograph."""

    evaluation: Evaluation
    top1: Percent
    top5: Percent
    loss: Loss

    def __post_init__(self) -> None:
        if self.top5 > self.top1:
            raise ValueError(f"its top-5 error ({self.top5} %) exceeds its top-1 error ({self.top1} %).")


@typed
class Result:
    """Errors of a finished run, in percent of the test set, and mean cross-entropies.

    Attributes:
        test_error, test_loss: Measured after the last iteration, with the BN statistics that the recipe asks for.
        moving_average_test_error, moving_average_test_loss: The same with BN's moving averages; the loss is None if it
            is not finite.
        best_test_error: Lowest moving-average error of the whole run, for information; never reported as the result.
        evaluations: For photographs, the results of all evaluations; the errors above are those of the first.
    """

    test_error: Percent
    test_loss: Loss
    moving_average_test_error: Percent
    moving_average_test_loss: Loss | None
    best_test_error: Percent
    evaluations: tuple[Measured, ...] = ()

    @classmethod
    def of(
        cls,
        measured: Sequence[EvaluationMetrics],
        evaluations: Iterable[Evaluation],
        last: HistoryLine,
        best_test_error: float | None,
    ) -> Result:
        """Return the result of what was measured at the end, in the order of the evaluations; none for whole images."""
        return cls(
            test_error=measured[0].error,
            test_loss=measured[0].loss,
            moving_average_test_error=cast(float, last.test_error),  # the last iteration is always tested
            moving_average_test_loss=last.test_loss,
            best_test_error=cast(float, best_test_error),
            evaluations=tuple(
                Measured(how, one.error, one.top5_error, one.loss)
                for how, one in zip(evaluations, measured, strict=False)
            ),
        )

    def __post_init__(self) -> None:
        for first in self.evaluations[:1]:
            if (first.top1, first.loss) != (self.test_error, self.test_loss):
                raise ValueError("its test error and test loss are not those of its first evaluation.")


@typed
class Code:
    """The version of paperbench.

    Attributes:
        commit: Commit of the source checkout, with "+changes" if files differ from it; None outside a checkout.
        source: Digest of the package's Python files.
        numerics: `NUMERICS_VERSION` of the training code.
    """

    version: Line
    commit: Line | None
    source: Line
    numerics: Natural


@typed
class Environment:
    """Hardware and libraries, which affect numbers and speed; nothing that identifies people or places."""

    python: Line
    torch: Line
    torchvision: Line
    timm: Line
    numpy: Line
    cuda: Line | None
    cudnn: Line | None
    system: Line
    device: Line
    threads: Annotated[int, Field(ge=1, le=65_536)]

    def is_same_machine(self, other: Environment) -> bool:
        """Whether equal training on both gives equal bits; of GPUs that is not assumed."""
        facts = [(of.torch, of.device, of.threads) for of in (self, other)]
        return self.cuda is None and facts[0] == facts[1]


@typed
class Session:
    """The part of a run that one process trained.

    Attributes:
        last: Number of iterations done at the end of the session.
        seconds: Duration, including tests and checkpoints.
        engine: "eager" or "graph"; in older records also "streams" or "compile".
        fallback: Why faster engines were not used although "auto" preferred them, or how the first steps of several
            processes differ from those of one; else None.
        processes: Number of processes that shared the batches; None for one.
        at_once: Number of runs that could take turns on the device, so that each took longer; None for one.
    """

    last: Natural
    seconds: Seconds
    engine: Line
    code: Code
    environment: Environment
    fallback: Line | None = None
    processes: Count | None = None
    at_once: Count | None = None

    def must_equal(self, other: Session) -> bool:
        """Whether engine, numerics and machine promise the bits that another session would have trained."""
        is_exact = is_bit_equal(self.engine) and not (self.processes and self.fallback)
        is_same_code = self.code.numerics == other.code.numerics
        return is_exact and is_same_code and self.environment.is_same_machine(other.environment)


def make_up(sessions: tuple[Session, ...], iteration: int) -> bool:
    """Whether each session goes on from the one before, and the last ends at an iteration."""
    ends = [session.last for session in sessions]
    return ends == sorted(ends) and ends[-1:] == [iteration]


def merged(sessions: tuple[Session, ...]) -> tuple[Session, ...]:
    """Return sessions as they are or, if they are many, the first ones and of the others one for each kind.

    Those of a kind differ in length only. So a run that is stopped all the time can always be read.
    """
    if len(sessions) <= _MAX_SESSIONS:
        return sessions
    kinds: dict[Session, Session] = {}
    for one in sessions[_MAX_SESSIONS // 2 :]:
        kind = replace(one, last=0, seconds=0.0)
        before = kinds.pop(kind, kind)  # the order is that of the last ones
        kinds[kind] = replace(one, seconds=round(before.seconds + one.seconds, 3))
    return (*sessions[: _MAX_SESSIONS // 2], *kinds.values())


@typed
class Divergence:
    """When a run's training loss was found to be not finite.

    Attributes:
        iteration: The iteration, counted from 1; the last one if only the final test failed.
        learning_rate: The learning rate of that iteration.
        phase, module: In older records, the part of the iteration and the module with the first such value; `iteration`
            is then that of this value.
    """

    iteration: Natural
    learning_rate: float
    phase: Literal["forward", "backward", "update", "test"] | None = None
    module: Line | None = None

    def __str__(self) -> str:
        when = f"not finite at iteration {self.iteration:,}, at learning rate {self.learning_rate:.3g}"
        if self.phase is None:
            return when
        parts = {"forward": "output", "backward": "gradient", "update": "parameters", "test": "output in the test"}
        return f"{when}; first in the {parts[self.phase]} of {self.module}"


@typed
class Files:
    """The other files of the run at the time when the record was written.

    Attributes:
        history_lines, history_sha256: Number of lines in the history, and the hash of their bytes.
        checkpoint: Name of the newest checkpoint, which includes the hash of its bytes.
        weights_sha256: Hash of model.safetensors; only for finished runs.
    """

    history_lines: Natural
    history_sha256: Line
    checkpoint: Line
    weights_sha256: Line | None


@typed
class Record(HashedJson):
    """The record of one run.

    Attributes:
        run: The run's id: the digest of the spec, and the seed.
        net: The model name and arguments for timm.
        iteration: Number of iterations done.
        result: Only for finished runs.
        divergence: Only for diverged runs.
        sessions: The first session and one for each time the run was resumed, or fewer; see `merged`.
        test_every: Number of iterations between tests.
        evaluations: How the net is tested on photographs; in the history by the first. Empty for whole images.
        facts: Of the net and its training when the run began; None in older records.
    """

    REMEDY = "Restore the file; if there is a checkpoint, the same `paperbench run` rewrites it."
    FOREIGN_REMEDY = (
        "Use the version that wrote it, or another results directory; or restart the run with `paperbench run "
        "--incompatible restart`, which keeps the old files."
    )

    run: Line
    seed: Natural
    net: Line
    status: Status
    iteration: Natural
    result: Result | None
    divergence: Divergence | None
    sessions: Annotated[tuple[Session, ...], FailFast()]
    test_every: Count
    data: DataFacts
    spec: RunSpec
    files: Files
    evaluations: tuple[Evaluation, ...] = ()
    facts: Facts | None = None

    def __post_init__(self) -> None:
        status, expected = self.status, self.spec.run_id(self.seed)
        if self.run != expected:
            raise ValueError(f"its run is {self.run!r}, but its spec and seed give {expected!r}.")
        if self.data.fingerprint != self.spec.data:
            raise ValueError("its data fingerprint is not that of its spec.")
        for name, value, required in (
            ("result", self.result, "finished"),
            ("hash of the weights", self.files.weights_sha256, "finished"),
            ("divergence", self.divergence, "diverged"),
        ):
            if (value is not None) != (status == required):
                raise ValueError(f"its status is {status!r} {'without' if value is None else 'with'} a {name}.")
        if status == "finished" and self.iteration != self.spec.recipe.get("iterations"):
            raise ValueError(f"it is finished at iteration {self.iteration}, which is not the last of its recipe.")
        if self.result and tuple(one.evaluation for one in self.result.evaluations) != self.evaluations:
            raise ValueError("its result does not have its evaluations.")
        if not make_up(self.sessions, self.iteration):
            raise ValueError(f"its sessions do not make up its {self.iteration} iterations.")

    @property
    def file_name(self) -> str:
        return f"{self.run}/record.json"

    def error(self, metric: Metric, evaluation: Evaluation | None) -> float | None:
        """Return an error in percent: infinite if the run diverged, None if it did not measure this one.

        Args:
            evaluation: None for the top-1 error on whole images.
        """
        if self.status == "diverged":
            return math.inf
        if self.result is None:
            return None
        if evaluation is None:
            return self.result.test_error
        return next((getattr(one, metric) for one in self.result.evaluations if one.evaluation == evaluation), None)

    def __repr__(self) -> str:
        return f"<{self.run}: {self.net[:80]}, {self.status} at {self.iteration:,}>"

    @property
    def broke_in_test(self) -> bool:
        """Whether the run says that its training was sound to the end, but not its final test."""
        is_in_test = self.divergence is not None and self.divergence.phase in ("test", None)
        return is_in_test and self.iteration == self.spec.recipe.get("iterations")

    @property
    def seconds(self) -> float:
        """Time spent on the run, over all sessions."""
        return sum(session.seconds for session in self.sessions)

    @property
    def machine(self) -> str:
        """The devices that trained the run; usually one."""
        return ", ".join(dict.fromkeys(session.environment.device for session in self.sessions))

    @property
    def numerics(self) -> tuple[int, ...]:
        """Numerics versions of all sessions, ascending."""
        return tuple(sorted({session.code.numerics for session in self.sessions}))

    @property
    def is_mixed(self) -> bool:
        """Whether sessions differ in numerics version or in major version of torch."""
        return len(self.numerics) > 1 or len({major_version(s.environment.torch) for s in self.sessions}) > 1


def major_version(version: str) -> str:
    """Return the part of a version number before the first dot."""
    return version.split(".")[0]
