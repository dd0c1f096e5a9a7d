from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.loader import InputTransform, TrainingBatches
from paperbench.models import ResidualNet
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe, WarmUp
from paperbench.training.trainer import Trainer
from tests.data.test_loader import crops_of, torchvision_batch
from tests.reference import forward
from tests.training.trainings import window_of

CPU = torch.device("cpu")
STEPS = 200


@pytest.fixture
def recipe(paper_recipe: Recipe) -> Recipe:
    """The paper's recipe on batches of 16 in two groups of 8, with warm-up and a drop within 200 iterations."""
    return replace(
        paper_recipe,
        batch_size=16,
        iterations=STEPS,
        warm_up=WarmUp(0.01, 20),
        drops=Drops((150,), 0.1),
        batch_norm=BatchNormSettings(8, 1e-5, 0.1, "reestimated"),
    )


def test_200_steps_equal_a_plain_loop(recipe: Recipe, small_dataset: ImageDataset, full: bool) -> None:
    """A loop as one would write it by hand: torchvision's augmentation, plain functions, torch's plain SGD."""
    trainer = Trainer(
        resolve("original_resnet20", depth=20 if full else 8),
        recipe,
        small_dataset,
        seed=4,
        precision="fp32",
        device=CPU,
    )
    state = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}
    trainable = [state[k].requires_grad_() for k, _ in trainer.model.named_parameters()]
    # Fused as in the engine: torch's other forms round differently, and such differences grow fast at these rates.
    sgd = torch.optim.SGD(trainable, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    loader = training_batches(recipe, small_dataset, seed=4)

    for iteration in range(STEPS):
        rate = 0.01 if iteration < 20 else 0.1 if iteration < 150 else 0.1 * 0.1
        if rate != sgd.param_groups[0]["lr"]:  # Caffe's momentum: the velocity, lr * buffer, goes on
            for parameter in trainable:
                sgd.state[parameter]["momentum_buffer"] *= sgd.param_groups[0]["lr"] / rate
            sgd.param_groups[0]["lr"] = rate
        crops = crops_of(loader, iteration)
        images = torchvision_batch(small_dataset, crops).contiguous(memory_format=torch.channels_last)
        labels = torch.tensor([small_dataset.y_train[index] for index, *_ in crops])
        sgd.zero_grad()
        for half in (slice(0, 8), slice(8, 16)):
            logits = forward(trainer.model.net, state, images[half], training=True)
            (F.cross_entropy(logits, labels[half], reduction="sum") / 16).backward()
        sgd.step()
        trainer.step()

    for key, value in trainer.model.state_dict().items():
        if "num_batches" not in key:
            assert torch.equal(value, state[key]), key


def training_batches(recipe: Recipe, dataset: ImageDataset, seed: int = 0) -> TrainingBatches:
    transform = InputTransform(dataset.x_train, "per_pixel_mean")
    size = recipe.batch_size
    return TrainingBatches(dataset, transform, batch_size=size, padding=4, flip=True, seed=seed, device=CPU)


@pytest.mark.parametrize("group", [8, 16])
def test_the_gradient_is_the_mean_over_the_batch_with_statistics_of_each_group(
    recipe: Recipe, small_dataset: ImageDataset, group: int
) -> None:
    """Replicas, each with its own part and its own batch norm, as on the paper's two GPUs."""
    plain = {"warm_up": None, "learning_rate": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    once = replace(recipe, batch_norm=BatchNormSettings(group, 1e-5, 0.1, "reestimated"), **plain)
    trainer = Trainer(resolve("preact_resnet20", depth=8), once, small_dataset, 0, "fp32", CPU)
    before = {k: v.clone() for k, v in trainer.model.named_parameters()}
    batch = training_batches(once, small_dataset).batch(0)
    replicas = []
    for images, labels in zip(batch.images.split(group), batch.labels.split(group), strict=True):
        replica = ResidualNet(trainer.model.net).train()
        replica.load_state_dict(trainer.model.state_dict())
        F.cross_entropy(replica(images), labels).backward()
        replicas.append(dict(replica.named_parameters()))
    trainer.step()
    for key, parameter in trainer.model.named_parameters():
        mean = torch.stack([replica[key].grad for replica in replicas]).mean(0)
        error = float((before[key] - parameter - mean).detach().norm() / mean.norm())
        assert error < 1e-4, key


def test_metrics_are_means_over_the_window(recipe: Recipe, small_dataset: ImageDataset) -> None:
    trainer = Trainer(resolve("preact_resnet20", depth=8), recipe, small_dataset, 0, "fp32", CPU)
    loader = training_batches(recipe, small_dataset)
    losses, wrong = [], []
    for iteration in range(4):
        batch = loader.batch(iteration)
        for half in (slice(0, 8), slice(8, 16)):
            twin = ResidualNet(trainer.model.net).train()
            twin.load_state_dict(trainer.model.state_dict())
            with torch.no_grad():
                logits = twin(batch.images[half])
            losses.append(F.cross_entropy(logits, batch.labels[half]).item())
            wrong.append((logits.argmax(1) != batch.labels[half]).sum().item())
        trainer.step()
        if iteration == 2:
            first = window_of(trainer)
    second = trainer.window_metrics()
    assert first.loss == pytest.approx(sum(losses[:6]) / 6, rel=1e-5)
    assert first.error == pytest.approx(100 * sum(wrong[:6]) / 48)
    assert second.loss == pytest.approx(sum(losses[6:]) / 2, rel=1e-5)
    assert second.error == pytest.approx(100 * sum(wrong[6:]) / 16)


def losses(net: str, recipe: Recipe, dataset: ImageDataset, precision: str, device: str, steps: int) -> list[float]:
    trainer = Trainer(resolve(net), recipe, dataset, 0, precision, torch.device(device))
    found = []
    for _ in range(steps):
        trainer.step()
        found.append(window_of(trainer).loss)
    assert {t.dtype for t in trainer.model.state_dict().values() if t.is_floating_point()} == {torch.float32}
    return found


def test_bf16_follows_fp32_at_first(recipe: Recipe, small_dataset: ImageDataset) -> None:
    fp32, bf16 = (losses("preact_resnet20", recipe, small_dataset, p, "cpu", 20) for p in ("fp32", "bf16"))
    assert bf16 == pytest.approx(fp32, rel=0.05)
    assert bf16 != fp32


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "early", "late"), [("fp32", 1e-4, 3e-3), ("tf32", 1e-3, 5e-3), ("bf16", 5e-3, 8e-3)]
)
def test_cuda_follows_the_cpu(
    recipe: Recipe, small_dataset: ImageDataset, precision: str, early: float, late: float
) -> None:
    """Over the end of the warm-up, where forgotten momentum would show as a difference of 1e-2 at the sixth step.

    Bounds are some ten times what layout or emulated TF32 alone change on a CPU; later steps only measure chaos.
    """
    short = replace(recipe, warm_up=WarmUp(0.01, 3))
    cpu = losses("preact_resnet20", short, small_dataset, "fp32", "cpu", 6)
    cuda = losses("preact_resnet20", short, small_dataset, precision, "cuda", 6)
    assert cuda[:4] == pytest.approx(cpu[:4], rel=early)
    assert cuda[4:] == pytest.approx(cpu[4:], rel=late)
