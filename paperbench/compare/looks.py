"""When results are looked at: after the number of runs fixed beforehand, and once more after twice as many.

Looking after every run and stopping at a welcome verdict would be optional stopping. So runs between the two looks
change nothing, and neither do runs beyond the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paperbench.compare.evidence import Group, Run
from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK


@dataclass(frozen=True)
class Look:
    """One look at a group.

    Attributes:
        number: 1 or 2.
        level: Error level of each one-sided test.
    """

    number: int
    runs: tuple[Run, ...]
    level: float

    @property
    def errors(self) -> list[float]:
        return [run.error for run in self.runs if run.error is not None]


def looks(group: Group, planned: int) -> list[Look]:
    """The looks for which all runs have ended.

    Our own runs are those with the seeds 0 to planned - 1, and then to 2 planned - 1: a choice among seeds would be one
    among results. Of results from elsewhere, which have what seeds they have, the lowest.
    """
    found = []
    for number, runs, level in ((1, planned, FIRST_LOOK), (2, 2 * planned, SECOND_LOOK)):
        looked_at = planned_runs(group, runs)
        if len(looked_at) == runs:
            found.append(Look(number, tuple(looked_at), level))
    return found


def planned_runs(group: Group, runs: int) -> Sequence[Run]:
    """Those of the first `runs` runs that have ended."""
    if group.conditions.source is not None:
        return group.ended[:runs]
    return [run for run in group.ended if run.seed < runs]


def progress(group: Group, planned: int) -> str:
    """How many of the planned runs have ended, and which are missing."""
    done = planned_runs(group, planned)
    text = f"{len(done)} of {planned} runs"
    if group.conditions.source is not None or not done:
        return text
    missing = sorted(set(range(planned)) - {run.seed for run in done})
    if missing and any(run.seed > missing[0] for run in group.ended):
        text += f" (of seed {', '.join(map(str, missing))} none has ended)"
    return text
