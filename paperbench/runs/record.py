"""The record of a run: what it was, how far it came, what it measured. One JSON file, the same for every run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from paperbench.runs.hashed import HashedJson
from paperbench.specs.run_spec import RunSpec
from paperbench.typed import Text, typed

Status = Literal["partial", "finished", "diverged"]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Percent = Annotated[float, Field(ge=0, le=100)]


@typed
class DataFacts:
    """What the run was trained on; `fingerprint` stands in the spec too."""

    name: Text
    origin: Text
    canonical: bool
    fingerprint: Text


@typed
class Result:
    """Errors of a finished run, in percent of the test set, and mean cross-entropies.

    Attributes:
        test_error, test_loss: With the BN statistics that the recipe reports with, after the last iteration.
        moving_average_test_error, moving_average_test_loss: The same net with BN's moving averages; the loss is None if
            it is not finite.
        best_test_error: Lowest moving-average error seen along the way. Never the result.
    """

    test_error: Percent
    test_loss: float
    moving_average_test_error: Percent
    moving_average_test_loss: float | None
    best_test_error: Percent


@typed
class Code:
    """The version of paperbench.

    Attributes:
        commit: Of the source checkout, with "+changes" if files differ from it; None outside one.
        source: Digest of the package's Python files, which tells the code even without a commit.
        numerics: `NUMERICS_VERSION` of the training code.
    """

    version: Text
    commit: Text | None
    source: Text
    numerics: int


@typed
class Environment:
    """Machine and libraries: what can change numbers and speed, and nothing that names people or places."""

    python: Text
    torch: Text
    torchvision: Text
    timm: Text
    numpy: Text
    cuda: Text | None
    cudnn: Text | None
    system: Text
    device: Text
    threads: Annotated[int, Field(ge=1, le=65_536)]


@typed
class Session:
    """One process's part in a run, and what carried it out.

    Attributes:
        last: Iterations of the run that were done at its end.
        seconds: Time that it took, evaluations and checkpoints included.
        engine: How the steps were carried out: "eager", "graph" or "compile".
    """

    last: Count
    seconds: Seconds
    engine: Text
    code: Code
    environment: Environment


@typed
class Divergence:
    """Where the values of a run stopped being finite.

    Attributes:
        iteration: The iteration, counted from 1; of a net that only its test shows to be broken, the last.
        learning_rate: Of that iteration.
        phase: In which part of the iteration; None if repeating the iterations before did not show it again, or there
            was no sound state left to repeat them from.
        module: Name of the module in the net whose output, gradient or parameter was the first; "loss" for the loss.
    """

    iteration: Count
    learning_rate: float
    phase: Literal["forward", "backward", "update", "test"] | None
    module: Text | None

    def __str__(self) -> str:
        when = f"not finite from iteration {self.iteration:,} on, at learning rate {self.learning_rate:.3g}"
        if self.phase is None:
            return f"{when}; repeating the iterations before did not show where"
        parts = {"forward": "output", "backward": "gradient", "update": "parameters", "test": "output in the test"}
        return f"{when}; first in the {parts[self.phase]} of {self.module}"


@typed
class Files:
    """What lies beside a record, as it was when the record was written.

    Attributes:
        history_lines, history_sha256: So many lines, and the hash of their bytes.
        checkpoint: Name of the newest checkpoint, which ends in the hash of its bytes.
        weights_sha256: Hash of the bytes of model.safetensors; only of finished runs.
    """

    history_lines: Count
    history_sha256: Text
    checkpoint: Text
    weights_sha256: Text | None


@typed
class Record(HashedJson):
    """See the module.

    Attributes:
        run: The run's id, made of the spec's digest and the seed.
        net: The net as one would ask timm for it.
        iteration: Iterations done.
        result: Only of finished runs.
        divergence: Only of diverged runs.
        sessions: One for the start and each continuation, in order.
        test_every: Iterations between the tests that `best_test_error` is the best of.
    """

    run: Text
    seed: Count
    net: Text
    status: Status
    iteration: Count
    result: Result | None
    divergence: Divergence | None
    sessions: tuple[Session, ...]
    test_every: PositiveInt
    data: DataFacts
    spec: RunSpec
    files: Files

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
        ends = [session.last for session in self.sessions]
        if not ends or ends != sorted(ends) or ends[-1] != self.iteration:
            raise ValueError(f"its sessions do not make up its {self.iteration} iterations.")

    @property
    def seconds(self) -> float:
        """Time spent in the run, over all its sessions."""
        return sum(session.seconds for session in self.sessions)

    @property
    def numerics(self) -> tuple[int, ...]:
        """Numerics versions that had a part in the run, ascending."""
        return tuple(sorted({session.code.numerics for session in self.sessions}))

    @property
    def is_mixed(self) -> bool:
        """Whether different numerics versions or major versions of torch had a part in the run."""
        return len(self.numerics) > 1 or len({major_version(s.environment.torch) for s in self.sessions}) > 1


def major_version(version: str) -> str:
    """The part of a version number before its first dot."""
    return version.split(".")[0]
