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


def relative_error(ours: torch.Tensor, other: torch.Tensor) -> float:
    return float((ours - other).detach().norm() / other.detach().norm())


def test_the_gradient_is_the_mean_over_the_batch_with_statistics_of_each_group(
    recipe: Recipe, small_dataset: ImageDataset
) -> None:
    """Two replicas, each with its own half and its own batch norm, as on the paper's two GPUs."""
    once = replace(recipe, warm_up=None, learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    trainer = Trainer(resolve("preact_resnet20", depth=8), once, small_dataset, 0, "fp32", CPU)
    before = {k: v.clone() for k, v in trainer.model.named_parameters()}
    batch = training_batches(once, small_dataset).batch(0)
    replicas = []
    for half in (slice(0, 8), slice(8, 16)):
        replica = ResidualNet(resolve("preact_resnet20", depth=8)).train()
        replica.load_state_dict(trainer.model.state_dict())
        F.cross_entropy(replica(batch.images[half]), batch.labels[half]).backward()
        replicas.append(dict(replica.named_parameters()))
    trainer.step()
    for key, parameter in trainer.model.named_parameters():
        mean = (replicas[0][key].grad + replicas[1][key].grad) / 2
        assert relative_error(before[key] - parameter, mean) < 1e-4, key


def test_one_group_is_ordinary_batch_norm(recipe: Recipe, small_dataset: ImageDataset) -> None:
    once = replace(
        recipe,
        warm_up=None,
        learning_rate=1.0,
        momentum=0.0,
        weight_decay=0.0,
        batch_norm=BatchNormSettings(16, 1e-5, 0.1, "reestimated"),
    )
    trainer = Trainer(resolve("preact_resnet20", depth=8), once, small_dataset, 0, "fp32", CPU)
    whole = ResidualNet(resolve("preact_resnet20", depth=8)).train()
    whole.load_state_dict(trainer.model.state_dict())
    batch = training_batches(once, small_dataset).batch(0)
    F.cross_entropy(whole(batch.images), batch.labels).backward()
    before = {k: v.clone() for k, v in trainer.model.named_parameters()}
    trainer.step()
    for key, parameter in trainer.model.named_parameters():
        gradient = dict(whole.named_parameters())[key].grad
        assert relative_error(before[key] - parameter, gradient) < 1e-4, key


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
            first = trainer.window_metrics()
            trainer.begin_window()
    second = trainer.window_metrics()
    assert first.loss == pytest.approx(sum(losses[:6]) / 6, rel=1e-5)
    assert first.error == pytest.approx(100 * sum(wrong[:6]) / 48)
    assert second.loss == pytest.approx(sum(losses[6:]) / 2, rel=1e-5)
    assert second.error == pytest.approx(100 * sum(wrong[6:]) / 16)


def test_bf16_follows_fp32_at_first(recipe: Recipe, small_dataset: ImageDataset) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        trainer = Trainer(resolve("preact_resnet20"), recipe, small_dataset, 0, precision, CPU)
        losses[precision] = []
        for _ in range(20):
            trainer.step()
            losses[precision].append(trainer.window_metrics().loss)
            trainer.begin_window()
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
        assert all(b.dtype == torch.float32 for n, b in trainer.model.named_buffers() if "running" in n)
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_cuda_follows_the_cpu(recipe: Recipe, small_dataset: ImageDataset, precision: str) -> None:
    """Over the end of the warm-up, where forgotten momentum would show as a difference of 1e-2 at the sixth step.

    Bounds are some ten times what layout or emulated TF32 alone change on a CPU; later steps only measure chaos.
    """
    short_warm_up = replace(recipe, warm_up=WarmUp(0.01, 3))
    losses = {}
    for device, its_precision in (("cpu", "fp32"), ("cuda", precision)):
        net = resolve("preact_resnet20")
        trainer = Trainer(net, short_warm_up, small_dataset, 0, its_precision, torch.device(device))
        losses[device] = []
        for _ in range(6):
            trainer.step()
            losses[device].append(trainer.window_metrics().loss)
            trainer.begin_window()
    early = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 5e-3}[precision]
    late = {"fp32": 3e-3, "tf32": 5e-3, "bf16": 8e-3}[precision]
    assert losses["cuda"][:4] == pytest.approx(losses["cpu"][:4], rel=early)
    assert losses["cuda"][4:] == pytest.approx(losses["cpu"][4:], rel=late)
