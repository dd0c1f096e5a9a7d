"""paperbench plot WHAT: training curves of a table, a figure of the paper, or the units of a net."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_settings, add_shared, all_tables, chosen, name_left_out, name_other_profiles
from paperbench.cli.output import PICTURES, add_output, format_of, import_figures, write
from paperbench.errors import PaperbenchError, nearest
from paperbench.options import Selection, command, parse_settings

if TYPE_CHECKING:
    from paperbench.api import JudgedTable
    from paperbench.catalogue import Net
    from paperbench.report.curves import XAxis
    from paperbench.report.drawing import Drawing
    from paperbench.specs.experiment import Figure
    from paperbench.specs.table import Table

SUMMARY = "draw training curves, a figure of the paper, or a net"
FORMATS = ("text", "csv", *PICTURES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} WHAT [options]"  # argparse puts WHAT last, where `--cells` would take it
    help_ = "a table, such as table2; a figure of the paper, fig1 to fig6; or a net, such as preact_resnet164"
    parser.add_argument("what", metavar="WHAT", help=help_)
    add_output(parser, FORMATS, "WHAT.FORMAT; text and csv are printed")
    parser.add_argument(
        "--x", choices=("iterations", "epochs", "depth"), help="horizontal axis (default: iterations); depth: of tables"
    )
    add_shared(parser, "--cells", "--profile")
    add_shared(parser, "--seeds", help="runs per cell, as for compare")
    parser.add_argument("--no-notes", action="store_true", help="say the notes on stderr, not below the curves")
    add_settings(parser)
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.catalogue import NETS, is_function
    from paperbench.report.drawing import units_drawing
    from paperbench.specs.table import find_spec_root, read_table, table_ids

    form = format_of(args, FORMATS)
    if args.what.partition(".")[0] in NETS or is_function(args.what):
        _refuse_curve_options(args, form)
        write(args, form, _net(args, form), args.what.rpartition(":")[2])
        return 0
    root = find_spec_root(args.tables)
    is_table = args.what in table_ids(root)
    tables = {one.id: one for one in ([read_table(args.what, root)] if is_table else all_tables(root))}
    figures = {figure.id: (table, figure) for table in tables.values() for figure in table.experiment.figures}
    if args.what not in tables | figures:
        raise PaperbenchError(f"There is no {args.what!r} to draw. {nearest(args.what, [*tables, *figures, *NETS])}")
    if args.settings:
        raise PaperbenchError(f"--set is for nets, and {args.what} is not a net. Leave it out, or name a net.")
    table, figure = figures.get(args.what) or (tables[args.what], None)
    units = units_drawing(figure.units) if figure and figure.units else None
    if figure and units and not figure.panels:
        _refuse_curve_options(args, form)
        write(args, form, _drawn(form, units), args.what)
    else:
        _plot_runs(args, form, table, figure, units)
    return 0


def _net(args: argparse.Namespace, form: str) -> bytes:
    """Draw or describe a net; that of a user's function for 10 classes and images of 32 x 32 pixels."""
    from paperbench.catalogue import is_function, own_net, resolve
    from paperbench.report.description import describe
    from paperbench.report.drawing import net_drawing

    name, settings = args.what, parse_settings(args.settings)
    known: Net | None
    if is_function(name):
        from paperbench.models.building import macs, parameters, residual

        net = own_net(name, settings, 10, 32, args.tables or Path())
        known = residual(net)
    else:
        known = resolve(name, **settings)
    if known:
        return _in_words(describe(known)) if form == "text" else _drawn(form, net_drawing(known))
    size = f"{parameters(net):,} parameters, {macs(net) / 1e6:.1f}M multiply-accumulates on an image of 3 x 32 x 32"
    if form == "text":
        return _in_words([f"{name}: {size}."])
    raise PaperbenchError(f"{name} has no residual units of paperbench to draw ({size}). Try --format text.")


def _plot_runs(args: argparse.Namespace, form: str, table: Table, figure: Figure | None, units: Drawing | None) -> None:
    """Draw the curves of a table or of one of its figures, or the errors of a table by depth."""
    from paperbench.api import load_table

    is_by_depth = args.x == "depth"
    if figure and is_by_depth:
        raise PaperbenchError(f"--x depth is for tables. Name the table of {figure.id}: {table.id}.")
    if form == "csv" and args.x and not is_by_depth:
        raise PaperbenchError("The csv has iterations and epochs. Leave --x out.")
    args.table = table.id
    if figure and not args.cells:
        args.cells = list(dict.fromkeys(cell for panel in figure.panels for cell in panel.cells))
    may_lack = is_by_depth and args.results == Selection.results and not args.results.exists()
    judged = load_table(table.id, args.tables).compare(
        None if may_lack else args.results, cells=args.cells or "*", profile=args.profile, seeds=args.seeds
    )
    name_other_profiles(args.results, judged.other_profiles)
    content = _by_depth(args, form, judged) if is_by_depth else _curves(args, form, judged, figure, units)
    write(args, form, content, args.what)
    name_left_out(judged.left_out)


def _curves(
    args: argparse.Namespace, form: str, judged: JudgedTable, figure: Figure | None, units: Drawing | None
) -> bytes:
    from paperbench.report import curve_text
    from paperbench.report.csv_format import CURVE_COLUMNS, as_csv, curve_rows
    from paperbench.report.curves import notes_on

    panels = judged.panels(figure.id if figure else None)
    if not panels:
        what = f"these cells of {args.what}" if args.cells and not figure else args.what
        next_one = command("run", chosen(Selection, args))
        raise PaperbenchError(f"No run of {what} in profile {args.profile} in {args.results} yet. Next: `{next_one}`")
    shown = [curve for panel in panels for curve in panel.curves]
    notes = _notes(args, notes_on(shown, judged.comparison, figure.id if figure else None))
    name_left_out(dict.fromkeys(run.problem for curve in shown for run in curve.runs if run.problem))
    x: XAxis = args.x or "iterations"
    if form == "text":
        encoding = "utf-8" if args.out else sys.stdout.encoding or "ascii"
        return curve_text.render(panels, notes, x, encoding).encode()
    if form == "csv":
        return as_csv(CURVE_COLUMNS, curve_rows(shown)).encode()
    figures = import_figures()
    picture: bytes = figures.to_bytes(figures.draw_curves(panels, notes, x, units), form)
    return picture


def _by_depth(args: argparse.Namespace, form: str, judged: JudgedTable) -> bytes:
    from paperbench.report import depth
    from paperbench.report.csv_format import as_csv

    points = depth.points_of(judged.comparison)
    notes = _notes(args, depth.notes_of(points, judged.comparison))
    if form == "text":
        return depth.render(points, notes).encode()
    if form == "csv":
        return as_csv(vars(points[0]), map(vars, points)).encode()
    figures = import_figures()
    picture: bytes = figures.to_bytes(figures.draw_depth(points, notes), form)
    return picture


def _notes(args: argparse.Namespace, notes: list[str]) -> list[str]:
    """Return the notes; or say them, as the caption may need them."""
    if args.no_notes:
        name_left_out(notes)
    return [] if args.no_notes else notes


def _refuse_curve_options(args: argparse.Namespace, form: str) -> None:
    given = {"--x": args.x, "--cells": args.cells, "--seeds": args.seeds, "csv": form == "csv"}
    given |= {"--no-notes": args.no_notes, "--profile": args.profile != "paper"}
    given |= {"--results": args.results != Selection.results}
    if option := next((name for name, is_given in given.items() if is_given), ""):
        raise PaperbenchError(f"{option} is for training curves, and {args.what} has none. Leave it out.")


def _in_words(lines: Iterable[str]) -> bytes:
    from paperbench.report.grid import paragraph

    return "".join(f"{paragraph(line, '  ')}\n" for line in lines).encode()


def _drawn(form: str, drawing: Drawing) -> bytes:
    """Return a drawing of units as a file's contents; as text, in words."""
    from paperbench.report.drawing import as_svg, figure

    if form == "text":
        return _in_words([drawing.title, *drawing.description.splitlines()])
    if form == "svg":
        # Black on white, as matplotlib's, on pages of any colour.
        return as_svg(drawing).replace("<svg ", '<svg style="background:#fff" ', 1).encode()
    picture: bytes = import_figures().to_bytes(figure(drawing), form)
    return picture
