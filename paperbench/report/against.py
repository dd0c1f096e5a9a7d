"""What changed against a baseline, for a terminal."""

from __future__ import annotations

import statistics
from collections import Counter

from paperbench.compare.against import Changes
from paperbench.compare.evidence import GroupFacts, errors_of
from paperbench.report.grid import NOTHING, Grid, as_text, paragraph
from paperbench.report.report import percent


def mean_error(group: GroupFacts | None) -> str:
    """Return the mean test error in percent of the runs that count, and their number."""
    errors = errors_of(run for run in group.runs if run.counted) if group else []
    return f"{percent(statistics.fmean(errors))} (n={len(errors)})" if errors else NOTHING


def render(changes: Changes) -> str:
    """Format the outcome of each net, the totals, and what would decide the nets that cannot be judged."""
    found: Counter[str] = Counter(net.outcome for net in changes.nets)
    found |= Counter({"without runs on either side": changes.without_runs})
    says = [f"Profile {changes.profile}: {', '.join(f'{n} {what}' for what, n in found.items())}."]
    if found["missing"] or not changes.nets:
        says.append("Train what is missing, on the same data and in the same precision.")
    if found["underpowered"]:
        says.append(
            "More seeds on both sides (`run --seeds N`) decide what is underpowered. So do the baseline's seeds on its "
            "CPU model, with its torch and number of threads: such runs must be equal bit for bit."
        )
    rows = tuple((n.name, mean_error(n.new), mean_error(n.baseline), n.outcome, n.reason) for n in changes.nets)
    headers, alignment = ("cell", "new", "baseline", "outcome", "reason"), ("left", "right", "right", "left", "left")
    grid = Grid(headers, rows, alignment)
    return "\n\n".join([*([as_text(grid)] if changes.nets else []), paragraph(" ".join(says))]) + "\n"
