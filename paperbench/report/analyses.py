"""Analyses of nets as text, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from paperbench.analysis.record import Analysis
from paperbench.report.grid import Grid
from paperbench.report.grid import as_text as grid_text


def as_text(analyses: Sequence[Analysis]) -> str:
    """Return a row for each analysis."""
    headers = ("net", "seed", "iteration", "gradient x_0 / x_L", "direct share", "product", "measured", "y < 0")
    rows = []
    for one in analyses:
        passes = one.passes
        rows.append(
            (
                one.net,
                str(one.seed),
                f"{one.spec.iteration:,}",
                f"{passes.gradient_norm[0] / one.output_gradient:.3g}",
                f"{passes.direct_share[0]:.2g}",
                "-" if passes.predicted[0] is None else f"{passes.predicted[0]:.3g}",
                f"{passes.measured[0]:.3g}",
                f"{100 * passes.negative_share:.1f} %",
            )
        )
    return grid_text(Grid(headers, tuple(rows), ("left", *["right"] * 7)))
