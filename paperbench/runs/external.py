"""Results from elsewhere: what others report for a cell, as the user entered it. One JSON file each.

    results/external/<experiment, 12 hex>-<source, 8 hex>-s<seed>.json

Nothing of such a result can be checked, so it is never pooled with runs of our own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from paperbench.errors import PaperbenchError
from paperbench.files import list_folder, unreadable, write_atomically
from paperbench.runs.hashed import HashedJson, RecordError
from paperbench.runs.record import Percent
from paperbench.typed import Problem, Text, raise_problems, typed

_FOLDER = "external"
_REMEDY = "Restore it; or delete it, and enter the result again (`paperbench record`)."
_FOREIGN_REMEDY = "Use the version that wrote it, or move the file away."


@typed
class ExternalResult(HashedJson):
    """One training that somebody else reports.

    Attributes:
        table, cell: Where it was entered.
        setting: Label of the net, in cells that stand for several; else empty.
        experiment: `Table.experiment_digest` of that net when it was entered.
        error: Test error in percent; None if the run diverged.
        source: Who reports it and where.
    """

    kind: Literal["external"]
    table: Text
    cell: Text
    setting: Text
    experiment: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    error: Percent | None
    source: Text

    def __post_init__(self) -> None:
        source = self.source
        if source != source.strip() or "\t" in source or len(source.splitlines()) != 1:
            message = f"must be one line of text without space around it, not {source!r}."
            raise_problems([Problem(("source",), message)])

    @property
    def file_name(self) -> str:
        """Name of its file: one for each experiment, source and seed."""
        source = hashlib.sha256(self.source.encode()).hexdigest()
        return f"{self.experiment[:12]}-{source[:8]}-s{self.seed}.json"

    @property
    def outcome(self) -> str:
        """The error as text."""
        return "diverged" if self.error is None else f"{self.error} %"


def write_external(root: Path, result: ExternalResult) -> Path:
    """Put a result into a results directory. One that is there already stays as it is.

    Returns:
        Its file.

    Raises:
        PaperbenchError: The file holds something else, or cannot be written.
    """
    path = root / _FOLDER / result.file_name
    if not _holds(path, result):
        write_atomically(path, result.to_json().encode(), lambda: _holds(path, result))
    return path


def _holds(path: Path, result: ExternalResult) -> bool:
    """Whether a file holds the result already.

    Raises:
        PaperbenchError: It holds another error, or is damaged.
    """
    try:
        there = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except RecordError as error:
        raise PaperbenchError(f"{error} Nothing was entered.") from error
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
    results, complaints = [], []
    for path in list_folder(root / _FOLDER):
        if path.suffix != ".json":
            continue
        try:
            results.append(_read(path))
        except OSError as error:  # a link that leads nowhere
            complaints.append(unreadable(path, error, _REMEDY))
        except RecordError as error:
            complaints.append(str(error))
    return sorted(results, key=lambda r: (r.table, r.cell, r.setting, r.source, r.seed, r.experiment)), complaints


def _read(path: Path) -> ExternalResult:
    """The result in a file.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such file.
        RecordError: It holds no result, or that of another file.
    """
    result = ExternalResult.read(path, _REMEDY, _FOREIGN_REMEDY)
    if result.file_name != path.name:
        raise RecordError(
            f"{path} holds the result that belongs into {result.file_name}: it is a copy, or was renamed. Delete it, "
            "or rename it to that."
        )
    return result
