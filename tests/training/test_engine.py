from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.loader import Batch
from paperbench.errors import PaperbenchError, RunError
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe, WarmUp
from paperbench.training.engines import ENGINES, engine_candidates
from paperbench.training.trainer import Trainer
from tests.data.test_loader import crops_of, torchvision_batch
from tests.reference import forward
from tests.training.trainings import take_metrics

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_training_equals_a_plain_loop(recipe: Recipe, small_dataset: ImageDataset) -> None:
    """The loop uses torchvision's augmentation, the reference net and torch's SGD class."""
    trainer = Trainer(resolve("original_resnet20", depth=8), recipe, small_dataset, 4, "fp32", CPU)
    state = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}
    trainable = [state[k].requires_grad_() for k, _ in trainer.model.named_parameters()]
    # Fused as in the engine: torch's other implementations round differently, and the differences grow fast.
    sgd = torch.optim.SGD(trainable, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)

    for iteration in range(24):
        rate = 0.01 if iteration < 4 else 0.1 if iteration < 12 else 0.1 * 0.1
        if rate != sgd.param_groups[0]["lr"]:  # Caffe's momentum: the velocity, lr * buffer, stays the same
            for parameter in trainable:
                sgd.state[parameter]["momentum_buffer"] *= sgd.param_groups[0]["lr"] / rate
            sgd.param_groups[0]["lr"] = rate
        crops = crops_of(*trainer.feed.choices(iteration))
        images = torchvision_batch(small_dataset, crops).contiguous(memory_format=torch.channels_last)
        labels = torch.tensor([small_dataset.y_train[index] for index, *_ in crops])
        sgd.zero_grad()
        for half in (slice(0, 8), slice(8, 16)):
            logits = forward(trainer.model.net, state, images[half], training=True)
            (F.cross_entropy(logits, labels[half], reduction="sum") / 16).backward()
        sgd.step()
        trainer.step()

    for key, value in trainer.model.state_dict().items():
        if "running" in key:  # we move them in float32, torch's kernel in float64
            torch.testing.assert_close(value, state[key], rtol=1e-6, atol=1e-6, msg=key)
        elif "num_batches" not in key:
            assert torch.equal(value, state[key]), key


def training_batch(trainer: Trainer, iteration: int) -> Batch:
    return trainer.feed.make(trainer.feed.choices(iteration))


def test_gradient_is_the_mean_over_groups_with_separate_batch_norm(recipe: Recipe, small_dataset: ImageDataset) -> None:
    """Compared with one replica per group, as on the paper's two GPUs."""
    once = replace(recipe, warm_up=None, learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    trainer = Trainer(resolve("preact_resnet20", depth=8), once, small_dataset, 0, "fp32", CPU)
    before = {k: v.clone() for k, v in trainer.model.named_parameters()}
    batch = training_batch(trainer, 0)
    replicas = []
    for images, labels in zip(batch.images.split(8), batch.labels.split(8), strict=True):
        replica = ResidualNet(trainer.model.net).train()
        replica.load_state_dict(trainer.model.state_dict())
        F.cross_entropy(replica(images), labels).backward()
        replicas.append(dict(replica.named_parameters()))
    trainer.step()
    for key, parameter in trainer.model.named_parameters():
        mean = torch.stack([replica[key].grad for replica in replicas]).mean(0)
        error = float((before[key] - parameter - mean).detach().norm() / mean.norm())
        assert error < 1e-4, key


def test_training_metrics_are_means_since_the_reset(recipe: Recipe, small_dataset: ImageDataset) -> None:
    trainer = Trainer(resolve("preact_resnet20", depth=8), recipe, small_dataset, 0, "fp32", CPU)
    losses, wrong = [], []
    for iteration in range(4):
        batch = training_batch(trainer, iteration)
        for half in (slice(0, 8), slice(8, 16)):
            twin = ResidualNet(trainer.model.net).train()
            twin.load_state_dict(trainer.model.state_dict())
            with torch.no_grad():
                logits = twin(batch.images[half])
            losses.append(F.cross_entropy(logits, batch.labels[half]).item())
            wrong.append((logits.argmax(1) != batch.labels[half]).sum().item())
        trainer.step()
        if iteration == 2:
            first = take_metrics(trainer)
    second = trainer.metrics.compute()
    assert first.loss == pytest.approx(sum(losses[:6]) / 6, rel=1e-5)
    assert first.error == pytest.approx(100 * sum(wrong[:6]) / 48)
    assert second.loss == pytest.approx(sum(losses[6:]) / 2, rel=1e-5)
    assert second.error == pytest.approx(100 * sum(wrong[6:]) / 16)


def losses(net: str, recipe: Recipe, dataset: ImageDataset, precision: str, device: str, steps: int) -> list[float]:
    trainer = Trainer(resolve(net), recipe, dataset, 0, precision, torch.device(device))
    found = []
    for _ in range(steps):
        trainer.step()
        found.append(take_metrics(trainer).loss)
    assert {t.dtype for t in trainer.model.state_dict().values() if t.is_floating_point()} == {torch.float32}
    return found


def test_bf16_losses_are_close_to_fp32_losses(recipe: Recipe, small_dataset: ImageDataset) -> None:
    fp32, bf16 = (losses("preact_resnet20", recipe, small_dataset, p, "cpu", 5) for p in ("fp32", "bf16"))
    assert bf16 == pytest.approx(fp32, rel=0.05)
    assert bf16 != fp32


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "early", "late"), [("fp32", 1e-4, 3e-3), ("tf32", 1e-3, 5e-3), ("bf16", 5e-3, 8e-3)]
)
def test_cuda_losses_are_close_to_cpu_losses(
    recipe: Recipe, small_dataset: ImageDataset, precision: str, early: float, late: float
) -> None:
    """Includes the end of the warm-up, where wrong momentum would change the sixth loss by 1e-2.

    The bounds are about ten times the effect of layout or emulated TF32 on a CPU. Later losses diverge chaotically.
    """
    short = replace(recipe, warm_up=WarmUp(0.01, 3))
    cpu = losses("preact_resnet20", short, small_dataset, "fp32", "cpu", 6)
    cuda = losses("preact_resnet20", short, small_dataset, precision, "cuda", 6)
    assert cuda[:4] == pytest.approx(cpu[:4], rel=early)
    assert cuda[4:] == pytest.approx(cpu[4:], rel=late)


def names(device: torch.device, earlier: str | None = None) -> list[str]:
    return engine_candidates("auto", device, earlier)


def test_gpu_uses_graphs_and_whatever_computes_the_same_bits_resumes() -> None:
    for earlier in (None, *ENGINES, "streams"):
        assert names(CUDA, earlier) == ["graph", "eager"]
        assert names(CPU, earlier) == ["eager"]


@pytest.mark.parametrize("earlier", ["compile", "engine of a later version"])
def test_run_with_other_rounding_is_resumed_only_on_request(earlier: str) -> None:
    with pytest.raises(RunError, match=rf"last trained with engine {earlier}, .* name one, such as `--engine eager`"):
        names(CPU, earlier)
    assert engine_candidates("eager", CPU, earlier) == ["eager"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("jit", "Known: auto, eager, graph"),
        ("graph", r"Engine graph: CUDA graphs need an NVIDIA GPU. Use `--engine auto`"),
        ("compile", r"Engine compile was removed: .* Use `--engine auto`"),
    ],
)
def test_unknown_unavailable_and_removed_engines_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        engine_candidates(wanted, CPU)
