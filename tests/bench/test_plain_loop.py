from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from paperbench.bench import plain_loop
from paperbench.bench.plain_loop import (
    Batch,
    PilImages,
    PlainLoop,
    cycle_batches,
    make_loader,
    on_device_batches,
    set_plain_arithmetic,
)
from paperbench.bench.setup import random_images
from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.feed import Feed
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Augmentation, Recipe, WarmUp
from paperbench.training.soundness import next_loss
from paperbench.training.trainer import Trainer

CPU = torch.device("cpu")
BATCH = 16


@pytest.fixture
def dataset() -> ImageDataset:
    return random_images(80, 10)


@pytest.fixture
def recipe(paper_recipe: Recipe) -> Recipe:
    """As the plain loop: no augmentation, batch norm over the whole batch; a small rate keeps rounding small."""
    return replace(
        paper_recipe,
        batch_size=BATCH,
        batch_norm=replace(paper_recipe.batch_norm, group=BATCH),
        augmentation=Augmentation(padding=0, flip=False),
        warm_up=WarmUp(0.001, 400),
    )


def our_batches(feed: Feed, dtype: torch.dtype) -> Iterator[Batch]:
    """The batches of our trainer."""
    for number in itertools.count():
        batch = feed.make(feed.choices(number))
        yield batch.images.contiguous().to(dtype), batch.labels


def test_float64_plain_loop_trains_as_our_trainer(recipe: Recipe, dataset: ImageDataset) -> None:
    net, dtype = resolve("preact_resnet20", depth=8), torch.float64
    trainer = Trainer(net, recipe, dataset, 0, "fp32", CPU)
    model = ResidualNet(net).to(dtype)
    model.load_state_dict(trainer.model.state_dict())
    loop = PlainLoop(model, our_batches(trainer.feed, dtype), "float64", learning_rate=recipe.rate_at(0))
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    ours, plain = zip(*((next_loss(trainer), loop.step()) for _ in range(10)), strict=True)
    assert plain == pytest.approx(ours, rel=1e-4)
    theirs = dict(model.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        ours_moved, plain_moved = (p.detach().double() - before[name].double() for p in (parameter, theirs[name]))
        assert (ours_moved - plain_moved).norm() < 0.01 * ours_moved.norm(), name


def test_bf16_is_for_convolutions_and_not_for_the_loss(dataset: ImageDataset) -> None:
    model = ResidualNet(resolve("preact_resnet20", depth=8))
    seen: dict[str, torch.dtype] = {}
    model.stem.conv.register_forward_hook(lambda module, inputs, output: seen.update(conv=output.dtype))
    loop = PlainLoop(model, cycle_batches(on_device_batches(dataset, BATCH, CPU), CPU), "bf16", learning_rate=0.01)
    loss = loop.step()
    assert seen == {"conv": torch.bfloat16}
    assert loss != torch.tensor(loss).bfloat16().item()
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_loader_images_are_random_crops_of_normalised_images(dataset: ImageDataset) -> None:
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.247, 0.2435, 0.2616])
    images = PilImages(dataset)
    assert len(images) == 80
    padded = np.pad(dataset.x_train[3], ((4, 4), (4, 4), (0, 0)))
    possible = [padded[dy : dy + 32, dx : dx + 32][:, ::step] for dy in range(9) for dx in range(9) for step in (1, -1)]
    torch.manual_seed(0)
    found = set()
    for _ in range(30):
        image, label = images[3]
        assert label == dataset.y_train[3]
        pixels = np.rint((image.permute(1, 2, 0).double().numpy() * std + mean) * 255)
        places = [number for number, crop in enumerate(possible) if np.array_equal(crop, pixels)]
        assert len(places) == 1
        found.update(places)
    assert len(found) > 15
    assert {0, 8} <= {place // 18 for place in found}  # smallest and largest dy


def test_on_device_batches_are_all_images_in_order_repeatedly(dataset: ImageDataset) -> None:
    feed = cycle_batches(on_device_batches(dataset, 32, CPU), CPU)
    batches = [next(feed) for _ in range(3)]  # 80 images are two full batches
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.247, 0.2435, 0.2616])
    expected = (dataset.x_train[:64].astype(np.float64) / 255 - mean) / std
    torch.testing.assert_close(
        torch.cat([images for images, _ in batches[:2]]).double(),
        torch.from_numpy(expected).permute(0, 3, 1, 2),
        rtol=1e-5,
        atol=1e-5,
    )
    assert batches[0][0].is_contiguous()
    assert torch.equal(torch.cat([labels for _, labels in batches[:2]]), torch.from_numpy(dataset.y_train[:64]))
    assert torch.equal(batches[2][0], batches[0][0])


def test_loader_shuffles_crops_and_ends_its_workers(dataset: ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plain_loop.WORKERS, "cpu", 2)
    before = set(multiprocessing.active_children())
    assert len(make_loader(dataset, 32, CPU)) == 2  # full batches of 80 images
    feed = cycle_batches(make_loader(dataset, BATCH, CPU), CPU)
    epochs = [[next(feed) for _ in range(5)] for _ in range(2)]
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    for epoch in epochs:
        assert {images.shape for images, _ in epoch} == {(BATCH, 3, 32, 32)}
        assert sorted(torch.cat([labels for _, labels in epoch]).tolist()) == sorted(dataset.y_train.tolist())
    first, second = (torch.cat([labels for _, labels in epoch]) for epoch in epochs)
    assert not torch.equal(first, second)
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    feed.close()  # type: ignore[attr-defined]
    for worker in workers:
        worker.join(10)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize(("precision", "convolution"), [("tf32", "tf32"), ("bf16", "tf32"), ("fp32", "ieee")])
def test_plain_arithmetic_is_torchs_default_with_cudnn_benchmark(precision: str, convolution: str) -> None:
    set_plain_arithmetic(precision)
    cudnn = torch.backends.cudnn
    assert cudnn.conv.fp32_precision == convolution  # type: ignore[attr-defined]
    assert (torch.backends.cuda.matmul.fp32_precision, cudnn.benchmark, cudnn.deterministic) == ("ieee", True, False)


def test_prepare_drains_the_queue(dataset: ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_loop, "DRAIN_SECONDS", 100.0)
    used = iter(range(100))
    batches = on_device_batches(dataset, BATCH, CPU)
    loop = PlainLoop(
        ResidualNet(resolve("preact_resnet20", depth=8)), (batches[0] for _ in used), "fp32", learning_rate=0.01
    )
    loop.prepare()
    assert next(used) > plain_loop.PREFETCH * plain_loop.WORKERS["cuda"]


def test_loss_that_is_not_finite_is_an_error(dataset: ImageDataset) -> None:
    images, labels = on_device_batches(dataset, BATCH, CPU)[0]
    model = ResidualNet(resolve("preact_resnet20", depth=8))
    with pytest.raises(PaperbenchError, match="the loss is nan"):
        PlainLoop(model, iter([(images * torch.nan, labels)]), "fp32", learning_rate=0.01).step()
