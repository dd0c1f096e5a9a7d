from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.specs.recipe import BatchNormSettings, Recipe
from paperbench.training.trainer import Trainer
from tests.training.trainings import MORE, advance, differences, state_of, through_a_file

CPU = torch.device("cpu")


def new(recipe: Recipe, dataset: ImageDataset, seed: int = 0) -> Trainer:
    return Trainer(resolve("preact_resnet20", depth=8), recipe, dataset, seed, "fp32", CPU)


def test_step_takes_a_learning_rate_in_place_of_the_recipes(paper_recipe: Recipe, tiny_dataset: ImageDataset) -> None:
    trainer = new(paper_recipe, tiny_dataset)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    trainer.step(1e-30)
    for old, new_one in zip(before, trainer.model.parameters(), strict=True):
        torch.testing.assert_close(old, new_one, rtol=0, atol=1e-20)


@pytest.mark.parametrize("more", [{}, MORE])
def test_resumed_training_equals_the_uninterrupted_one(recipe: Recipe, small_dataset: ImageDataset, more: Any) -> None:
    """Stops at and next to the end of the warm-up, the drop and the end of the first epoch (iteration 6.25)."""
    recipe = replace(recipe, **more)
    whole = advance(new(recipe, small_dataset), 24)
    part = new(recipe, small_dataset)
    for stop in (1, 4, 7, 12, 13, 24):
        saved = through_a_file(advance(part, stop))
        torch.manual_seed(99)  # another process would start from other generators
        part = new(recipe, small_dataset)
        part.load_state_dict(saved)

    assert differences(state_of(part), state_of(whole)) == []
    assert part.metrics.compute() == whole.metrics.compute()
    assert part.finish() == whole.finish()


def test_seed_determines_all_randomness(recipe: Recipe, small_dataset: ImageDataset) -> None:
    first, same, other = (state_of(advance(new(recipe, small_dataset, seed), 3)) for seed in (0, 0, 1))
    assert differences(first, same) == []
    assert {"noise.cpu", "window.loss"} <= {*differences(first, other)}
    untrained = [state_of(new(recipe, small_dataset, seed)) for seed in (0, 1)]
    assert "model.stem.conv.weight" in differences(*untrained)


@pytest.mark.parametrize("at_test", ["reestimated", "moving_average"])
def test_finish_uses_the_batch_norm_statistics_of_the_recipe(
    recipe: Recipe, small_dataset: ImageDataset, at_test: Any
) -> None:
    settings = replace(recipe.batch_norm, at_test=at_test)
    trainer = advance(new(replace(recipe, batch_norm=settings), small_dataset), 5)
    before = trainer.test()
    (final,) = trainer.finish()
    assert final == trainer.test()
    assert (final == before) is (at_test == "moving_average")


def test_reestimated_statistics_average_over_the_training_set(recipe: Recipe, small_dataset: ImageDataset) -> None:
    trainer = advance(new(recipe, small_dataset), 3)
    twin = ResidualNet(trainer.model.net)
    twin.load_state_dict(trainer.model.state_dict())
    layers = [m for m in twin.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = 1.0  # so the running statistics are those of the last batch
    sums = [torch.zeros(2, layer.num_features, dtype=torch.float64) for layer in layers]
    with torch.no_grad():
        for images in trainer.feed.reestimation():  # 100 images: 12 groups of 8; the last 4 are not used
            twin.train()(images)
            for layer, total in zip(layers, sums, strict=True):
                total += torch.stack((layer.running_mean, layer.running_var)).double()
    trainer.finish()
    ours = [m for m in trainer.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for layer, total in zip(ours, sums, strict=True):
        expected = (total / 12).float()
        torch.testing.assert_close(layer.running_mean, expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.running_var, expected[1], rtol=1e-4, atol=1e-5)


def test_fewer_images_than_a_group_are_refused(recipe: Recipe, small_dataset: ImageDataset) -> None:
    few = replace(small_dataset, x_train=small_dataset.x_train[:7], y_train=small_dataset.y_train[:7])
    with pytest.raises(PaperbenchError, match="has 7 training images; batch norm needs groups of 8"):
        new(recipe, few)


def test_batch_norm_settings_reach_the_net(recipe: Recipe, small_dataset: ImageDataset) -> None:
    other = replace(recipe, batch_norm=BatchNormSettings(16, 1e-3, 0.25, "reestimated"))
    layers = [m for m in new(other, small_dataset).model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert layers
    assert {(m.eps, m.momentum) for m in layers} == {(1e-3, 0.25)}


def test_initialisation_and_input_follow_the_recipe(recipe: Recipe, small_dataset: ImageDataset) -> None:
    trainer = new(replace(recipe, initialisation="fan_in", input="channel_mean_std"), small_dataset)
    strided = trainer.model.stages[2][0].residual.conv1.weight  # 32 -> 64 channels, 3x3
    assert strided.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.05)
    seen = []
    trainer.model.stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    trainer.test()
    assert 0.9 < torch.cat(seen).std().item() < 1.1  # pixels/255 of random bytes have a deviation of 0.29


def test_trainer_sets_the_arithmetic(recipe: Recipe, small_dataset: ImageDataset) -> None:
    torch.backends.cudnn.deterministic = False
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    new(recipe, small_dataset)
    assert torch.backends.cudnn.deterministic
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
