"""paperbench export: a finished run as a folder for timm and the Hub, or training curves for TensorBoard."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from paperbench.cli.arguments import add_shared, name_left_out, tell
from paperbench.errors import PaperbenchError, count
from paperbench.files import is_leftover, list_directory, write_named

SUMMARY = "a run as a net for timm and the Hugging Face Hub, or curves for TensorBoard"
DESCRIPTION = (
    "Write a finished run as a folder that timm loads and the Hugging Face Hub takes: weights, configuration and model "
    "card. Or, with --curves, write the training curves of runs, finished or not."
)
FILES = ("README.md", "config.json", "model.safetensors")
"""What an export writes, in this order: the card marks the folder as ours."""

_NAME = "Name a run by its id, as in `paperbench compare TABLE --long`, or by its directory."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        f"{parser.prog} RUN --out DIR [options]\n       {parser.prog} [RUN ...] --curves tensorboard --out DIR"
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="id or directory; with --curves several, or by default all"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="the folder to write")
    parser.add_argument("--curves", choices=("tensorboard",), help="write training curves, for this program")
    add_shared(parser, "--results", "--tables", "--data")


def execute(args: argparse.Namespace) -> int:
    if args.curves:
        return _export_curves(args)
    if len(args.runs) != 1:
        raise PaperbenchError(f"A net is that of one run. {_NAME}")
    contents = _net(args)
    for name in FILES:
        write_named(args.out / name, contents[name], "--out DIR")
    print(f"Wrote {args.out}: a net for timm, with its model card.")
    print(f"To upload it: `hf upload OWNER/NAME {shlex.quote(str(args.out))}`")
    return 0


def _net(args: argparse.Namespace) -> dict[str, bytes]:
    """Return the contents of the files of an export, by name."""
    from paperbench.api import PublishedTable
    from paperbench.report.card import card, is_card, report_on
    from paperbench.runs.export import exported_files
    from paperbench.runs.named import find_finished_run
    from paperbench.runs.store import Store
    from paperbench.specs.table import find_spec_root, read_tables

    held = {one.name for one in list_directory(args.out) if not is_leftover(one)}
    held -= {".git", ".gitattributes", ".cache"}  # of the Hub
    if held and not (held <= {*FILES} and is_card(args.out / "README.md")):
        raise PaperbenchError(f"{args.out} holds other files than those of an export. Name another folder (`--out`).")
    run, record = find_finished_run(args.runs[0], Store(args.results), f" {_NAME}")
    files = exported_files(run, record, args.data, tell)
    root, own = find_spec_root(args.tables), run.path.parent.parent.absolute()
    results = args.results if own.is_relative_to(args.results.absolute() / "contributed") else own
    reports = [
        PublishedTable(table, root).compare(results, profile=profile).report
        for table in read_tables(root)
        for profile in table.profiles_among({record.spec.profile})
    ]
    siblings = [one for one in Store(results).records()[0] if one.spec == record.spec and one.seed != record.seed]
    text = card(record, [*filter(None, (report_on(record, one) for one in reports))], siblings, args.tables)
    return {"README.md": text.encode(), **files}


def _export_curves(args: argparse.Namespace) -> int:
    from paperbench.runs.named import find_run
    from paperbench.runs.store import Store

    try:
        from paperbench.report.tensorboard import write_curves
    except ImportError as error:
        raise PaperbenchError("Curves for TensorBoard need its package: `pip install tensorboard`.") from error
    if args.tables or args.data:
        raise PaperbenchError("Curves need neither --tables nor --data. Omit them.")
    store = Store(args.results) if args.runs else Store.existing(args.results)
    hint = f" {_NAME} It has curves from its first checkpoint on."
    runs = [find_run(one, store, hint)[0] for one in args.runs] or store.directories()
    written, left_out = write_curves(runs, args.out)
    name_left_out(left_out)
    print(
        f"Wrote the curves of {count(written, 'run')}. To see them: `tensorboard --logdir {shlex.quote(str(args.out))}`"
    )
    return 0
