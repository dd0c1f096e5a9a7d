"""Rebuild the pictures, the report and the tables of analysis.md, health.md and lab.md from results/.

Give `python docs/pictures.py`.
"""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from paperbench.analysis.record import Analysis, read_analyses
from paperbench.api import load_table
from paperbench.cli.main import main
from paperbench.report.analyses import ITERATIONS, QUANTITIES, Analyses
from paperbench.report.analysis_figures import draw, to_bytes

DOCS = Path(__file__).parent
SMOKE = ("table2", "--profile", "smoke", "--seeds", "3", "--results", "results/smoke")
SHALLOW = ("table2", "--profile", "shallow", "--results", "results/jpeg-copy")
LAB = ("lab", "--tables", "examples/lab", "--x", "depth", "--results", "results/lab")
PICTURES = {"fig2": ("fig2",), "fig4": ("fig4",), "fig5": ("fig5",), "smoke": SMOKE, "shallow": SHALLOW, "lab": LAB}
"""What is drawn, by the names of the files."""

ANALYSED = {
    "shortcuts": (
        "original_resnet110",
        "resnet110_constant_scaling(shortcut_scale=0.5, residual_scale=0.5)",
        "resnet110_exclusive_gating(gate_bias=-6)",
        "resnet110_shortcut_only_gating(gate_bias=0)",
        "resnet110_conv_shortcut",
    ),
    "placements": (
        "original_resnet110",
        "resnet110_bn_after_addition",
        "resnet110_relu_before_addition",
        "resnet110_relu_only_preact",
        "preact_resnet110",
    ),
}
"""The nets in the pictures of analysis.md, at initialisation, by the names of the files."""

COLUMNS: dict[str, Callable[[Analysis], float | None]] = {
    "signal x_L / x_0": lambda one: one.output.norm / one.passes.signal_norm[0],
    "y_l < 0": lambda one: one.passes.negative_share,
    "distance from Eq. 4 or 7": lambda one: max(one.passes.sum_error),
    "gradient x_0 / x_L": lambda one: one.passes.gradient_norm[0] / one.output_gradient,
    "share of the first term": lambda one: one.passes.direct_share[0],
    "product of Eq. 8": lambda one: one.passes.predicted[0],
    "measured": lambda one: one.passes.measured[0],
}
"""The columns of the tables of analysis.md."""

TRAINED_BELOW = 10.0
"""A net of health.md has trained if its training error at the last of `ITERATIONS` is lower, in percent."""


def build(directory: Path) -> None:
    """Write pictures/*.svg, report/index.html, analysis.md, health.md and lab.md into a directory."""
    (directory / "pictures").mkdir(exist_ok=True)
    with chdir(DOCS.parent), TemporaryDirectory() as results:
        for source in ("smoke", "jpeg-copy"):
            shutil.copytree(f"results/{source}/runs", f"{results}/runs", dirs_exist_ok=True)
        report = ("table2", "--profile", "shallow", "smoke", "--seeds", "3", "--results", results)
        commands = [("plot", *what, "--out", f"{directory}/pictures/{name}.svg") for name, what in PICTURES.items()]
        for command in (*commands, ("report", *report, "--out", f"{directory}/report")):
            if main(list(command)):
                raise SystemExit(1)
        analyses = [one for one in read_analyses(Path("results"))[0] if not one.spec.measures]
    for name, nets in ANALYSED.items():
        chosen = Analyses(one for net in nets for one in analyses if one.net == net and not one.spec.iteration)
        (directory / "pictures" / f"analysis-{name}.svg").write_bytes(to_bytes(draw(chosen), "svg"))
    outcomes = outcomes_of(read_analyses(DOCS.parent / "results" / "health")[0])
    tables = {
        "analysis.md": {
            name: table([one for one in analyses if bool(one.spec.iteration) == is_trained])
            for name, is_trained in (("initial", False), ("trained", True))
        },
        "health.md": {str(iteration): bounds(iteration, outcomes) for iteration in ITERATIONS},
        "lab.md": {"lab": errors_of_lab()},
    }
    for name, found in tables.items():
        page = (DOCS / name).read_text()
        for which, rows in found.items():
            page = re.sub(rf"(<!-- table: {which} -->\n).*?(?=<!-- end -->)", rf"\1\n{rows}\n", page, flags=re.DOTALL)
        (directory / name).write_text(page)


def errors_of_lab() -> str:
    """Return in Markdown the median, lowest and highest test error of each cell of the lab."""
    judged = load_table("lab", DOCS.parent / "examples" / "lab").compare(DOCS.parent / "results" / "lab").comparison
    columns = judged.table.experiment.columns
    lines = [["unit", "rate", *(column.title for column in columns)], ["---", *["--:"] * (1 + len(columns))]]
    for row in judged.table.experiment.rows:
        cells = [one.nets[0].errors for one in judged.cells if one.id.startswith(f"{row.id}/")]
        texts = [f"{statistics.median(errors):.1f} ({min(errors):.1f} to {max(errors):.1f})" for errors in cells]
        lines.append([row.title, row.labels["rate"], *texts])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def outcomes_of(analyses: Sequence[Analysis]) -> dict[bool, list[Analysis]]:
    """Return the analyses of nets that trained, and those of nets that failed."""
    last = [one for one in analyses if one.spec.iteration == ITERATIONS[-1]]
    ends = {(one.net, one.seed): one.health.train_error or 0.0 for one in last if one.health}
    outcomes: dict[bool, list[Analysis]] = {True: [], False: []}
    for one in analyses:
        outcomes[ends[one.net, one.seed] < TRAINED_BELOW].append(one)
    return outcomes


def bounds(iteration: int, outcomes: dict[bool, list[Analysis]]) -> str:
    """Return in Markdown how many nets have medians within the bounds that are taught, and within those measured."""
    lines = [["quantity", "taught", "trained", "failed", "measured in nets that trained", "failed"]]
    lines += [["---", "--:", *["--:"] * 4]]
    for name, (of, taught, _) in QUANTITIES.items():
        medians = {
            outcome: [
                statistics.median(value for value, _ in of(one.health))
                for one in some
                if one.spec.iteration == iteration and one.health and of(one.health)
            ]
            for outcome, some in outcomes.items()
        }
        if not medians[True]:
            continue
        low, _, high = taught.replace("below", "-inf to").partition(" to ")
        inside = ["-", "-"]
        if high:
            within = (sum(float(low) <= value <= float(high) for value in values) for values in medians.values())
            inside = [f"{n} of {len(values)}" for n, values in zip(within, medians.values(), strict=True)]
        least, most = min(medians[True]), max(medians[True])
        ours = f"{sum(least <= value <= most for value in medians[False])} of {len(medians[False])}"
        lines.append([name, taught, *inside, " to ".join(f"{float(f'{end:.2g}'):g}" for end in (least, most)), ours])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table(analyses: Sequence[Analysis]) -> str:
    """Return a row of medians for each net, in Markdown."""
    lines = [["net", "seeds", *COLUMNS], ["---", *["--:"] * (1 + len(COLUMNS))]]
    for net in dict.fromkeys(sorted(one.net for one in analyses)):
        of_net = [one for one in analyses if one.net == net]
        cells = [[of(one) for one in of_net] for of in COLUMNS.values()]
        texts = ["-" if None in values else f"{statistics.median(values):.3g}" for values in cells]
        lines.append([f"`{net}`", str(len(of_net)), *texts])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    build(DOCS)
