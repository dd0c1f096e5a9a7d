"""Recomputation of residual units, which saves memory and changes no number, whatever the engine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from paperbench.data.dataset import ImageDataset
from paperbench.models.stage import Stage
from paperbench.specs.recipe import Recipe
from paperbench.training.batch_norm import BatchNormAverages, TrainingBatchNorm2d
from paperbench.training.engines import ENGINES
from tests.training.fake_gpu import fake_gpu
from tests.training.trainings import Runs, advance, differences, recipe_of, state_of

CPU = torch.device("cpu")
NOISY = "resnet110_dropout_shortcut"


@pytest.fixture
def runs(paper_recipe: Recipe, tiny_dataset: ImageDataset) -> Runs:
    return Runs(recipe_of(paper_recipe, 10), tiny_dataset, CPU)


@pytest.mark.parametrize(
    ("engine", "net", "precision"),
    [("eager", NOISY, "bf16"), ("graph", "preact_resnet20", "fp32"), ("graph", "original_resnet20", "bf16")],
)
def test_recomputed_units_change_no_number(runs: Runs, engine: str, net: str, precision: str) -> None:
    runs = replace(runs, net=net, precision=precision, residual_dropout=0.3 * (net == NOISY))
    expected = state_of(advance(runs.new(engine), 4))
    assert differences(state_of(advance(replace(runs, recompute=True).new(engine), 4)), expected) == []


def test_recomputed_units_keep_statistics_that_overflow() -> None:
    """A variance may be infinite where all outputs are finite. Written twice, with a weight of 0, it would be NaN."""
    rows = []
    for recompute in (False, True):
        layer = nn.BatchNorm2d(1)
        TrainingBatchNorm2d.replace(layer)
        stage = Stage(nn.Sequential(layer))
        stage.grad_checkpointing = recompute
        images = torch.full((2, 1, 2, 2), 3e38, requires_grad=True)
        stage(images * torch.tensor([1.0, -1.0])[:, None, None, None]).sum().backward()
        rows.append(BatchNormAverages(stage).last_batch())
    assert rows[0].tolist() == rows[1].tolist() == [0.0, math.inf]


@pytest.mark.parametrize("engine", ENGINES)
def test_recomputation_stays_on_the_gpu(runs: Runs, engine: str) -> None:
    with fake_gpu() as gpu:
        trainer = gpu.on(replace(runs, precision="bf16", recompute=True)).new(engine)
        trainer.step()
    assert gpu.reads == 0


@pytest.mark.parametrize(
    ("net", "dropout", "reads"), [("preact_resnet20", 0.0, False), ("preact_resnet20", 0.3, True), (NOISY, 0.0, True)]
)
def test_generator_is_read_only_for_nets_with_noise(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, net: str, dropout: float, reads: bool
) -> None:
    """A CUDA graph cannot capture that."""
    trainer = replace(runs, net=net, residual_dropout=dropout, recompute=True).new("eager")
    states = []
    get = torch.get_rng_state
    monkeypatch.setattr(torch, "get_rng_state", lambda: states.append(get()) or states[-1])
    trainer.step()
    assert bool(states) is reads
