from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from paperbench.bench.figures import Control, NetFigures, Spread, VariantFigures, noise_of, rates, ratio, spread


def test_a_ratio_is_the_median_of_those_of_the_rounds_not_the_ratio_of_medians() -> None:
    ours, plain = (300.0, 100.0, 200.0), (100.0, 50.0, 400.0)  # 3, 2, 0.5; the medians' ratio is also 2
    found = ratio(ours, plain, noise=0.1)
    assert found is not None
    assert (found.rounds, found.median, found.low, found.high) == ((3.0, 2.0, 0.5), 2.0, 0.5, 3.0)
    slow_round = ratio((100.0, 10.0, 99.0), (50.0, 5.0, 90.0), noise=0.1)  # 2, 2, 1.1; the medians' ratio is 1.98
    assert slow_round is not None
    assert slow_round.median == 2.0


def test_rounds_that_only_one_of_them_has_are_left_out_of_a_ratio() -> None:
    found = ratio((10.0, 20.0, 30.0), (5.0, 5.0), noise=None)
    assert found is not None
    assert found.rounds == (2.0, 4.0)
    assert ratio((10.0,), (), noise=0.0) is None


def test_rates_and_their_spread() -> None:
    assert rates(256, (2.0, 1.0, 4.0)) == (128.0, 256.0, 64.0)
    assert spread((128.0, 256.0, 64.0)) == Spread(128.0, 64.0, 256.0)


def test_noise_is_the_farthest_that_a_variant_was_from_itself_in_either_direction() -> None:
    assert noise_of([Control("a", 0, (1.02, 0.99)), Control("b", 0, (1.0, 0.8, 1.1))]) == pytest.approx(0.25)  # 1 / 0.8
    assert noise_of([]) is None


@pytest.mark.parametrize(
    ("factor", "noise", "differs"),
    [
        (1.2, 0.1, True),
        (1.05, 0.1, False),
        (1 / 1.2, 0.1, True),
        (1 / 1.05, 0.1, False),
        (1.0, 0.0, False),
        (5.0, None, False),
    ],
)
def test_what_is_nearer_to_1_than_the_noise_is_no_difference(factor: float, noise: float | None, differs: bool) -> None:
    found = ratio((factor * 100,) * 3, (100.0,) * 3, noise)
    assert found is not None
    assert found.is_difference is differs


def test_a_net_is_sound_unless_a_variant_computed_something_else_or_broke() -> None:
    variant = VariantFigures("paperbench", "eager", "fp32", "eager fp32", "measured")
    net = NetFigures("a", 1, 2, 2, 10, 1, 0.1, 20, (variant,), (), None, None)
    for status, sound in {
        "measured": True,
        "out of memory": True,
        "left out": True,
        "wrong loss": False,
        "not checked": False,
        "failed": False,
    }.items():
        changed = replace(net, variants=(variant, replace(variant, status=status)))  # type: ignore[arg-type]
        assert changed.is_sound is sound, status


def test_figures_are_plain_values() -> None:
    found = ratio((2.0, 3.0), (1.0, 1.0), noise=math.log(2))
    variant = VariantFigures("paperbench", "eager", "fp32", "eager fp32", "measured", over_plain=found)
    assert json.loads(json.dumps(asdict(variant)))["over_plain"]["rounds"] == [2.0, 3.0]
