"""The record of a run: what it was, how far it came, what it measured. One JSON file, the same for every run."""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from paperbench.errors import RunError, nearest
from paperbench.reading import UNPRINTABLE
from paperbench.specs.run_spec import RunSpec, canonical_json

SCHEMA = 4
_MOST_LEVELS = 20
_IN_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "object"}
Status = Literal["partial", "finished", "diverged"]
_Reader = Callable[[Any, str], Any]


class RecordError(RunError):
    """A record that is damaged, or was edited into something no run leaves."""


class ForeignRecordError(RecordError):
    """A record that nothing is wrong with, but of another version of paperbench or another run."""


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
        moving_average_test_error, moving_average_test_loss: The same net with BN's moving averages; the loss is None if
            it is not finite.
        best_test_error: Lowest moving-average error seen along the way. Never the result.
    """

    test_error: float
    test_loss: float
    moving_average_test_error: float
    moving_average_test_loss: float | None
    best_test_error: float


@dataclass(frozen=True)
class Code:
    """What computed the run.

    Attributes:
        commit: Of the source checkout, with "+changes" if files differ from it; None outside one.
        source: Digest of the package's Python files, which tells the code even without a commit.
        numerics: `NUMERICS_VERSION` of the training code.
        engine: How the steps were carried out: "eager", "graph" or "compile".
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
    """One process's part in a run: the iterations from `first` to before `last`, and what carried them out.

    Attributes:
        engine: As of `Code`.
    """

    first: int
    last: int
    seconds: float
    commit: str | None
    source: str
    numerics: int
    engine: str
    torch: str
    device: str
    threads: int


@dataclass(frozen=True)
class Divergence:
    """Where the values of a run stopped being finite.

    Attributes:
        iteration: The iteration, counted from 1; of a net that only its test shows to be broken, the last.
        learning_rate: Of that iteration.
        phase: In which part of the iteration; None if repeating the iterations before did not show it again, or there
            was no sound state left to repeat them from.
        module: Name of the module in the net whose output, gradient or parameter was the first; "loss" for the loss.
    """

    iteration: int
    learning_rate: float
    phase: Literal["forward", "backward", "update", "test"] | None
    module: str | None


@dataclass(frozen=True)
class Files:
    """What lies beside a record, as it was when the record was written.

    Attributes:
        history_lines, history_sha256: So many lines, and the hash of their bytes.
        checkpoint: Name of the newest checkpoint, which ends in the hash of its bytes.
        weights_sha256: Hash of the bytes of model.safetensors; only of finished runs.
    """

    history_lines: int
    history_sha256: str
    checkpoint: str
    weights_sha256: str | None


@dataclass(frozen=True)
class Record:
    """See the module.

    Attributes:
        run: The run's id, made of the spec's digest and the seed.
        net: The net as one would ask timm for it.
        iteration: Iterations done.
        result: Only of finished runs.
        divergence: Only of diverged runs.
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
    divergence: Divergence | None
    seconds: float
    sessions: tuple[Session, ...]
    test_every: int
    data: DataFacts
    spec: RunSpec
    code: Code
    environment: Environment
    files: Files

    @property
    def numerics(self) -> tuple[int, ...]:
        """Numerics versions that had a part in the run, ascending."""
        return tuple(sorted({session.numerics for session in self.sessions}))

    @property
    def is_mixed(self) -> bool:
        """Whether different numerics versions or major versions of torch had a part in the run."""
        return len(self.numerics) > 1 or len({major_version(session.torch) for session in self.sessions}) > 1

    def to_json(self) -> str:
        """One JSON object, with the sha256 of all its other values as the last."""
        return signed(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record back.

        Raises:
            ForeignRecordError: It is of another schema.
            RecordError: It is no record, was edited, or its parts contradict each other.
        """
        record: Record = read_signed(cls, text, SCHEMA, "record")
        if min(record.seed, record.seconds, record.files.history_lines) < 0 or record.test_every < 1:
            raise RecordError("has a negative number where no run leaves one")
        errors = (record.result.test_error, record.result.moving_average_test_error) if record.result else ()
        if not all(0 <= error <= 100 for error in errors):
            raise RecordError("has a test error that is no percentage")
        expected = record.spec.run_id(record.seed)
        if record.run != expected:
            raise RecordError(f"names run {record.run!r}, but its spec and seed give {expected!r}: it was edited")
        if record.data.fingerprint != record.spec.data:
            raise RecordError("has another data fingerprint than its spec: it was edited")
        if (record.status == "finished") != (record.result is not None):
            raise RecordError(f"has status {record.status!r} {'with' if record.result else 'without'} a result")
        if record.status == "finished" and record.iteration != record.spec.recipe.get("iterations"):
            raise RecordError(f"is finished at iteration {record.iteration}, which is not its recipe's last")
        if (record.status == "finished") != (record.files.weights_sha256 is not None):
            raise RecordError(
                f"has status {record.status!r} and {record.files.weights_sha256!r} as hash of the weights"
            )
        if (record.status == "diverged") != (record.divergence is not None):
            raise RecordError(f"has status {record.status!r} {'with' if record.divergence else 'without'} a divergence")
        ends = [0, *(session.last for session in record.sessions)]
        if not record.sessions or [s.first for s in record.sessions] != ends[:-1] or ends[-1] != record.iteration:
            raise RecordError(f"has sessions that do not make up its {record.iteration} iterations")
        return record


def major_version(version: str) -> str:
    """The part of a version number before its first dot."""
    return version.split(".")[0]


def signed(values: dict[str, Any]) -> str:
    """A file's text: one JSON object, with the sha256 of all its other values as the last."""
    return json.dumps({**values, "sha256": _checksum(values)}, indent=1, allow_nan=False) + "\n"


def read_signed(kind: Any, text: str, schema: int, path: str) -> Any:
    """Read back what `signed` wrote of an object of a dataclass.

    Args:
        path: What messages call the object.

    Raises:
        ForeignRecordError: It is of another schema.
        RecordError: It is no such object, or was edited.
    """
    value = parse_json(text)
    found = value.get("schema") if isinstance(value, dict) else None
    if found != schema:
        raise ForeignRecordError(f"has schema {found!r}, and this version of paperbench reads {schema}")
    checksum = value.pop("sha256", None)
    read = build(kind, value, path)
    try:
        is_as_written = checksum == _checksum(value)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"holds values that no run leaves ({error})") from error
    if not is_as_written:
        raise RecordError("does not have the values that its sha256 was taken of: it was edited or damaged")
    return read


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


def parse_json(text: str) -> Any:
    """JSON without NaN and infinities, which Python would take.

    Raises:
        RecordError: The text is something else, or nested deeper than anything of ours.
    """
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is no JSON ({error})") from error
    level, outer = 0, [value] if isinstance(value, (dict, list)) else []
    while outer:
        level += 1
        if level > _MOST_LEVELS:
            raise RecordError(f"holds more than {_MOST_LEVELS} levels of values in each other")
        parts = (part.values() if isinstance(part, dict) else part for part in outer)
        outer = [part for inner in parts for part in inner if isinstance(part, (dict, list))]
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def build(kind: Any, value: Any, path: str) -> Any:
    """`value` as a dataclass or plain type, strictly: every key known, none missing, every type right.

    Raises:
        RecordError: It does not fit; the message says what is wrong with which part of it.
    """
    return _reader(kind)(value, path)


@cache
def _reader(kind: Any) -> _Reader:
    """What makes a value of a kind. Kept, as to look at the kind takes far longer than to look at the value."""
    if is_dataclass(kind):
        return _object_reader(kind)
    if get_origin(kind) is tuple:
        return _list_reader(_reader(get_args(kind)[0]))
    if get_origin(kind) in (types.UnionType, Union):
        read = _reader(get_args(kind)[0])
        return _optional_reader(read) if type(None) in get_args(kind) else read
    if get_origin(kind) is Literal:
        return _choice_reader(get_args(kind))
    return _plain_reader(get_origin(kind) or kind)


def _object_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    parts = {f.name: (_reader(hints[f.name]), f".{f.name}") for f in fields(kind)}
    required = [f.name for f in fields(kind) if f.default is MISSING]

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise RecordError(f"{path} is no object")
        for key in value:
            if key not in parts:
                raise RecordError(f"{path} has an unknown key {key!r}. {nearest(key, parts)}")
        for key in required:
            if key not in value:
                raise RecordError(f"{path} lacks the key {key!r}")
        read_values = {}
        for key, item in value.items():
            read_part, name = parts[key]
            read_values[key] = read_part(item, path + name)
        return kind(**read_values)

    return read


def _list_reader(read_item: _Reader) -> _Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise RecordError(f"{path} is no list")
        return tuple(read_item(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read


def _optional_reader(read: _Reader) -> _Reader:
    return lambda value, path: None if value is None else read(value, path)


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any, path: str) -> Any:
        if value not in choices:
            raise RecordError(f"{path} is {value!r}. {nearest(str(value), choices)}")
        return value

    return read


def _plain_reader(wanted: Any) -> _Reader:
    taken: Any = (int, float) if wanted is float else wanted

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, taken) or (isinstance(value, bool) and wanted is not bool):
            raise RecordError(f"{path} is {value!r}, which is no {_IN_WORDS.get(wanted, wanted.__name__)}")
        if wanted is str and not value.isprintable() and (unprintable := UNPRINTABLE.search(value)):
            raise RecordError(f"{path} holds the character {unprintable.group()!r}, which cannot be printed")
        try:
            return float(value) if wanted is float else value
        except OverflowError as error:
            raise RecordError(f"{path} is too large a number") from error

    return read
