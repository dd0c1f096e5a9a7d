"""What is analysed: nets as they are at initialisation, or as a run has trained them, each with a batch of images."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.ambient import neutral
from paperbench.analysis.health import health
from paperbench.analysis.jacobians import jacobians
from paperbench.analysis.paths import gradient_by_length, leave_out
from paperbench.analysis.record import Analysis, AnalysisSpec, Passes, Signal, find_analysis, write_analysis
from paperbench.analysis.walk import Measurements, Subject, measure
from paperbench.catalogue import DATASETS, FAMILIES, NETS, AnyNet
from paperbench.data.dataset import Dataset
from paperbench.data.sources import data_directory, load_dataset
from paperbench.errors import PaperbenchError, listing, nearest
from paperbench.files import MAX_TENSOR_FILE_BYTES, read_at_most
from paperbench.models import ResidualNet
from paperbench.models.building import residual
from paperbench.options import AnalysisOptions, Measure
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.hashed import SCHEMA
from paperbench.runs.history import History
from paperbench.runs.named import NamedNet, find_run, images_of, read_net, resolve_net
from paperbench.runs.planning import needed_datasets, net_and_recipe, planned_runs
from paperbench.runs.record import DataFacts, Record
from paperbench.runs.resume import Checkpoint
from paperbench.runs.store import RunDirectory, Store
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import canonical_json
from paperbench.specs.table import Table, find_spec_root, know_functions, read_table
from paperbench.specs.table_files import read_named, recipe_files, table_ids
from paperbench.training.device import choose_device
from paperbench.training.foreign import load_state, read_state
from paperbench.training.trainer import Trainer

MEASURES: dict[Measure, Callable[[Subject, Case], Any]] = {
    "jacobians": lambda subject, _: jacobians(subject),
    "paths": lambda subject, _: gradient_by_length(subject),
    "left_out": lambda subject, _: leave_out(subject),
    "health": health,
}
"""What can be measured besides `Passes`, by the name of its field in `Analysis`."""


@dataclass(frozen=True)
class Case:
    """A net to be analysed.

    Attributes:
        reference: The model name and arguments for timm.
        recipe: How the net is initialised, and what its images are.
        seed: Of initialisation, images and noise: those of a run with this seed.
        run: Digest of the run's spec, if a run has trained the net.
        iteration: Of that run. The batch is the one that it trains on next, or its last if it is finished.
        state: The trained net's tensors; None at initialisation.
        weights: sha256 of the file with the weights, if the net is from a file.
        momentum, history: The buffers of `MomentumSGD`, from the run's checkpoint if it is there, and the run's lines.
    """

    reference: str
    net: AnyNet
    recipe: Recipe
    dataset: Dataset
    seed: int
    run: str | None = None
    iteration: int = 0
    state: Mapping[str, Tensor] | None = None
    weights: str | None = None
    momentum: Sequence[Tensor] = ()
    history: History | None = None

    def spec(self, conditions: AnalysisOptions) -> AnalysisSpec:
        """Return what defines the numbers of an analysis."""
        images = conditions.images or self.recipe.batch_norm.group
        most = self.recipe.batch_size if conditions.batch_norm == "batch" else self.dataset.num_test
        if images > most:
            raise PaperbenchError(f"A batch of {self.dataset.name} has only {most} images; lower --images.")
        if self.state is not None and conditions.initialisation != "he":
            raise PaperbenchError("A trained net has no other initialisation. Leave --init out.")
        if "left_out" in conditions.measures and (self.state is None or conditions.batch_norm == "batch"):
            raise PaperbenchError(
                "Units are left out of trained nets, in tests. Name a run or weights, with --batch-norm averages."
            )
        return AnalysisSpec(
            net=self.net.canonical(),
            recipe=self.recipe.defining_values(),
            data=self.dataset.fingerprint,
            run=self.run,
            iteration=self.iteration,
            weights=self.weights,
            initialisation=conditions.initialisation,
            images=images,
            batch_norm=conditions.batch_norm,
            precision=conditions.precision,
            measures=tuple(name for name in get_args(Measure) if name in conditions.measures),
            size=conditions.size,
        )


def analyses_of(
    what: str | None = None,
    *,
    run: str | PathLike[str] | None = None,
    weights: str | PathLike[str] | None = None,
    trained: bool = False,
    settings: Mapping[str, Any] | None = None,
    cells: str | Sequence[str] | None = None,
    profile: str = "paper",
    seeds: int = 1,
    dataset: str | None = None,
    data: str | PathLike[str] | None = None,
    results: str | PathLike[str] = "results",
    root: str | PathLike[str] | None = None,
    device: str = "auto",
    announce: Callable[[str], None] = lambda _: None,
    **conditions: Any,
) -> Iterator[Analysis]:
    """Yield the analyses of nets, each as soon as it is there.

    Args:
        what: A net, or a table, whose nets are analysed at initialisation. None with `run` or `weights`.
        run: A run (its id or directory), whose net is analysed as far as it has been trained.
        weights: A weights file of paperbench.
        trained: Whether to analyse the table's runs in `results` in place of nets at initialisation.
        settings: Arguments of a net.
        cells, profile: Of a table, see `api.plan`; by default all cells.
        seeds: Initialisations per net.
        dataset: Key of the data set of a net or weights file; by default the net's own.
        data: Directory with the data sets; by default $PAPERBENCH_DATA, else ./data.
        results: Directory in which analyses are kept, and found again.
        root: Directory with experiments/; by default that of paperbench.
        announce: Called with a sentence before each new analysis.
        conditions: Fields of `AnalysisOptions`.
    """
    chosen = [name for name, value in (("a name", what), ("run", run), ("weights", weights)) if value is not None]
    if len(chosen) != 1:
        raise PaperbenchError(f"Name one net, table, run or weights file, not {' and '.join(chosen) or 'none'}.")
    given = {"--trained": trained, "--set": settings, "--cells": cells, "--dataset": dataset}
    given |= {"--profile": profile != "paper", "--seeds": seeds != 1}

    def refuse_all_but(*taken: str, by: str) -> None:
        if useless := [option for option, value in given.items() if value and option not in taken]:
            raise PaperbenchError(f"{by} takes no {listing(useless)}. Leave it out.")

    where, store = data_directory(Path(data) if data else None), Store(Path(results))
    ids = table_ids(specs := find_spec_root(Path(root) if root else None))
    on = choose_device(device, announce)
    if run is not None:
        refuse_all_but(by="A run")
        know_functions(specs)
        found = find_run(str(run), store)
        cases = [of_run(*found, images_of(*found, where))]
    elif weights is not None:
        refuse_all_but("--dataset", by="A file of weights")
        cases = of_net(read_net(Path(weights), where, dataset), specs)
    elif what is not None and what.partition(".")[0] in NETS:
        refuse_all_but("--set", "--seeds", "--dataset", by="A net")
        cases = of_net(resolve_net(what, settings or {}, where, dataset), specs, seeds)
    elif what is not None and what in ids:
        if trained:
            refuse_all_but("--trained", "--cells", "--profile", by="--trained")
        else:
            refuse_all_but("--cells", "--profile", "--seeds", by="A table")
        cases = of_table(read_table(what, specs), cells or "*", profile, seeds, where)
        cases = of_runs(cases, profile, store) if trained else cases
    else:
        raise PaperbenchError(f"There is no {what!r} to analyze. {nearest(str(what), [*ids, *NETS])}")
    return analyse_all(cases, AnalysisOptions(**conditions), on, store.root, announce)


def analyse_all(
    cases: Sequence[Case],
    conditions: AnalysisOptions,
    device: torch.device,
    results: Path,
    announce: Callable[[str], None],
) -> Iterator[Analysis]:
    """Yield the analysis of each net: from the results directory, or else new and announced, and then kept there."""
    for number, case in enumerate(cases, start=1):
        found = find_analysis(results, case.spec(conditions), case.seed)
        if found is None:
            announce(f"[{number}/{len(cases)}] {case.reference}, seed {case.seed}, iteration {case.iteration:,}")
            found = analyse(case, conditions, device)
            write_analysis(results, found)
        yield found


def of_table(table: Table, cells: str | Sequence[str], profile: str, seeds: int, where: Path) -> list[Case]:
    """Return the nets of some cells of a table, at initialisation, with images of a data directory."""
    chosen, of_profile = table.cells(cells), table.profiles.named(profile)
    datasets = {key: load_dataset(key, where) for key in needed_datasets(chosen, of_profile)}
    runs = planned_runs(table, chosen, profile, "fp32", seeds, datasets)
    return [Case(run.net_name, run.net, run.recipe, run.dataset, run.seed) for run in runs]


def of_net(named: NamedNet, root: Path, seeds: int = 1) -> list[Case]:
    """Return a net as the paper's recipe under `root` initialises it, or with the weights of its file."""
    info, family = DATASETS[named.dataset.key], FAMILIES[named.net.family]
    if not family.takes(info.size):
        raise PaperbenchError(
            f"The net is for images of {family.size} x {family.size} pixels, and {info.title} has others. Name "
            "another net or data set."
        )
    file = recipe_files(root)["imagenet" if info.are_photographs else "cifar"]
    case = Case(named.reference, named.net, read_named(file, Recipe, "recipe")[1], named.dataset, 0)
    if named.file:
        digest = hashlib.sha256(read_at_most(named.file, MAX_TENSOR_FILE_BYTES)).hexdigest()
        case = replace(case, state=named.tensors, weights=digest)
    return [replace(case, seed=seed) for seed in range(seeds)]


def of_runs(cases: Sequence[Case], profile: str, store: Store) -> list[Case]:
    """Return the nets of all runs in a results directory that train these nets in this way, in any precision.

    Without those that diverged, whose values are not finite.
    """
    images = {canonical_json([case.net.canonical(), case.recipe.defining_values()]): case.dataset for case in cases}
    found = []
    for run in store.directories():
        record = store.readable_record(run.path.name)
        if record and record.spec.profile == profile and record.status != "diverged":
            dataset = images.get(canonical_json([record.spec.net, record.spec.recipe]))
            if dataset and dataset.fingerprint == record.spec.data:
                found.append(of_run(run, record, dataset))
    if not found:
        raise PaperbenchError(f"{store.root} has no runs of these nets on these data. Train some: `paperbench run`.")
    return found


def of_run(run: RunDirectory, record: Record, dataset: Dataset) -> Case:
    """Return the net of a run, as far as it has been trained."""
    net, recipe = net_and_recipe(record.spec, record.evaluations)
    momentum: list[Tensor] = []
    if record.status == "finished":
        state, *_ = read_state(run.weights_file)
    else:
        if (file := run.named_checkpoint(record)) is None:
            raise PaperbenchError(f"{run.path} lacks its checkpoint. Restore it, or go on with `paperbench run`.")
        saved = Checkpoint.from_bytes(file.read(), record.run, file.path)
        state, buffers = saved.net, sum(name.startswith("momentum.") for name in saved.state)
        momentum = [saved.state[f"momentum.{index}"] for index in range(buffers)]
    own = (record.seed, record.spec.digest, record.iteration, state, None, momentum, History.read(run.history_file))
    return Case(record.net, net, recipe, dataset, *own)


def subject_of(case: Case, conditions: AnalysisOptions, device: torch.device) -> Subject:
    """Return the net with its batch, as `Trainer` makes both."""
    spec, recipe = case.spec(conditions), case.recipe
    if conditions.initialisation == "orthogonal":
        recipe = replace(recipe, initialisation="orthogonal")
    with closing(Trainer(case.net, recipe, case.dataset, case.seed, "fp32", device)) as trainer:
        if not isinstance(trainer.model, ResidualNet) or not residual(case.net):
            raise PaperbenchError(f"{case.reference} has no residual units of paperbench, which analyses go through.")
        if case.state is not None:
            load_state(trainer.model, case.state, Path(case.reference))
        if conditions.batch_norm == "batch":
            following = min(case.iteration, case.recipe.iterations - 1)
            batch = trainer.feed.make(trainer.feed.choices(following))
        else:
            evaluation = next(iter(case.recipe.evaluations.values()), None)
            batch = next(iter(trainer.feed.test(evaluation, spec.images)))
        if len(batch.images) < spec.images:  # the last batch of an epoch
            raise PaperbenchError(f"The batch has only {len(batch.images)} images; lower --images.")
        images = batch.images[: spec.images]
        own, family = images.shape[-1], FAMILIES[trainer.model.net.family]
        if spec.size is not None and not (family.takes(spec.size) and spec.size < own):
            least = family.least_size
            raise PaperbenchError(f"Images of {own} pixels can be made smaller, down to {least} for this net (--size).")
        return Subject(
            trainer.model,
            images if spec.size is None else F.adaptive_avg_pool2d(images, spec.size),
            batch.labels[: spec.images],
            by_batch=conditions.batch_norm == "batch",
            dtype={"fp32": torch.float32, "fp64": torch.float64}[conditions.precision],
            seed=derived_seed(case.seed, "analysis noise"),
            label_smoothing=recipe.label_smoothing or 0.0,
        )


def analyse(case: Case, conditions: AnalysisOptions, device: torch.device) -> Analysis:
    """Measure a net."""
    begin = time.monotonic()
    with neutral():
        subject = subject_of(case, conditions, device)
        found = measure(subject)
        _require_finite(found, subject, case)
        extra = {name: MEASURES[name](subject, case) for name in conditions.measures if name in MEASURES}
    return Analysis(
        schema=SCHEMA,
        kind="analysis",
        net=case.reference,
        seed=case.seed,
        spec=case.spec(conditions),
        data=DataFacts.of(case.dataset),
        loss=found.loss,
        output=Signal(**found.output),
        output_gradient=found.output_gradient,
        stages=tuple(unit.stage for unit, _ in subject.units),
        passes=Passes.of(found.rows),
        channels=tuple(found.channels) if "channels" in conditions.measures else (),
        seconds=time.monotonic() - begin,
        code=code_facts(),
        environment=environment_facts(device),
        **extra,
    )


def _require_finite(found: Measurements, subject: Subject, case: Case) -> None:
    rows = [*zip(subject.units, found.rows, strict=True)]
    for what, column, in_order in (("signal", "residual_norm", rows), ("gradient", "gradient_norm", rows[::-1])):
        for (unit, _), row in in_order:
            if not math.isfinite(row[column]):
                raise PaperbenchError(
                    f"{case.reference}, iteration {case.iteration:,}: the {what} is not finite, first in unit "
                    f"stages.{unit.stage}.{unit.index}. Name another net or run, or try --precision fp64."
                )
