"""From a table to the runs it needs. Equal runs of several cells are one."""

from __future__ import annotations

import json
from dataclasses import dataclass

from paperbench.catalogue import Net
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import NetReference
from paperbench.specs.profile import Profile
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import Precision, RunSpec
from paperbench.specs.table import Table
from paperbench.typed import from_json


@dataclass(frozen=True)
class PlannedRun:
    """One training with one seed.

    Attributes:
        cells: Ids of the cells that it serves.
        reference: The net as one would ask timm for it.
    """

    spec: RunSpec
    seed: int
    net: Net
    reference: NetReference
    recipe: Recipe
    dataset: ImageDataset
    cells: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.spec.run_id(self.seed)

    @property
    def net_name(self) -> str:
        return str(self.reference)


def needed_datasets(cells: list[Cell], profile: Profile) -> list[str]:
    """Keys of the data sets that the cells are trained on, in order of first use."""
    return list(dict.fromkeys(cell.dataset_in(profile) for cell in cells))


def plan(
    table: Table,
    cells: list[Cell],
    profile_name: str,
    precision: Precision,
    seeds: int,
    datasets: dict[str, ImageDataset],
) -> list[PlannedRun]:
    """The runs for the given cells: the first seed of every net, then the second, and so on.

    Args:
        datasets: What `needed_datasets` names, loaded.

    Raises:
        PaperbenchError: A recipe asks for something that cannot be trained yet.
    """
    profile = table.profiles.named(profile_name)
    runs: dict[str, PlannedRun] = {}
    for seed in range(seeds):
        for cell in cells:
            recipe, dataset = table.recipe_in(profile, cell.recipe), datasets[cell.dataset_in(profile)]
            if recipe.augmentation.is_for_large_images:
                raise PaperbenchError(
                    f"Cell {cell.id}: paperbench cannot train by recipe {recipe.recipe} yet: it has no augmentation "
                    "for large images. Choose other cells (`--cells`)."
                )
            for setting in cell.settings:
                net = cell.net_in(profile, setting)
                spec = run_spec(net, recipe, dataset.fingerprint, profile_name, precision)
                earlier = runs.get(spec.run_id(seed))
                reference = earlier.reference if earlier else cell.reference_in(profile, setting)
                served = (*earlier.cells, cell.id) if earlier else (cell.id,)
                run = PlannedRun(spec, seed, net, reference, recipe, dataset, served)
                runs[run.id] = run
    return list(runs.values())


def run_spec(net: Net, recipe: Recipe, fingerprint: str, profile_name: str, precision: Precision) -> RunSpec:
    """The spec of a training, from its parts."""
    return RunSpec(net.canonical(), recipe.defining_values(), fingerprint, profile_name, precision)


def net_and_recipe(spec: RunSpec) -> tuple[Net, Recipe]:
    """What a spec trains, from its plain values alone. How often it was looked at is not among them.

    Raises:
        PaperbenchError: The values are not those of a net and a recipe.
    """
    net = from_json(Net, json.dumps(spec.net))
    unknown = {
        "schema": 1,
        "recipe": "of a record",
        "source": "a record",
        "monitoring": {"log_every": 1, "test_every": 1, "checkpoint_every": 1, "checkpoint_share": 1.0},
        "authors": {"framework": "of a record", "images_per_gpu": 1, "precision": "fp32"},
        "silent": [],
    }
    return net, from_json(Recipe, json.dumps({"warm_up": None, **spec.recipe, **unknown}))
