"""What follows the runs of a command."""

from __future__ import annotations

from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record


class Observer:
    """Hears how runs go. This one is silent; others override what they care for."""

    def skipped(self, run: PlannedRun, why: str) -> None:
        """A run is done already, or another process works on it."""

    def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
        """A run starts, or resumes at an iteration, and goes on to `last_iteration` at most.

        Args:
            engine, reason: What carries out its steps, and why that was chosen.
        """

    def stepped(self, iteration: int) -> None:
        """An iteration was made."""

    def logged(self, line: HistoryLine) -> None:
        """A line of history was written."""

    def finishing(self) -> None:
        """The final test begins."""

    def ended(self, record: Record) -> None:
        """A run has ended or paused."""

    def failed(self, run: PlannedRun, why: str) -> None:
        """A run cannot continue."""

    def warned(self, run: PlannedRun, text: str) -> None:
        """Something about a run that the user should know but need not act on."""

    def waiting(self, runs: int, seconds: float) -> None:
        """Other processes hold the leases of some runs; whether they are alive will be known within some seconds."""
