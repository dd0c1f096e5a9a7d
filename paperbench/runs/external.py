"""External results: errors that others report for a cell, entered with `paperbench record`. One JSON file each.

    results/external/<experiment, 12 hex>-<source, 8 hex>-s<seed>.json

Such a result cannot be verified, so it is never pooled with our own runs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from paperbench.errors import PaperbenchError, RunError
from paperbench.files import Writer, refuse_links
from paperbench.runs.hashed import HashedJson
from paperbench.typed import Line, Percent, typed

_DIRECTORY = "external"


@typed
class ExternalResult(HashedJson):
    """A run that someone else reports.

    Attributes:
        table, cell: The cell that the result was entered for.
        setting: Label of the net if the cell has several; otherwise empty.
        experiment: `Table.experiment_digest` of that net.
        error: Test error in percent; None if the run diverged.
        source: Who reports it, and where.
    """

    REMEDY = "Restore it; or delete it and enter the result again (`paperbench record`)."

    kind: Literal["external"]
    table: Line
    cell: Line
    setting: Line
    experiment: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    error: Percent | None
    source: Annotated[Line, Field(min_length=1)]

    @property
    def file_name(self) -> str:
        """Unique for each experiment, source and seed."""
        source = hashlib.sha256(self.source.encode()).hexdigest()
        return f"{self.experiment[:12]}-{source[:8]}-s{self.seed}.json"

    @property
    def outcome(self) -> str:
        return "diverged" if self.error is None else f"{self.error} %"


def write_external(root: Path, result: ExternalResult) -> Path:
    """Write a result into a results directory, unless it was already entered; return its file."""
    path = root / _DIRECTORY / result.file_name
    refuse_links(path.parent)
    if not _holds(path, result):
        Writer(lambda: _holds(path, result)).write(path, result.to_json().encode())
    return path


def _holds(path: Path, result: ExternalResult) -> bool:
    """Whether a file already holds the result."""
    try:
        existing = ExternalResult.read(path)
    except RunError as error:
        raise PaperbenchError(f"{error} Nothing was entered.") from error
    if existing and existing.error != result.error:
        raise PaperbenchError(
            f"{path} holds the result of seed {existing.seed} from {existing.source!r} already: {existing.outcome}, "
            f"where you enter {result.outcome}. If that was wrong, delete the file and enter the result again; if this "
            "is another run, give it another seed."
        )
    return existing is not None


def read_externals(root: Path) -> tuple[list[ExternalResult], list[str]]:
    """Return the external results in a results directory, sorted, and a complaint about each unreadable file."""
    results, complaints = ExternalResult.read_all(root / _DIRECTORY)
    return sorted(results, key=lambda r: (r.table, r.cell, r.setting, r.source, r.seed, r.experiment)), complaints
