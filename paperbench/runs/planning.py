"""Plan the runs that a table needs. Cells that need the same training share a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paperbench.catalogue import DATASETS, AnyNet, Net, OwnNet
from paperbench.data.dataset import Dataset
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import NetReference
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.specs.run_spec import Precision, RunSpec
from paperbench.specs.table import Table
from paperbench.typed import from_json


@dataclass(frozen=True)
class PlannedRun:
    """One training with one seed.

    Attributes:
        reference: The model name and arguments for timm, or a function.
        cells: Ids of the cells that use this run.
    """

    spec: RunSpec
    seed: int
    net: AnyNet
    reference: NetReference
    recipe: Recipe
    dataset: Dataset
    cells: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{self.id}: {self.net_name[:80]}>"

    @property
    def id(self) -> str:
        return self.spec.run_id(self.seed)

    @property
    def side(self) -> int:
        """Side of the images on which the net trains, in pixels."""
        return self.recipe.photographs.crop if self.recipe.photographs else DATASETS[self.dataset.key].size

    @property
    def net_name(self) -> str:
        return str(self.reference)


def places(cells: Sequence[str]) -> tuple[str, ...]:
    """Return cells with the row's id in place of several cells of a row."""
    rows = [cell.split("/")[0] for cell in cells]
    return tuple(dict.fromkeys(row if rows.count(row) > 1 else cell for cell, row in zip(cells, rows, strict=True)))


def needed_datasets(cells: list[Cell], profile: Profile) -> list[str]:
    """Return the keys of the data sets that the cells are trained on, in order of first use."""
    return list(dict.fromkeys(cell.dataset_in(profile) for cell in cells))


def planned_runs(
    table: Table,
    cells: list[Cell],
    profile_name: str,
    precision: Precision,
    seeds: int,
    datasets: Mapping[str, Dataset],
) -> list[PlannedRun]:
    """Plan the runs for cells, on their `needed_datasets`: the first seed of every net, then the second, and so on."""
    profile = table.profiles.named(profile_name)
    runs: dict[str, PlannedRun] = {}
    for seed in range(seeds):
        for cell in cells:
            recipe, dataset = table.recipe_in(profile, cell.recipe), datasets[cell.dataset_in(profile)]
            for setting in cell.settings:
                net = cell.net_in(profile, setting)
                spec = run_spec(net, recipe, dataset.fingerprint, profile_name, precision)
                earlier = runs.get(spec.run_id(seed))
                reference = earlier.reference if earlier else cell.reference_in(profile, setting)
                users = (*earlier.cells, cell.id) if earlier else (cell.id,)
                run = PlannedRun(spec, seed, net, reference, recipe, dataset, users)
                runs[run.id] = run
    return list(runs.values())


def run_spec(net: AnyNet, recipe: Recipe, fingerprint: str, profile_name: str, precision: Precision) -> RunSpec:
    """Return the spec that identifies a training."""
    return RunSpec(net.canonical(), recipe.defining_values(), fingerprint, profile_name, precision)


def net_and_recipe(spec: RunSpec, evaluations: Sequence[Evaluation]) -> tuple[AnyNet, Recipe]:
    """Rebuild net and recipe from a record's spec and evaluations, with placeholders for what changes no training."""
    kind: type[AnyNet] = OwnNet if "function" in spec.net else Net
    net = from_json(kind, json.dumps(spec.net))
    placeholders = {
        "schema": 1,
        "recipe": "of a record",
        "source": "a record",
        "monitoring": {"log_every": 1, "test_every": 1, "checkpoint_every": 1, "checkpoint_share": 1.0},
        "authors": {"framework": "of a record", "images_per_gpu": 1, "precision": "fp32"},
        "silent": [],
        "evaluations": {str(number): vars(one) for number, one in enumerate(evaluations)},
    }
    return net, from_json(Recipe, json.dumps({"warm_up": None, **spec.recipe, **placeholders}))
