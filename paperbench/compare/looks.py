"""When results are looked at: after the number of runs fixed beforehand, and once more after twice as many.

Looking after every run and stopping at a welcome verdict would be optional stopping. So runs between the two looks
change nothing, and neither do runs beyond the second.
"""

from __future__ import annotations

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
    """The looks for which all runs have ended."""
    found = []
    for number, runs, level in ((1, planned, FIRST_LOOK), (2, 2 * planned, SECOND_LOOK)):
        looked_at = group.first(runs)
        if len(looked_at) == runs:
            found.append(Look(number, tuple(looked_at), level))
    return found


def progress(group: Group, planned: int) -> str:
    """How many of the planned runs have ended, and which are missing."""
    done = group.first(planned)
    text = f"{len(done)} of {planned} runs"
    if group.conditions.source is not None:
        return text
    seeds = {run.seed for run in done}
    missing = next((seed for seed in range(planned) if seed not in seeds), planned)
    if missing < planned and any(run.seed > missing for run in group.ended):
        text += f" (seeds 0 to {planned - 1} count, and that of seed {missing} is missing)"
    return text
