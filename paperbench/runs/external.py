"""Results from elsewhere: what others report for a cell, as the user entered it. One JSON file each.

    results/external/<experiment, 12 hex>-<source, 8 hex>-s<seed>.json

Nothing of such a result can be checked, so it is never pooled with runs of our own.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from paperbench.atomic import write_atomically
from paperbench.errors import PaperbenchError
from paperbench.reading import read_at_most
from paperbench.runs.record import ForeignRecordError, RecordError, build, read_signed, signed

SCHEMA = 1
_FOLDER = "external"
_LARGEST = 1_000_000
_MOST_SEED = 2**63 - 1
_DIGEST = re.compile("[0-9a-f]{64}")
_REMEDY = "Restore it; or delete it, and enter the result again (`paperbench record`)."


@dataclass(frozen=True)
class ExternalResult:
    """One training that somebody else reports.

    Attributes:
        table, cell: Where it was entered.
        setting: Label of the net, in cells that stand for several; else empty.
        experiment: `Table.experiment_digest` of that net when it was entered.
        error: Test error in percent; None if the run diverged.
        source: Who reports it and where, in one line.
    """

    schema: int
    kind: Literal["external"]
    table: str
    cell: str
    setting: str
    experiment: str
    seed: int
    error: float | None
    source: str

    @property
    def file_name(self) -> str:
        """Name of its file: one for each experiment, source and seed."""
        source = hashlib.sha256(self.source.encode()).hexdigest()
        return f"{self.experiment[:12]}-{source[:8]}-s{self.seed}.json"

    @property
    def outcome(self) -> str:
        """The error as text."""
        return "diverged" if self.error is None else f"{self.error} %"

    def to_json(self) -> str:
        """One JSON object, with the sha256 of all its other values as the last."""
        return signed(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ExternalResult:
        """Read a result back.

        Raises:
            ForeignRecordError: It is of another schema.
            RecordError: It is no result, was edited, or holds what no result can.
        """
        result: ExternalResult = read_signed(cls, text, SCHEMA, "result")
        result.check()
        return result

    def check(self) -> None:
        """Make sure that its values can be those of a result.

        Raises:
            RecordError: One cannot.
        """
        build(ExternalResult, asdict(self), "result")
        if not _DIGEST.fullmatch(self.experiment):
            raise RecordError(f"names experiment {self.experiment!r}, which is no digest")
        if not 0 <= self.seed <= _MOST_SEED:
            raise RecordError(f"has seed {self.seed}, and seeds go from 0 to {_MOST_SEED}")
        if self.error is not None and not 0 <= self.error <= 100:
            raise RecordError(f"has an error of {self.error} %, and errors go from 0 to 100")
        if self.source != self.source.strip() or "\t" in self.source or len(self.source.splitlines()) != 1:
            raise RecordError(f"has the source {self.source!r}, which is not one line of text without space around it")


def write_external(root: Path, result: ExternalResult) -> Path:
    """Put a result into a results directory. One that is there already stays as it is.

    Returns:
        Its file.

    Raises:
        PaperbenchError: Its values are not those of a result; the file holds something else; it cannot be written.
    """
    try:
        result.check()
    except RecordError as error:
        raise PaperbenchError(f"The result {str(error).rstrip('.')}. Correct that, and enter it again.") from error
    path = root / _FOLDER / result.file_name
    if not _is_there(path, result):
        write_atomically(path, result.to_json().encode(), lambda: _refuse_another(path, result))
    return path


def _refuse_another(path: Path, result: ExternalResult) -> None:
    _is_there(path, result)


def _is_there(path: Path, result: ExternalResult) -> bool:
    """Whether a file holds the result already.

    Raises:
        PaperbenchError: It holds something else.
    """
    try:
        there = _read(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PaperbenchError(f"{path} cannot be read: {error.strerror or error}. Mend that first.") from error
    except RecordError as error:
        raise PaperbenchError(f"{str(error).rstrip('.')}. Nothing was entered.") from error
    if (there.experiment, there.source) != (result.experiment, result.source):
        raise PaperbenchError(
            f"{path} holds a result from {there.source!r} for {there.table} {there.cell}, and this one would have the "
            "same file name. Word the source differently."
        )
    if there.error != result.error:
        raise PaperbenchError(
            f"{path} holds the result of seed {there.seed} from {there.source!r} already: {there.outcome}, where you "
            f"enter {result.outcome}. If that was wrong, delete the file and enter the result again; if this is "
            "another run, give it another seed."
        )
    return True


def read_externals(root: Path) -> tuple[list[ExternalResult], list[str]]:
    """The results in a results directory, in order, and a complaint about each file that holds none.

    Raises:
        PaperbenchError: They cannot be listed.
    """
    folder = root / _FOLDER
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise PaperbenchError(f"{folder} cannot be read: {error.strerror or error}. Mend that first.") from error
    results, complaints = [], []
    for path in files:
        try:
            results.append(_read(path))
        except OSError as error:
            complaints.append(f"{path} cannot be read: {error.strerror or error}. {_REMEDY}")
        except RecordError as error:
            complaints.append(str(error))
    return sorted(results, key=lambda r: (r.table, r.cell, r.setting, r.source, r.seed, r.experiment)), complaints


def _read(path: Path) -> ExternalResult:
    """The result in a file.

    Raises:
        OSError: It cannot be read.
        RecordError: It holds none, or that of another file; the message says what to do.
    """
    try:
        result = ExternalResult.from_json(read_at_most(path, _LARGEST).decode())
    except ForeignRecordError as error:
        raise ForeignRecordError(f"{path} {error}. Use the version that wrote it, or move the file away.") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is no text ({error}). {_REMEDY}") from error
    except RecordError as error:
        raise RecordError(f"{path} {str(error).rstrip('.')}. {_REMEDY}") from error
    if result.file_name != path.name:
        raise RecordError(
            f"{path} holds the result that belongs into {result.file_name}: it is a copy, or was renamed. Delete it, "
            "or rename it to that."
        )
    return result
