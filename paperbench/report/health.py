"""The health of trainings as a table: what was measured, what is taught, and what nets that trained had."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paperbench.analysis.record import Analysis, Health
from paperbench.report.grid import Grid

Range = tuple[float, float]
HEADERS = ("net", "quantity", "smallest", "median", "largest", "in", "taught", "nets that trained")


@dataclass(frozen=True)
class Quantity:
    """A quantity that is measured in each layer, ReLU or unit, or once.

    Attributes:
        of: Its values; None where it is not defined, as the share of a weight that is zero.
        places: Names of the layers, ReLUs or units; empty if it is measured once.
        taught: The range that circulates in teaching texts, none of which names a source that measured it.
        trained: The range of its medians in the nets of results/health that trained, for each of `ITERATIONS`.
        note: What is said about it.
    """

    name: str
    of: Callable[[Health], Sequence[float | None]]
    places: Callable[[Health], Sequence[str]] = lambda _: ()
    taught: Range | None = None
    trained: Sequence[Range | None] = (None,) * 3
    note: Callable[[Health], str] = lambda _: ""

    def known(self, found: Health) -> list[tuple[float, str]]:
        """Return its values with their places; none if it is unavailable."""
        values = self.of(found)
        places = self.places(found) or ("",) * len(values)
        return [(value, place) for value, place in zip(values, places, strict=False) if value is not None]

    def median(self, found: Health) -> float | None:
        """Return its median over the layers, ReLUs or units; None if it is unavailable."""
        known = self.known(found)
        return statistics.median(value for value, _ in known) if known else None


def as_grid(groups: Iterable[tuple[str, Sequence[Analysis]]]) -> Grid:
    """Return a row for each quantity of each net; of several seeds the medians.

    Args:
        groups: The analyses of each net with its label.
    """
    rows = []
    for label, analyses in groups:
        found = [one.health for one in analyses if one.health]
        spec = analyses[0].spec
        at = 2 if spec.weights else bisect_right(ITERATIONS, spec.iteration) - 1
        for index, quantity in enumerate(QUANTITIES if found else ()):
            known = [quantity.known(one) for one in found]
            lowest, highest = ([choose(of_seed) for of_seed in known if of_seed] for choose in (min, max))
            middle = [value for value in map(quantity.median, found) if value is not None]
            is_local = bool(quantity.places(found[0]))
            rows.append(
                (
                    "" if index else label,
                    quantity.name + (f" ({note})" if (note := quantity.note(found[0])) else ""),
                    _number([value for value, _ in lowest]) if is_local else "",
                    _number(middle),
                    _number([value for value, _ in highest]) if is_local else "",
                    f"{lowest[0][1]}; {highest[0][1]}" if is_local and len(lowest) == 1 else "",
                    as_text(quantity.taught),
                    as_text(quantity.trained[at]),
                )
            )
    return Grid(HEADERS, tuple(rows), ("left", "left", *["right"] * 3, *["left"] * 3))


def _number(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g}" if values else "-"


def as_text(bounds: Range | None) -> str:
    """Return a range as text."""
    if bounds is None:
        return "-"
    low, high = bounds
    return f"{low:.3g} to {high:.3g}" if math.isfinite(low) else f"below {high:.3g}"


def _over(values: Sequence[float] | None, others: Sequence[float]) -> list[float | None]:
    return [value / other if other else None for value, other in zip(values or (), others, strict=False)]


def _layers(found: Health) -> Sequence[str]:
    return found.layers


def _relus(found: Health) -> Sequence[str]:
    return found.relus


def _units(found: Health) -> Sequence[str]:
    return [str(unit) for unit in range(len(found.chi) + 1)]


def _gap(found: Health) -> list[float | None]:
    return [] if found.test_error is None or found.train_error is None else [found.test_error - found.train_error]


ITERATIONS = (0, 100, 990)
"""Iterations of the nets of results/health, of 1,000."""

QUANTITIES = (
    Quantity("gradient norm", lambda h: h.gradient_norm, _layers, (0.1, 10)),
    Quantity("gradient norm of all", lambda h: [h.all_gradient_norm], taught=(0.1, 10)),
    Quantity(
        "largest gradient / smallest", lambda h: _over([max(h.gradient_norm)], [min(h.gradient_norm)]), taught=(0.1, 10)
    ),
    Quantity("gradient / weight", lambda h: _over(h.gradient_norm, h.weight_norm), _layers, (0.001, 0.01)),
    Quantity(
        "update / weight",
        lambda h: _over(h.update_norm, h.weight_norm),
        _layers,
        (0.001, 0.01),
        note=lambda h: h.update_is,
    ),
    Quantity("mean after ReLU", lambda h: h.relu_mean, _relus, (-0.5, 0.5)),
    Quantity("deviation after ReLU", lambda h: h.relu_std, _relus, (0.5, 2)),
    Quantity("dead channels, %", lambda h: [100 * a / b for a, b in zip(h.dead, h.relu_channels, strict=True)], _relus),
    Quantity("chi", lambda h: h.chi, _units),
    Quantity("correlation of images", lambda h: h.correlation, _units),
    Quantity("test - train error, points", _gap, taught=(-math.inf, 5), note=lambda h: h.errors_are),
)
