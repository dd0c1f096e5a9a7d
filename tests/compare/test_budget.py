"""The chosen runs against all subsets, one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from paperbench.compare.budget import choose
from paperbench.compare.power import NextRuns

Timed = list[tuple[NextRuns, float]]


def timed(rng: np.random.Generator, nets: int) -> Timed:
    """Made-up next runs, with three claims about two or three nets each."""
    claims = {f"claim{i}": (set(rng.permutation(nets)[: 2 + i % 2]), float(rng.uniform(0.2, 1))) for i in range(3)}
    runs = []
    for i in range(nets):
        its = {name: chance for name, (which, chance) in claims.items() if i in which}
        verdicts = {f"row{i}/x": float(rng.uniform(0, 1))}
        worth = (sum(verdicts.values()) + sum(its.values()) / 2) / 5
        runs.append((NextRuns((f"row{i}/x",), 5, 5, verdicts, its, worth), float(rng.uniform(1, 10))))
    return runs


def decided(runs: Timed, chosen: tuple[int, ...]) -> float:
    total = sum(sum(runs[i][0].verdicts.values()) for i in chosen)
    chances = {claim: chance for one, _ in runs for claim, chance in one.claims.items()}
    for claim, chance in chances.items():
        if all(i in chosen for i, (one, _) in enumerate(runs) if claim in one.claims):
            total += chance
    return total


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("budget", [0.5, 8.0, 20.0, 1000.0])
def test_no_subset_decides_more(seed: int, budget: float) -> None:
    runs = timed(np.random.default_rng(seed), 6)
    choice = choose(runs, budget)
    subsets = [subset for n in range(7) for subset in combinations(range(6), n)]
    best = max(decided(runs, s) for s in subsets if sum(runs[i][1] for i in s) <= budget)
    assert choice.seconds <= budget
    assert choice.verdicts + sum(choice.claims.values()) == pytest.approx(best)


def test_many_nets_are_narrowed_to_the_most_valuable_and_claims_about_others_do_not_count() -> None:
    many = [(NextRuns((f"r{i}/x",), 1, 5, {f"r{i}/x": 0.5}, {}, 0.5), 1.0) for i in range(30)]
    shared = {"claim": 1.0}
    dear = [(NextRuns((f"d{i}/x",), 1, 5, {}, shared, 0.01), float(i)) for i in (1, 1000)]
    choice = choose(many + dear, 10)
    assert (len(choice.runs), choice.seconds, choice.claims) == (10, 10, {})
    assert choose([], 10).runs == ()
