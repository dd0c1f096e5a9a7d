"""Drawings of confidence intervals against the tolerance, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from paperbench.report.report import NetReport

_WIDTH, _HEIGHT, _MARGIN = 200, 22, 10
_MAX_TOLERANCES = 8
"""Intervals farther away than this are cut off, with an arrow, so that the others stay readable."""


@dataclass(frozen=True)
class IntervalScale:
    """The common scale of the intervals of a table, from `-bound` to `bound` points."""

    bound: float

    @classmethod
    def of(cls, nets: Sequence[NetReport]) -> IntervalScale | None:
        """Return a scale that fits the intervals and tolerances of some nets; None without any."""
        if not nets:
            return None
        intervals = [net.compared.interval for net in nets]
        ends = [abs(end) for one in intervals if one for end in (one.low, one.high)]
        tolerance = max(net.cell.tolerance for net in nets)
        return cls(1.08 * max(tolerance, min(max(ends), _MAX_TOLERANCES * tolerance)))

    def axis(self) -> Markup:
        """Draw the scale: zero, and the round numbers of points on both sides."""
        steps = (factor * 10.0**power for power in range(-3, 4) for factor in (1, 2, 5))
        step = next(one for one in steps if 2 * self.bound / one <= 6)
        ticks = [k * step for k in range(-int(self.bound / step), int(self.bound / step) + 1)]
        texts = "".join(f'<text x="{self._x(tick)}" y="15">{tick:+g}</text>' for tick in ticks if tick)
        drawing = _svg("axis", f'{texts}<text x="{self._x(0)}" y="15">0</text>')
        return Markup('<span class="hidden">interval drawn, scale in points</span>') + drawing

    def draw(self, net: NetReport) -> Markup:
        """Draw the interval of a net over the band of its tolerance; the text beside it says the same."""
        interval, tolerance = net.compared.interval, net.cell.tolerance
        if interval is None:
            return Markup()
        middle, left, right = _HEIGHT / 2, self._x(-tolerance), self._x(tolerance)
        low, high = self._x(interval.low), self._x(interval.high)
        ends = [
            f'<path d="M{x} {middle - 4}v8"/>'
            if abs(end) <= self.bound
            else f'<path d="M{x} {middle - 4}l{math.copysign(5, end):g} 4l{-math.copysign(5, end):g} 4z"/>'
            for x, end in ((low, interval.low), (high, interval.high))
        ]
        dot = f'<circle cx="{self._x(interval.difference)}" cy="{middle}" r="3.5"/>'
        return _svg(
            "interval",
            f'<rect class="band" x="{left}" y="1" width="{right - left:.1f}" height="{_HEIGHT - 2}"/>'
            f'<path class="zero" d="M{self._x(0)} 0v{_HEIGHT}"/><path d="M{low} {middle}H{high}"/>{"".join(ends)}'
            f"{dot if abs(interval.difference) <= self.bound else ''}",
        )

    def _x(self, points: float) -> float:
        share = min(1.0, max(-1.0, points / self.bound))
        return round(_WIDTH / 2 + share * (_WIDTH / 2 - _MARGIN), 1)


def _svg(name: str, content: str) -> Markup:
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return Markup(f'<svg class="{name}" {size} aria-hidden="true">{content}</svg>')  # noqa: S704  (numbers only)
