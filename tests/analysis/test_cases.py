"""What is analysed: nets as runs start with them, or as runs have trained them, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paperbench import api
from paperbench.analysis.cases import Case, analyse_all, find_run, of_net, subject_of
from paperbench.analysis.record import Analysis, Conditions
from paperbench.data.digits import load_digits
from paperbench.errors import PaperbenchError
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe
from paperbench.training.trainer import Trainer
from tests.helpers import ROOT
from tests.runs.running import CPU, assert_same, plan_run, tiny_recipe, train

FOUR = Conditions(images=4)
NET: dict[str, Any] = {"settings": {"depth": 8}, "dataset": "digits", "images": 4, "device": "cpu"}


@pytest.fixture
def run(paper_recipe: Recipe) -> PlannedRun:
    """10 iterations of 16 digits, in BN groups of 8, with noise in the net."""
    batch_norm = BatchNormSettings(8, 1e-5, 0.1, "moving_average")
    monitoring = Monitoring(log_every=2, test_every=20, checkpoint_every=2, checkpoint_share=1.0)
    recipe = tiny_recipe(
        paper_recipe, iterations=10, drops=Drops((8,), 0.1), batch_norm=batch_norm, monitoring=monitoring
    )
    return plan_run(recipe, load_digits(), "resnet110_dropout_shortcut")


def analyze(results: Path, what: str | None = None, **arguments: Any) -> Analysis:
    (found,) = api.analyze(what, results=results, **arguments)
    return found


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


@pytest.mark.parametrize("iterations", [0, 5])
def test_run_is_analysed_as_far_as_it_is_trained_on_its_next_images(
    run: PlannedRun, tmp_path: Path, iterations: int
) -> None:
    trainer = a_trainer(run, iterations)
    if iterations:
        train(run, tmp_path, stop_at=iterations)
        case = find_run(run.id, Store(tmp_path), tmp_path)
    else:
        case = Case(run.net_name, run.net, run.recipe, run.dataset, run.seed)
    assert case.iteration == iterations
    assert_state(case, {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    at = subject_of(case, Conditions(), CPU)
    torch.testing.assert_close(at.images, next_images(trainer).double(), rtol=0, atol=0)


def test_analysed_run_goes_on_as_if_it_had_not_been(run: PlannedRun, tmp_path: Path) -> None:
    for name in ("analysed", "other"):
        train(run, tmp_path / name, stop_at=6)
    directory = Store(tmp_path / "analysed").directory(run.id).path
    before = {path: path.read_bytes() for path in directory.iterdir()}
    analyze(tmp_path / "analysed", run=run.id, device="cpu")
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    one, other = (train(run, tmp_path / name)[0] for name in ("analysed", "other"))
    assert_same(one, other)
    finished = analyze(tmp_path / "analysed", run=directory, device="cpu")
    assert finished.spec.iteration == 10


def torch_state() -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    ]


@pytest.fixture
def other_arithmetic() -> Any:
    """The switches that a run sets, all in their other position."""
    conv, cudnn = torch.backends.cudnn.conv, torch.backends.cudnn  # type: ignore[attr-defined]
    before = conv.fp32_precision, cudnn.deterministic, cudnn.benchmark
    conv.fp32_precision, cudnn.deterministic, cudnn.benchmark = "tf32", False, True
    yield
    conv.fp32_precision, cudnn.deterministic, cudnn.benchmark = before


@pytest.mark.usefixtures("other_arithmetic")
def test_torch_is_left_as_it_was(tmp_path: Path) -> None:
    before = torch_state()
    analyze(tmp_path, "original_resnet20", **NET)
    assert torch_state() == before


def test_repeated_analysis_is_read_and_a_deleted_one_made_again(tmp_path: Path) -> None:
    announced: list[str] = []
    first = analyze(tmp_path, "original_resnet20", announce=announced.append, **NET)
    assert analyze(tmp_path, "original_resnet20", announce=announced.append, **NET) == first
    assert len(announced) == 1
    (file,) = (tmp_path / "analysis").iterdir()
    file.unlink()
    again = analyze(tmp_path, "original_resnet20", **NET)
    assert [asdict(one) | {"seconds": 0} for one in (again,)] == [asdict(one) | {"seconds": 0} for one in (first,)]


def test_seeds_are_of_other_weights_and_images(tmp_path: Path) -> None:
    cases = of_net("original_resnet20", {"depth": 8}, 2, tmp_path, ROOT, "digits")
    one, other = (subject_of(case, FOUR, CPU) for case in cases)
    assert not torch.equal(one.images, other.images)
    assert not torch.equal(one.model.get_parameter("stem.conv.weight"), other.model.get_parameter("stem.conv.weight"))


def test_orthogonal_weights_are_orthogonal(tmp_path: Path) -> None:
    (case,) = of_net("original_resnet20", {"depth": 8}, 1, tmp_path, ROOT, "digits")
    at = subject_of(case, Conditions(images=4, initialisation="orthogonal"), CPU)
    for module in at.model.modules():
        if isinstance(module, torch.nn.Conv2d):
            rows = module.weight.flatten(1)
            products = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
            torch.testing.assert_close(products, 2 * torch.eye(len(products), dtype=torch.float64), rtol=0, atol=1e-5)


def test_averages_are_measured_on_test_images(run: PlannedRun, tmp_path: Path) -> None:
    (case,) = of_net("original_resnet20", {"depth": 8}, 1, tmp_path, ROOT, "digits")
    at = subject_of(case, Conditions(images=4, batch_norm="averages"), CPU)
    assert at.labels.tolist() == load_digits().y_test[:4].tolist()
    assert not at.model.training


def test_case_counts_once_if_cells_share_it(tmp_path: Path) -> None:
    found = api.analyze("table2", cells=["original/*"], profile="smoke", results=tmp_path, images=4, device="cpu")
    assert len({one.file_name for one in found}) == len(found)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"what": "original_resnet20", "run": "x"}, "Name one net, table, run or weights file, not a name, run"),
    ({}, "holds no analyses"),
    ({"run": "x", "seeds": 2}, "A run takes no --seeds"),
    ({"run": "x", "dataset": "digits"}, "A run takes no --dataset"),
    ({"weights": "x", "profile": "smoke"}, "A file of weights takes no --profile"),
    ({"what": "original_resnet20", "trained": True, "cells": ["a"]}, "A net takes no --trained, --cells"),
    ({"what": "table2", "settings": {"depth": 8}}, "A table takes no --set"),
    ({"what": "table2", "dataset": "digits"}, "A table takes no --dataset"),
    ({"what": "table2", "trained": True, "seeds": 2}, "A choice of runs takes no --seeds"),
    ({"what": "table2", "trained": True, "profile": "smoke"}, "has no runs of these nets on these data"),
    ({"what": "table22"}, "There is no 'table22' to analyze. Did you mean"),
    ({"run": "x"}, "x is no run in"),
    ({"weights": "x"}, "x cannot be read"),
    ({"what": "original_resnet20", "dataset": "photos"}, "for images of 32 x 32 pixels"),
    ({"what": "preact_resnet18", "dataset": "digits"}, "for images of 224 x 224 pixels"),
    ({"what": "original_resnet20", "dataset": "digits", "images": 129}, "only 128 images"),
    ({"what": "original_resnet20", "dataset": "digits", "images": 361, "batch_norm": "averages"}, "only 360 images"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refuses(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PaperbenchError) as error:
        api.analyze(**arguments, results=tmp_path, device="cpu")
    assert message in str(error.value)
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def paused(run: PlannedRun, tmp_path: Path) -> Path:
    """A results directory with the run after 6 iterations; others change its only checkpoint."""
    train(run, tmp_path, stop_at=6)
    return tmp_path


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
    case = find_run(run.id, Store(paused), paused)
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


def test_measures_have_one_order(tmp_path: Path) -> None:
    """So that an analysis is found again, however its measures are named."""
    (case,) = of_net("preact_resnet20", {"depth": 8}, 1, tmp_path, ROOT, "digits")
    specs = [case.spec(Conditions(measures=some)) for some in (("channels", "paths"), ("paths", "channels", "paths"))]
    assert specs[0] == specs[1]
