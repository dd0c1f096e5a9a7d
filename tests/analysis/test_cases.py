"""What is analysed: nets as runs start with them, or as runs have trained them, and what is refused."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paperbench import api
from paperbench.analysis.cases import (
    Case,
    analyse_all,
    of_net,
    of_run,
    of_runs,
    of_table,
    subject_of,
)
from paperbench.analysis.record import Analysis
from paperbench.data.dataset import ImageDataset
from paperbench.data.digits import load_digits
from paperbench.errors import PaperbenchError
from paperbench.options import AnalysisOptions
from paperbench.runs.named import NamedNet, find_run, resolve_net
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe
from paperbench.specs.table import Table
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.trainer import Trainer
from tests.helpers import ROOT, a_record, write_record
from tests.runs.running import CPU, assert_same, plan_run, tiny_recipe, train

FOUR = AnalysisOptions(images=4)
SMALL: dict[str, Any] = {"images": 4, "size": 8, "device": "cpu"}
NET: dict[str, Any] = {"settings": {"depth": 8}, "dataset": "digits", **SMALL}


@pytest.fixture(scope="module")
def run(paper_recipe: Recipe) -> PlannedRun:
    """10 iterations of 16 digits, in BN groups of 8, with noise in the net."""
    batch_norm = BatchNormSettings(8, 1e-5, 0.1, "moving_average")
    monitoring = Monitoring(log_every=2, test_every=20, checkpoint_every=2, checkpoint_share=1.0)
    recipe = tiny_recipe(
        paper_recipe, iterations=10, drops=Drops((8,), 0.1), batch_norm=batch_norm, monitoring=monitoring
    )
    return plan_run(recipe, load_digits(), "resnet110_dropout_shortcut")


@pytest.fixture(scope="module")
def paused_once(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with the run after 6 iterations. Do not change."""
    root = tmp_path_factory.mktemp("paused")
    train(run, root, stop_at=6)
    return root


@pytest.fixture
def paused(paused_once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(paused_once, tmp_path / "paused")


@pytest.fixture(scope="module")
def finished(run: PlannedRun, paused_once: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run at its end, which was never analysed. Do not change."""
    return train(run, shutil.copytree(paused_once, tmp_path_factory.mktemp("finished") / "results"))[0]


def analyze(results: Path, what: str | None = None, **arguments: Any) -> Analysis:
    (found,) = api.analyze(what, results=results, **arguments)
    return found


def small_net(name: str) -> NamedNet:
    return resolve_net(name, {"depth": 8}, Path(), "digits")


def untrained(run: PlannedRun) -> Case:
    return Case(run.net_name, run.net, run.recipe, run.dataset, run.seed)


def case_of(run: PlannedRun, results: Path) -> Case:
    return of_run(*find_run(run.id, Store(results)), run.dataset)


def a_trainer(run: PlannedRun, iterations: int) -> Trainer:
    trainer = Trainer(run.net, run.recipe, run.dataset, run.seed, "fp32", CPU)
    for _ in range(iterations):
        trainer.step()
    return trainer


def next_images(trainer: Trainer) -> Tensor:
    """Return the first BN group that goes through the net in the next step."""
    seen: list[Tensor] = []
    trainer.model.stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    trainer.step()
    return seen[0]


def assert_state(case: Case, expected: dict[str, Tensor]) -> None:
    state = subject_of(case, FOUR, CPU).model.state_dict()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, expected[name].to(tensor.dtype), rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("iterations", [0, 6])
def test_run_is_analysed_as_far_as_it_is_trained_on_its_next_images(
    run: PlannedRun, paused_once: Path, iterations: int
) -> None:
    trainer = a_trainer(run, iterations)
    case = case_of(run, paused_once) if iterations else untrained(run)
    assert case.iteration == iterations
    assert_state(case, {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    at = subject_of(case, AnalysisOptions(), CPU)
    torch.testing.assert_close(at.images, next_images(trainer).double(), rtol=0, atol=0)


def test_analysed_run_goes_on_as_if_it_had_not_been(run: PlannedRun, paused: Path, finished: RunDirectory) -> None:
    directory = Store(paused).directory(run.id).path
    before = {path: path.read_bytes() for path in directory.iterdir()}
    analyze(paused, run=run.id, measures=("health",), **SMALL)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    assert_same(train(run, paused)[0], finished)
    assert analyze(paused, run=directory, **SMALL).spec.iteration == 10


def test_diverged_run_is_analysed_as_it_ended(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path
) -> None:
    broken = tiny_recipe(paper_recipe, learning_rate=1e30, warm_up=None, iterations=10, drops=Drops((8,), 0.1))
    directory, log = train(plan_run(broken, small_dataset), tmp_path)
    (file,) = directory.checkpoints.newest_first()
    case = of_run(directory, log.record, small_dataset)
    assert (log.record.status, case.iteration) == ("diverged", file.iteration)
    with pytest.raises(PaperbenchError, match=f"iteration {case.iteration}: the signal is not finite"):
        list(analyse_all([case], FOUR, CPU, tmp_path, lambda _: None))


def test_runs_of_any_precision_are_found_but_for_diverged_ones(run: PlannedRun, paused: Path) -> None:
    store, case = Store(paused), untrained(run)
    bf16 = replace(run, spec=replace(run.spec, precision="bf16"))
    train(bf16, paused, stop_at=2)
    for changes in ({"profile": "smoke"}, {"data": "0" * 64}, {"recipe": {}}):
        write_record(store, a_record(spec=replace(run.spec, **changes), status="partial"))
    write_record(store, a_record(spec=run.spec, seed=1, status="diverged"))
    found = of_runs([case], "paper", store)
    assert {(one.run, one.iteration) for one in found} == {(run.spec.digest, 6), (bf16.spec.digest, 2)}


def test_weights_of_a_run_are_analysed_as_the_run_is(run: PlannedRun, finished: RunDirectory, tmp_path: Path) -> None:
    file, how = finished.weights_file, {**SMALL, "batch_norm": "averages"}
    one = analyze(tmp_path, weights=file, **how)
    other = analyze(tmp_path, run=finished.path, **how)
    assert (one.passes, one.loss, one.net) == (other.passes, other.loss, other.net)
    assert (one.spec.run, one.spec.iteration) == (None, 0)
    assert one.spec.weights == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": None}, "does not say which net it holds"),
        ({"architecture": "resnet9"}, "holds a net that paperbench does not know"),
        ({"arguments": "{"}, "holds a net that paperbench does not know"),
        ({"arguments": '{"depth": 9}'}, "holds a net that paperbench does not know"),
        ({"arguments": '{"depth": 14}'}, "does not fit the net"),
        ({"tag": "cifar"}, "Unknown data set 'cifar'"),
        ({"data_fingerprint": None}, "was trained on 'handwritten digits (embedded)'. Name a data set with --dataset."),
    ],
)
def test_refuses_weights_with_wrong_metadata(
    finished: RunDirectory, tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    state, metadata = read_tensor_file(finished.weights_file.read_bytes())
    changed = {name: text for name, text in {**metadata, **change}.items() if text is not None}
    (tmp_path / "weights").write_bytes(tensor_file_bytes(state, changed))
    with pytest.raises(PaperbenchError) as error:
        analyze(tmp_path, weights=tmp_path / "weights", **SMALL)
    assert message in str(error.value)


def test_repeated_analysis_is_read_and_a_deleted_one_made_again(tmp_path: Path) -> None:
    announced: list[str] = []
    first = analyze(tmp_path, "original_resnet20", announce=announced.append, **NET)
    assert analyze(tmp_path, "original_resnet20", announce=announced.append, **NET) == first
    assert len(announced) == 1
    (file,) = (tmp_path / "analysis").iterdir()
    file.unlink()
    again = analyze(tmp_path, "original_resnet20", **NET)
    assert [asdict(one) | {"seconds": 0} for one in (again,)] == [asdict(one) | {"seconds": 0} for one in (first,)]


def test_seeds_are_of_other_weights_and_images() -> None:
    cases = of_net(small_net("original_resnet20"), ROOT, seeds=2)
    one, other = (subject_of(case, FOUR, CPU) for case in cases)
    assert not torch.equal(one.images, other.images)
    assert not torch.equal(one.model.get_parameter("stem.conv.weight"), other.model.get_parameter("stem.conv.weight"))


def test_orthogonal_weights_are_orthogonal() -> None:
    (case,) = of_net(small_net("original_resnet20"), ROOT)
    at = subject_of(case, AnalysisOptions(images=4, initialisation="orthogonal"), CPU)
    rows = at.model.get_parameter("stages.1.0.residual.conv1.weight").flatten(1)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(32, dtype=torch.float64), rtol=0, atol=1e-5)


def test_averages_are_measured_on_test_images() -> None:
    (case,) = of_net(small_net("original_resnet20"), ROOT)
    at = subject_of(case, AnalysisOptions(images=4, batch_norm="averages"), CPU)
    assert at.labels.tolist() == load_digits().y_test[:4].tolist()
    assert not at.model.training


def test_every_setting_of_a_sweep_is_a_case(tables: dict[str, Table], tmp_path: Path) -> None:
    cases = of_table(tables["table1"], "exclusive_gating_0_to_5/resnet110", "smoke", 1, tmp_path)
    assert [case.net.gate_bias for case in cases] == [0, -1, -2, -3, -4, -5]


def test_case_counts_once_if_cells_share_it(tables: dict[str, Table], tmp_path: Path) -> None:
    cells = ["cifar10_resnet164/original", "cifar10_resnet1001/original"]  # of one depth in this profile
    assert [case.seed for case in of_table(tables["table3"], cells, "smoke", 2, tmp_path)] == [0, 1]


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [(Path.unlink, "lacks its checkpoint. Restore it"), (damage, "is damaged: its hash does not match its name. Rest")],
)
def test_refuses_a_run_without_its_checkpoint(
    run: PlannedRun, paused: Path, change: Callable[[Path], None], message: str
) -> None:
    for file in paused.glob("runs/*/checkpoint-*"):
        change(file)
    with pytest.raises(PaperbenchError, match=message):
        analyze(paused, run=run.id, device="cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stages.1.0.residual.conv1.weight", "the signal is not finite, first in unit stages.1.0"),
        ("fc.weight", "the gradient is not finite, first in unit stages.2.0"),
    ],
)
def test_refuses_values_that_are_not_finite(run: PlannedRun, paused: Path, name: str, message: str) -> None:
    case = case_of(run, paused)
    assert case.state is not None
    case.state[name].fill_(math.nan)
    with pytest.raises(PaperbenchError, match=message):
        list(analyse_all([case], FOUR, CPU, paused, lambda _: None))
    assert not (paused / "analysis").exists()


def test_interrupted_analyses_keep_what_is_done(tmp_path: Path) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("[2/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.analyze("original_resnet20", seeds=2, results=tmp_path, announce=interrupt, **NET)
    assert len([*(tmp_path / "analysis").iterdir()]) == 1


def test_measures_have_one_order() -> None:
    """So that an analysis is found again, however its measures are named."""
    (case,) = of_net(small_net("preact_resnet20"), ROOT)
    specs = [
        case.spec(AnalysisOptions(measures=some)) for some in (("channels", "paths"), ("paths", "channels", "paths"))
    ]
    assert specs[0] == specs[1]
