from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paperbench.architecture import parameters
from paperbench.catalogue import resolve
from paperbench.data.dataset import Dataset
from paperbench.data.share import WHOLE
from paperbench.specs.recipe import Recipe
from paperbench.training.engines import ways_to_train
from paperbench.training.memory import (
    _WORKSPACE,
    _MemoryCounter,
    memory_needed,
    release_memory,
    step_memory,
)
from paperbench.training.trainer import Trainer

CPU = torch.device("cpu")


def activation_bytes(batch_size: int, bytes_each: int) -> int:
    """Bytes that a forward pass of the original ResNet-20 keeps for the backward pass.

    Per convolution (19), its output, which BN needs, and the output of the ReLU after BN or addition; and the images.
    """
    layers = {16 * 32 * 32: 1 + 6, 32 * 16 * 16: 6, 64 * 8 * 8: 6}
    maps = sum(2 * number * size for size, number in layers.items())
    return batch_size * (maps + 3 * 32 * 32) * bytes_each


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp32", 4), ("bf16", 2)])
def test_step_memory_equals_a_manual_count(precision: str, bytes_each: int) -> None:
    found = step_memory(resolve("original_resnet20"), 128, precision)  # type: ignore[arg-type]
    expected = activation_bytes(128, bytes_each) + 3 * 4 * 269_722
    assert expected < found < 1.08 * expected


def test_checkpointing_keeps_unit_inputs_and_one_unit() -> None:
    net = resolve("preact_resnet56")
    usual = step_memory(net, 128, "fp32")
    checkpointed = step_memory(net, 128, "fp32", recompute=True)
    inputs = 128 * 4 * 9 * (16 * 32 * 32 + 32 * 16 * 16 + 64 * 8 * 8)
    assert inputs < checkpointed < inputs + 3 * 4 * 853_018 + 12 * 128 * 4 * 16 * 32 * 32
    assert checkpointed < usual / 2


def test_each_way_to_train_takes_less_memory(paper_recipe: Recipe) -> None:
    """Eager keeps half of the activations, more than recomputation leaves of all; so without it, it is no way out."""
    ways = list(ways_to_train(resolve("preact_resnet110"), paper_recipe, "fp32", None, ("graph", "eager"), WHOLE))
    assert [(way.engine, way.recompute) for way in ways] == [("graph", False), ("graph", True), ("eager", True)]
    assert ways[0].needed > ways[1].needed > ways[2].needed


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("batch_size", "group", "crop"), [(16, 2, 16), (48, 8, 48), (2, 2, 16)])
def test_needed_memory_is_that_of_a_real_step(
    photo_recipe: Recipe, photos: Dataset, batch_size: int, group: int, crop: int, recompute: bool
) -> None:
    """With eight small groups, whose gradients are most of it; six large ones; and one."""
    assert photo_recipe.photographs
    photographs = replace(photo_recipe.photographs, crop=crop)
    batch_norm = replace(photo_recipe.batch_norm, group=group)
    recipe = replace(photo_recipe, batch_size=batch_size, batch_norm=batch_norm, photographs=photographs)
    net = resolve("preact_resnet20", depth=14)
    with _MemoryCounter() as counter:  # of its real tensors
        Trainer(net, recipe, photos, 0, "fp32", CPU, recompute=recompute).step()
    needed = memory_needed(net, recipe, "fp32", recompute=recompute) / _WORKSPACE
    assert needed == pytest.approx(counter.peak, rel=0.05)


@pytest.mark.parametrize(
    "name",
    [
        "resnet110_dropout_shortcut",
        pytest.param("resnet110_exclusive_gating", marks=pytest.mark.full),
        pytest.param("resnet164_relu_before_addition", marks=pytest.mark.full),
        pytest.param("preact_resnet110_1layer", marks=pytest.mark.full),
        pytest.param("preact_resnet1001", marks=pytest.mark.full),
        pytest.param("original_resnet1202", marks=pytest.mark.full),
    ],
)
def test_memory_of_deep_nets_follows_from_shallow_ones(name: str, recipe: Recipe) -> None:
    net = resolve(name)
    group = recipe.batch_norm.group
    sums = 4 * parameters(net) * max(n.bit_count() for n in range(recipe.groups))
    whole = step_memory(net, group, "fp32")
    assert memory_needed(net, recipe, "fp32") == pytest.approx((whole + sums) * _WORKSPACE, rel=1e-6)


def test_groups_side_by_side_need_the_memory_of_their_images_together(paper_recipe: Recipe) -> None:
    net = resolve("preact_resnet20")
    whole = step_memory(net, paper_recipe.batch_size, "fp32")
    assert memory_needed(net, paper_recipe, "fp32", None, 2) / _WORKSPACE == pytest.approx(whole, rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("recompute", [False, True])
def test_gpu_memory_is_the_count_and_some_workspace(recipe: Recipe, small_dataset: Dataset, recompute: bool) -> None:
    net, cuda = resolve("preact_resnet110"), torch.device("cuda")
    recipe = replace(recipe, batch_size=64, batch_norm=replace(recipe.batch_norm, group=64))
    for _ in range(2):  # at first, libraries allocate workspaces that they keep
        release_memory(cuda)
        before = torch.cuda.memory_allocated(cuda)
        torch.cuda.reset_peak_memory_stats(cuda)
        Trainer(net, recipe, small_dataset, 0, "fp32", cuda, recompute=recompute).step()
    counted = memory_needed(net, recipe, "fp32", recompute=recompute) / _WORKSPACE
    assert 0.95 * counted < torch.cuda.max_memory_allocated(cuda) - before < 1.5 * counted
