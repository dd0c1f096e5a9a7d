"""The facts of what users name: tables, nets of ours, runs, and nets of any library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch

from paperbench.catalogue import NETS, Net, find_file
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.models.building import import_function
from paperbench.runs.named import find_run
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.store import Store
from paperbench.specs.experiment import NetReference
from paperbench.specs.facts import Facts, FactsFile
from paperbench.specs.table import Table, know_functions, read_table, read_tables, table_ids
from paperbench.training.facts import facts_of, model_facts, trained_as

_SIDE = 64
"""Side of the images for nets that take any size, unless theirs are smaller."""


@dataclass(frozen=True)
class Subject:
    """What has facts.

    Attributes:
        name: The net, and what it is trained by.
        net: The net alone.
        training: See `trained_as`; empty for a net alone.
        recorded: The facts that a run recorded.
    """

    name: str
    net: str
    find: Callable[[], Facts]
    training: str = ""
    recorded: Facts | None = None


def subjects(
    what: str,
    settings: Mapping[str, Any],
    root: Path,
    profile: str = "paper",
    cells: Sequence[str] = ("*",),
    results: Path = Path("results"),
    side: int | None = None,
) -> Iterator[Subject]:
    """Yield what has facts: nets as timm makes them and each training of them, or a run. Some may come twice.

    Args:
        what: A table; a net of ours; a run, by its id or directory; "timm:NAME"; or "MODULE:FUNCTION".
        settings: Arguments of a net.
        root: Directory with experiments/.
        profile, cells: Of a table.
        results: Where a run is looked up.
        side: Of the images of another library's net, in pixels.
    """
    is_table, is_net = what in table_ids(root), what.partition(".")[0] in NETS
    if settings and not (is_net or ":" in what):
        raise PaperbenchError("--set is for nets. Omit it.")
    if (profile != "paper" or tuple(cells) != ("*",)) and not is_table:
        raise PaperbenchError("--profile and --cells are for tables. Omit them.")
    if side and ":" not in what:
        raise PaperbenchError("--size is for nets of other libraries. Omit it.")
    if is_table:
        yield from _of_table(read_table(what, root), profile, cells)
    elif is_net:
        reference = NetReference(what, settings)
        yield _as_made(reference)
        for table in read_tables(root):
            yield from (one for one in _of_table(table) if one.net == str(reference))
    elif ":" in what:
        name = what + (f"({', '.join(f'{key}={value}' for key, value in settings.items())})" if settings else "")
        yield Subject(name, name, partial(_of_library, what, settings, side))
    else:
        know_functions(root)
        _, record = find_run(what, Store(results), " Name a table, a net, a run, timm:NAME or MODULE:FUNCTION.")
        find = partial(facts_of, *net_and_recipe(record.spec, record.evaluations))
        training = trained_as(record.spec.net, record.spec.recipe)
        yield Subject(f"run {record.run} of {record.net}", record.net, find, training, record.facts)


def _as_made(reference: NetReference) -> Subject:
    net = str(reference)
    return Subject(net, net, partial(_of_library, f"timm:{reference.model}", reference.kwargs, None))


def _of_table(table: Table, profile_name: str = "paper", cells: Sequence[str] = ("*",)) -> Iterator[Subject]:
    profile = table.profiles.named(profile_name)
    for cell in table.cells(cells, on_request=True):
        recipe = table.recipe_in(profile, cell.recipe)
        by = f"recipe {cell.recipe}{f' in profile {profile_name}' * (profile_name != 'paper')}"
        for setting in cell.settings:
            reference, net = cell.reference_in(profile, setting), cell.net_in(profile, setting)
            training = trained_as(net.canonical(), recipe.defining_values())
            if isinstance(net, Net):
                yield _as_made(reference)
            yield Subject(f"{reference}, {by}", str(reference), partial(facts_of, net, recipe), training)


def earlier_facts(
    path: Path | None, name_left_out: Callable[[Sequence[str]], None]
) -> Callable[[Subject], Mapping[str, Facts]]:
    """Return what gives the facts to compare a subject's with, by where they are from.

    Args:
        path: A file of facts; or a results directory; None for those that a run recorded.
        name_left_out: Called with a sentence for each record that cannot be read.
    """
    if path is None:
        return lambda one: {"its record": one.recorded} if one.recorded else {}
    if not path.is_dir():
        facts = FactsFile.read(path).facts
        return lambda one: {str(path): facts[one.name]} if one.name in facts else {}
    runs: dict[str, dict[str, Facts]] = defaultdict(dict)
    records, complaints = Store.existing(path).records()
    name_left_out(complaints)
    for record in records:
        if record.facts:
            runs[trained_as(record.spec.net, record.spec.recipe)][f"run {record.run}"] = record.facts
    return lambda one: runs.get(one.training, {})


def _of_library(name: str, settings: Mapping[str, Any], side: int | None) -> Facts:
    """Return the facts of a net that a function makes."""
    module, _, function = name.partition(":")
    torch.manual_seed(0)
    try:
        if module == "timm":
            model = timm.create_model(function, **settings)
        else:
            model = import_function(name, find_file(name, Path()))(**settings)
        usual = getattr(model, "default_cfg", {})
        its = usual.get("input_size", (3, 32, 32))[-1]
        return model_facts(model, side or (its if usual.get("fixed_input_size") else min(its, _SIDE)))
    except PaperbenchError:
        raise
    except Exception as error:
        raise PaperbenchError(
            f"{name} cannot be checked ({summarize_error(error)}). It must return a module that classifies images; "
            "choose their size with --size."
        ) from error
