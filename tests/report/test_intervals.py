"""Where drawn intervals, their dots and arrows lie."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.report.page.intervals import IntervalScale
from paperbench.report.report import NetReport, Report


def _of(comparison: Comparison, cell: str) -> NetReport:
    return next(net for net in Report(comparison).tried if net.cell.id == cell)


def _numbers(svg: str, pattern: str) -> list[float]:
    match = re.search(pattern, svg)
    return [float(one) for one in match.groups()] if match else []


def test_dot_line_and_band_are_on_one_scale(numbers: Comparison) -> None:
    net = _of(numbers, "preact/resnet110")
    interval, svg = net.compared.interval, IntervalScale(2.0).draw(net)
    assert interval is not None
    zero, per_point = 100, 90 / 2.0  # the middle of 200, whose margins are 10 wide
    low, high = _numbers(svg, r'd="M([\d.]+) 11.0H([\d.]+)"')
    assert [(low - zero) / per_point, (high - zero) / per_point] == pytest.approx(
        [interval.low, interval.high], abs=0.01
    )
    assert _numbers(svg, r'cx="([\d.]+)"') == [pytest.approx(zero + per_point * interval.difference, abs=0.1)]
    left, width = _numbers(svg, r'class="band" x="([\d.]+)" y="1" width="([\d.]+)"')
    assert [left, left + width] == pytest.approx([zero - 0.5 * per_point, zero + 0.5 * per_point], abs=0.11)


@pytest.mark.parametrize(
    ("cell", "bound", "arrows", "dots"),
    [
        ("bn_after_addition/resnet110", 3.0, [], 1),  # from +1.66 over +1.85 to +2.04
        ("bn_after_addition/resnet110", 2.0, ["190.0 7.0l5"], 1),
        ("bn_after_addition/resnet110", 1.0, ["190.0 7.0l5", "190.0 7.0l5"], 0),
        ("bn_after_addition/resnet164", 1.0, ["10.0 7.0l-5", "10.0 7.0l-5"], 0),  # about -1.42
    ],
)
def test_arrows_show_what_lies_beyond_the_scale(
    numbers: Comparison, cell: str, bound: float, arrows: list[str], dots: int
) -> None:
    svg = IntervalScale(bound).draw(_of(numbers, cell))
    assert re.findall(r"M([-\d. ]+l-?5) 4", svg) == arrows
    assert svg.count("<circle") == dots


def test_the_scale_holds_tolerance_and_intervals_but_no_far_ones(numbers: Comparison) -> None:
    near, far = _of(numbers, "original/resnet110"), _of(numbers, "bn_after_addition/resnet110")
    interval = far.compared.interval
    assert interval is not None
    lost = replace(far.compared, interval=replace(interval, high=50.0))
    cases = [([near], 0.5), ([near, far], interval.high)]
    cases.append(([near, replace(far, compared=lost)], 8 * 0.5))
    for nets, bound in cases:
        scale = IntervalScale.of(nets)
        assert scale is not None
        assert scale.bound == pytest.approx(1.08 * bound)
    assert IntervalScale.of([]) is None


def test_ticks_of_the_scale_are_round_and_where_they_say() -> None:
    found = re.findall(r'<text x="([\d.]+)" y="15">([^<]+)', IntervalScale(2.0).axis())
    assert {text: float(x) for x, text in found} == {"-2": 10, "-1": 55, "0": 100, "+1": 145, "+2": 190}
