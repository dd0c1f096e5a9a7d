"""The runs that decide most in a given time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paperbench.compare.power import NextRuns

MAX_NETS = 16
"""All subsets of this number of nets are compared: those that are worth most per second."""


@dataclass(frozen=True)
class Choice:
    """Runs that fit into a time, those that are worth most per second first.

    Attributes:
        runs: Each with its seconds.
        verdicts: Expected number of cells that get a verdict.
        claims: For each claim that needs no other runs, the chance that it is decided.
        shortest: Seconds of the fastest net's missing runs, chosen or not.
    """

    runs: tuple[tuple[NextRuns, float], ...]
    verdicts: float
    claims: Mapping[str, float]
    shortest: float

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.runs)


def choose(runs: Sequence[tuple[NextRuns, float]], budget: float) -> Choice:
    """Choose the runs that are expected to decide most verdicts and claims together; of equals, the fastest.

    The runs of a net are taken all or none, as its cells are judged only with all of them. A claim counts if all nets
    that it needs are taken.

    Args:
        runs: The next runs of each net, with their seconds.
        budget: In seconds.
    """
    affordable = [one for one in runs if one[1] <= budget]
    candidates = sorted(affordable, key=lambda one: -one[0].worth / max(one[1], 1e-9))[:MAX_NETS]
    out = {claim for one in runs if one not in candidates for claim in one[0].claims}
    chances = {claim: chance for one, _ in runs for claim, chance in one.claims.items() if claim not in out}
    masks = {claim: sum(1 << i for i, (one, _) in enumerate(candidates) if claim in one.claims) for claim in chances}
    subsets = np.arange(1 << len(candidates))  # as bits
    value, seconds = np.zeros((2, len(subsets)))
    for i, (one, time) in enumerate(candidates):
        is_in = subsets >> i & 1
        value += is_in * sum(one.verdicts.values())
        seconds += is_in * time
    for claim, mask in masks.items():
        value += chances[claim] * (subsets & mask == mask)
    value[seconds > budget] = -1
    best = int(np.lexsort((seconds, -value.round(9)))[0])
    chosen = tuple(one for i, one in enumerate(candidates) if best >> i & 1)
    verdicts = sum(sum(one.verdicts.values()) for one, _ in chosen)
    decided = {claim: chances[claim] for claim, mask in masks.items() if best & mask == mask}
    return Choice(chosen, verdicts, decided, min((seconds for _, seconds in runs), default=math.inf))
