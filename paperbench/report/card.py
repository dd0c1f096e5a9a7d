"""The model card of an exported run, in the format of the Hugging Face Hub. All that it says is from records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jinja2
from markupsafe import Markup

from paperbench import __version__, architecture
from paperbench.catalogue import DATASETS, Net
from paperbench.errors import count, duration, one_line, without_paths
from paperbench.files import read_at_most
from paperbench.options import Selection, TrainingOptions, command
from paperbench.report.grid import escape_markdown, published
from paperbench.report.report import WORDS, Report, percent
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record
from paperbench.specs.recipe import format_value

_MARK = "Written by `paperbench export`; the next export into this folder replaces it."


def is_card(file: Path) -> bool:
    """Whether a file is a card that `paperbench export` wrote."""
    with suppress(OSError):
        return _MARK.encode() in read_at_most(file, limit=10_000_000)
    return False


def report_on(record: Record, report: Report) -> Report | None:
    """Return a report on the cells that a run belongs to, judged among all cells; None if there are none."""
    comparison = report.comparison
    cells = [one for one in comparison.cells if any(record.run in g.ids for net in one.nets for g in net.groups)]
    ids = {cell.id for cell in cells}
    deviations = tuple(one for one in comparison.deviations if ids & {*one.cells})
    return Report(replace(comparison, cells=tuple(cells), deviations=deviations)) if cells else None


def card(record: Record, reports: Sequence[Report], siblings: Sequence[Record], tables: Path | None) -> str:
    """Return the text of README.md.

    Args:
        record: Of a finished run of a net of the catalogue.
        reports: On the cells that it belongs to, see `report_on`.
        siblings: The records of the same training with other seeds.
        tables: The directory of tables of one's own, whose name the card does not give.
    """

    def repeat(table: str, cell: str) -> str:
        root = Path("DIR") if tables else None
        selection = Selection(table, (cell,), record.spec.profile, record.seed + 1, root=root)
        return command("run", selection, TrainingOptions(precision=record.spec.precision))

    sources = [report.comparison.table.source for report in reports]
    net, recipe = net_and_recipe(record.spec, record.evaluations)
    assert isinstance(net, Net)  # noqa: S101
    environment = jinja2.Environment(  # noqa: S701  (Markdown, which `_plain` escapes)
        loader=jinja2.PackageLoader("paperbench.report", ""),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, (int, float, Markup)) else _plain(str(value)),
    )
    return environment.get_template("card.md").render(
        record=record,
        cells=[(report.comparison.table, cell) for report in reports for cell in report.cells],
        papers=dict.fromkeys((one.paper, one.arxiv) for one in sources if one.paper),
        deviations=dict.fromkeys(text for report in reports for text in report.deviations),
        choices=dict.fromkeys(text for report in reports for text in report.choices),
        seeds=[f"{one.seed} ({percent(one.result.test_error)} %)" for one in siblings if one.result],
        recipe=recipe,
        values=format_value(record.spec.recipe),
        parameters=architecture.parameters(net),
        macs=architecture.macs(net, record.evaluations[0].crop if record.evaluations else None),
        mark=_MARK,
        version=__version__,
        words=WORDS,
        datasets=DATASETS,
        **{helper.__name__: helper for helper in (published, percent, count, duration, repeat)},
    )


def _plain(text: str) -> str:
    """Return a text on one line, without links, HTML and paths, which may name people and places."""
    return escape_markdown(one_line(without_paths(text))).replace("|", "\\|")
