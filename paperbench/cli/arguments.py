"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paperbench.options import Options, Selection, TrainingOptions, flag_of, number, options_of

if TYPE_CHECKING:
    from paperbench.api import Plan
    from paperbench.specs.table import Table

T = TypeVar("T", bound=Options)


def rate(text: str) -> tuple[str, float]:
    """Parse a net and its images per second, such as preact_resnet110=2000."""
    from paperbench.catalogue import is_function, resolve

    name, _, value = text.partition("=")
    if not is_function(name):
        resolve(name)
    if not 1e-9 <= number(value) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a net and its images per second, such as {name}=2000, not {text!r}")
    return name, number(value)


def positive_points(text: str) -> float:
    if not 0 < number(text) <= 100:
        raise argparse.ArgumentTypeError(f"must be a positive number of percentage points, not {text!r}")
    return number(text)


_SHARED = options_of(Selection) | options_of(TrainingOptions)
_SHARED["--set"] = {
    "action": "append",
    "metavar": "KEY=VALUE",
    "dest": "changes",
    "help": "a value of the recipes, such as iterations=2000 or batch_norm.group=32, in a profile named after it; "
    "drops and other numbers of iterations that are not set keep their shares; repeatable",
}

REMOVED = {
    "--breakdown": 'Paste the script of "Where a step\'s time goes" in docs/speed.md.',
    "--budget": "`paperbench plan TABLE` lists the runs that decide most first; limit the time with `run "
    "--max-seconds 8h`.",
    "--incompatible continue": "Resume with the versions that began the run, or restart it: `--incompatible restart`.",
    "--memory": "`paperbench plan TABLE` and `paperbench doctor` say what a training step needs.",
    "--noise": "Cells share their noise. To judge one by its own, compare a results directory that holds only its "
    "runs.",
    "schema mapping": "Mapping files have been removed. `paperbench evaluate --mapping` knows three implementations by "
    "name; for another, save a file that says which net and which input it has: see docs/nets.md.",
}
"""What to use instead of options and choices of the version before."""


def add_shared(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add options that several commands have, perhaps with other settings."""
    for name in names:
        parser.add_argument(name, **{**_SHARED[name], **changes})
    if "table" in names:
        parser.usage = f"{parser.prog} TABLE [options]"  # argparse puts TABLE last, where `--cells` would take it


def chosen(kind: type[T], args: argparse.Namespace) -> T:
    """Return what was chosen; options that the command lacks have their defaults."""
    given: dict[str, Any] = {}
    for one in fields(kind):
        value = vars(args).get(flag_of(one).lstrip("-").replace("-", "_"))
        if value is not None:
            given[one.name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)


def tell(text: str) -> None:
    print(f"paperbench: {text}", file=sys.stderr, flush=True)


def warn(warning: str) -> None:
    tell(f"warning: {warning}")


def plan_of(args: argparse.Namespace, **how: bool) -> Plan:
    """Plan the runs of a command, and name the rows and GPUs that it skips; see `api.plan_runs`."""
    from paperbench.api import plan_runs
    from paperbench.specs.recipe import format_value
    from paperbench.typed import dump_set_fields

    plan = plan_runs(chosen(Selection, args), chosen(TrainingOptions, args), **how)
    for row in plan.unnamed_rows if args.cells else ():
        tell(f"skipped row {row}: it runs only if named in full (`--cells {row}`).")
    for recipe in {run.recipe.recipe: run.recipe for run in plan.runs if "+" in args.profile}.values():
        values = dump_set_fields(recipe)
        counted = {key: values.get(key) for key in ("iterations", "warm_up", "drops", "monitoring")}
        tell(f"recipe {recipe.recipe}: {format_value(counted)}")
    for warning in plan.warnings:
        warn(warning)
    return plan


def name_left_out(complaints: Iterable[str]) -> None:
    """Name the files, records and results that could not be used."""
    for complaint in complaints:
        tell(f"left out: {complaint}")


def all_tables(root: Path) -> Iterator[Table]:
    """Load the tables under `root`, and name those that cannot be read."""
    from paperbench.specs.table import read_tables

    return read_tables(root, lambda table, why: name_left_out([f"{table}: {why}"]))


def name_other_profiles(results: Path, profiles: Collection[str]) -> None:
    """Say that there are runs of profiles that were not shown."""
    if profiles:
        options = " or ".join(f"--profile {profile}" for profile in profiles)
        tell(f"{results} has runs of other profiles: {options} shows them.")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, for nets, whose values `options.parse_settings` reads."""
    help_ = "for a net: one of its arguments, as for timm.create_model, such as depth=20; repeatable"
    add_shared(parser, "--set", dest="settings", default=[], help=help_)
