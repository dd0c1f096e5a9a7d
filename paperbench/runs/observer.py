"""Observers that follow the runs of a command."""

from __future__ import annotations

from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record


class Observer:
    """Base class whose methods do nothing; override those that you need. Runs may take turns, and so do their calls."""

    def skipped(self, run: PlannedRun, why: str) -> None:
        """A run is already done, or another process is training it."""

    def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
        """A run starts or resumes.

        Args:
            iteration: Iterations already done.
            last_iteration: Where the run will end or pause, unless it is stopped earlier.
            engine: Name of the engine.
            reason: Why this engine was chosen.
        """

    def checking(self, run: PlannedRun, engine: str, processes: int) -> None:
        """The first steps of an engine, or of several processes, will be compared with those of eager in one."""

    def stepped(self, run: PlannedRun, iteration: int) -> None:
        """An iteration is done."""

    def logged(self, run: PlannedRun, line: HistoryLine) -> None:
        """A history line was written."""

    def finishing(self, run: PlannedRun, test_seconds: float | None) -> None:
        """The final averaging of BN statistics and the final tests start.

        Args:
            test_seconds: How long the last test took; None if this session made none.
        """

    def ended(self, run: PlannedRun, record: Record) -> None:
        """A run has ended or paused."""

    def failed(self, run: PlannedRun, why: str) -> None:
        """A run cannot be trained any further."""

    def warned(self, run: PlannedRun, text: str) -> None:
        """The user should know something about a run, but need not act on it."""

    def all_done(self) -> None:
        """Nothing is left to train, or a limit was reached."""

    def waiting(self, runs: int, seconds: float) -> None:
        """Other processes hold the leases of some runs; it takes up to `seconds` to see whether they are alive."""
