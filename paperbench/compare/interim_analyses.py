"""When results are analysed: after the number of runs fixed beforehand, and once more after twice as many.

Analysing after every run and stopping at a welcome verdict would be optional stopping. So runs between the two looks
change nothing, and neither do runs beyond the second.
"""

from __future__ import annotations

from dataclasses import dataclass

from paperbench.compare.evidence import Group, Run, errors_of
from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK

LOOKS = ((1, FIRST_LOOK), (2, SECOND_LOOK))
"""For each look how many times the planned runs it takes, and the error level of each one-sided test."""


@dataclass(frozen=True)
class Look:
    """One look at a group; see `LOOKS` for its number and level."""

    number: int
    runs: tuple[Run, ...]
    level: float

    @property
    def errors(self) -> list[float]:
        return errors_of(self.runs)


def looks(group: Group, planned: int) -> list[Look]:
    """The looks for which all runs have ended."""
    found = [Look(number, tuple(group.first(number * planned)), level) for number, level in LOOKS]
    return [look for look in found if len(look.runs) == look.number * planned]


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
