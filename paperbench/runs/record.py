"""The record of a run: what it was, how far it came, what it measured. One JSON file, the same for every run."""

from __future__ import annotations

import json
import math
import types
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.run_spec import RunSpec

SCHEMA = 1
_IN_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "object"}
Status = Literal["partial", "finished", "diverged"]


class RecordError(PaperbenchError):
    """A record that is damaged, or was edited into something no run leaves."""


@dataclass(frozen=True)
class DataFacts:
    """What the run was trained on; `fingerprint` stands in the spec too."""

    name: str
    origin: str
    canonical: bool
    fingerprint: str


@dataclass(frozen=True)
class Result:
    """Errors of a finished run, in percent of the test set, and mean cross-entropies.

    Attributes:
        test_error, test_loss: With the BN statistics that the recipe reports with, after the last iteration.
        moving_average_test_error, moving_average_test_loss: The same net with BN's moving averages.
        best_test_error: Lowest moving-average error seen along the way. Never the result.
    """

    test_error: float
    test_loss: float
    moving_average_test_error: float
    moving_average_test_loss: float
    best_test_error: float


@dataclass(frozen=True)
class Code:
    """What computed the run.

    Attributes:
        commit: Of the source checkout, with "+changes" if files differ from it; None outside one.
        source: Digest of the package's Python files, which tells the code even without a commit.
        numerics: `NUMERICS_VERSION` of the training code.
        engine: How the steps were carried out.
    """

    version: str
    commit: str | None
    source: str
    numerics: int
    engine: str


@dataclass(frozen=True)
class Environment:
    """Machine and libraries: what can change numbers and speed, and nothing that names people or places."""

    python: str
    torch: str
    torchvision: str
    timm: str
    numpy: str
    cuda: str | None
    cudnn: str | None
    system: str
    device: str
    threads: int


@dataclass(frozen=True)
class Session:
    """One process's part in a run: the iterations from `first` to before `last`, and what carried them out."""

    first: int
    last: int
    seconds: float
    commit: str | None
    source: str
    torch: str
    device: str


@dataclass(frozen=True)
class Record:
    """See the module.

    Attributes:
        run: The run's id, made of the spec's digest and the seed.
        net: The net as one would ask timm for it.
        iteration: Iterations done.
        result: Only of finished runs.
        seconds: Time spent in this run, evaluations and checkpoints included, over all its sessions.
        sessions: One for the start and each continuation, in order.
        code, environment: Of the last session.
        test_every: Iterations between the tests that `best_test_error` is the best of.
    """

    schema: int
    run: str
    seed: int
    net: str
    status: Status
    iteration: int
    result: Result | None
    seconds: float
    sessions: tuple[Session, ...]
    test_every: int
    data: DataFacts
    spec: RunSpec
    code: Code
    environment: Environment

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record back.

        Raises:
            RecordError: It is no record of this schema, or its parts contradict each other.
        """
        value = parse_json(text)
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != SCHEMA:
            raise RecordError(f"has schema {schema!r}; this version reads {SCHEMA}: was it written by another one?")
        record: Record = build(cls, value, "record")
        expected = record.spec.run_id(record.seed)
        if record.run != expected:
            raise RecordError(f"names run {record.run!r}, but its spec and seed give {expected!r}: it was edited")
        if record.data.fingerprint != record.spec.data:
            raise RecordError("has another data fingerprint than its spec: it was edited")
        if (record.status == "finished") != (record.result is not None):
            raise RecordError(f"has status {record.status!r} {'with' if record.result else 'without'} a result")
        if record.status == "finished" and record.iteration != record.spec.recipe.get("iterations"):
            raise RecordError(f"is finished at iteration {record.iteration}, which is not its recipe's last")
        return record


def parse_json(text: str) -> Any:
    """JSON without NaN and infinities, which Python would take.

    Raises:
        RecordError: The text is something else.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is no JSON ({error})") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def build(kind: Any, value: Any, path: str) -> Any:
    """`value` as a dataclass or plain type, strictly: every key known, none missing, every type right.

    Raises:
        RecordError: It does not fit; the message says what is wrong with which part of it.
    """
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise RecordError(f"{path} is no object")
        keys = {f.name: f.default is MISSING for f in fields(kind)}
        for key in value:
            if key not in keys:
                raise RecordError(f"{path} has an unknown key {key!r}. {nearest(key, keys)}")
        for key, required in keys.items():
            if required and key not in value:
                raise RecordError(f"{path} lacks the key {key!r}")
        hints = get_type_hints(kind)
        return kind(**{key: build(hints[key], item, f"{path}.{key}") for key, item in value.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise RecordError(f"{path} is no list")
        return tuple(build(get_args(kind)[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if get_origin(kind) is types.UnionType:
        members = get_args(kind)
        return None if value is None and type(None) in members else build(members[0], value, path)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise RecordError(f"{path} is {value!r}. {nearest(str(value), get_args(kind))}")
        return value
    wanted = get_origin(kind) or kind
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits or (isinstance(value, bool) and wanted is not bool):
        raise RecordError(f"{path} is {value!r}, which is no {_IN_WORDS.get(wanted, wanted.__name__)}")
    try:
        return float(value) if wanted is float else value
    except OverflowError as error:
        raise RecordError(f"{path} is too large a number") from error
