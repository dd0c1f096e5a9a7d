"""A training step on a batch of groups against float64 autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from paperbench.catalogue import resolve
from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.loader import Batch
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe
from paperbench.training.batch_norm import TrainingBatchNorm2d
from paperbench.training.engine import Parts
from paperbench.training.trainer import Trainer

CPU = torch.device("cpu")


def gradients_and_averages(
    trainer: Trainer, images: torch.Tensor, labels: torch.Tensor, groups: list[int], smoothing: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The float64 gradient of the mean loss over all images, and the BN statistics after one group after another."""
    twin = ResidualNet(trainer.model.net).double().train()
    twin.load_state_dict(trainer.model.state_dict())
    for layer in twin.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eps, layer.momentum = trainer.recipe.batch_norm.eps, trainer.recipe.batch_norm.moving_average
    minus_logs = -torch.cat([F.log_softmax(twin(part), dim=1) for part in images.split(groups)])
    losses = (1 - smoothing) * minus_logs.gather(1, labels[:, None])[:, 0] + smoothing * minus_logs.mean(1)
    losses.mean().backward()
    return [p.grad for p in twin.parameters() if p.grad is not None], float_buffers(twin)


@pytest.mark.parametrize(
    ("images", "groups", "smoothing"),
    [(256, [32] * 8, 0.0), (143, [18] * 7 + [17], 0.0), (5, [1] * 5, 0.0), (5, [1] * 5, 0.3)],
    ids=["whole", "short", "shortest", "smoothed"],
)
def test_gradient_is_the_mean_over_images_with_batch_norm_by_group(
    paper_recipe: Recipe,
    tiny_dataset: ImageDataset,
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    groups: list[int],
    smoothing: float,
) -> None:
    """With the groups of ImageNet's batches, of which the dagger row's epochs end with one of 143.

    The net computes in float64, too: in float32, rounding turns a ReLU on or off here and there.
    """
    batch_norm, smoothed = replace(paper_recipe.batch_norm, group=32), smoothing or None
    recipe = replace(paper_recipe, batch_size=256, batch_norm=batch_norm, label_smoothing=smoothed)
    monkeypatch.setattr(Parts, "batch_size", lambda *_: images)
    trainer = Trainer(resolve("preact_resnet20", depth=8), recipe, tiny_dataset, 0, "fp32", CPU)
    for layer in trainer.model.double().modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            TrainingBatchNorm2d.replace(layer)
    trainer.use("eager")  # of the new tensors
    whole = trainer.feed.make(trainer.feed.choices(0))
    batch = Batch(whole.images[:images].double(), whole.labels[:images])
    found: list[list[torch.Tensor]] = []
    trainer.feed.make = lambda _: batch  # type: ignore[method-assign]
    trainer._optimiser.step = found.append  # type: ignore[method-assign]
    expected, averages = gradients_and_averages(trainer, batch.images, batch.labels, groups, smoothing)
    trainer.step()
    for (name, _), ours, gradient in zip(trainer.model.named_parameters(), found[0], expected, strict=True):
        assert (ours - gradient).norm() < 1e-6 * gradient.norm(), name  # the loss is computed in float32
    for ours, theirs in zip(float_buffers(trainer.model), averages, strict=True):
        torch.testing.assert_close(ours, theirs)


def float_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


@pytest.mark.parametrize("epoch_end", ["short_batch", None])
def test_images_before_an_iteration_are_those_trained_on(photo_recipe: Recipe, photos: Dataset, epoch_end: Any) -> None:
    """Counted in batches; 48 images are four batches of ten and one of eight."""
    recipe, seen = replace(photo_recipe, epoch_end=epoch_end), 0
    trainer = Trainer(resolve("preact_resnet20", depth=8), recipe, photos, 0, "fp32", CPU)
    for iteration in range(12):
        assert recipe.images_before(iteration, photos.num_train) == seen
        seen += len(trainer.feed.choices(iteration)[1])
    trainer.close()
    assert seen == (2 * 48 + 20 if epoch_end else 120)
