"""Training ResNet-20 on this CPU: paperbench against a plain PyTorch loop, round by round in one process.

    python -m pytest tests/benchmarks

The plain loop is what public repositories ship: eager float32 in the default memory layout, a DataLoader whose workers
augment PIL images with torchvision, and the loss read after every step. Each round of ours follows one of the plain
loop, so that a busy machine slows both; quote the ratio, not the rates.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms as tv
from PIL import Image
from pytest_benchmark.fixture import BenchmarkFixture
from torch.utils.data import DataLoader, Dataset

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe
from paperbench.training.trainer import Trainer

NET = "original_resnet20"
BATCH = 128
STEPS, ROUNDS = 8, 7


@pytest.fixture(autouse=True, scope="module")
def _all_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(torch.multiprocessing.cpu_count())
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def dataset() -> ImageDataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 5000)
    return ImageDataset("cifar10", "random pixels", "a benchmark", False, images, labels, images[:10], labels[:10])


class PilImages(Dataset):
    """The images as torchvision's CIFAR10 hands them out."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.dataset = dataset
        self.transform = tv.Compose(
            [
                tv.RandomCrop(32, padding=4),
                tv.RandomHorizontalFlip(),
                tv.ToTensor(),
                tv.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
            ]
        )

    def __len__(self) -> int:
        return len(self.dataset.x_train)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.dataset.x_train[index])), int(self.dataset.y_train[index])


class PlainLoop:
    """Eager, DataLoader, loss.item() every step."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.model = ResidualNet(resolve(NET)).train()
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        self.loader = DataLoader(
            PilImages(dataset), BATCH, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
        )
        self.batches = self._endless()
        self.seconds: list[float] = []
        self.round()
        self.seconds.clear()

    def _endless(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from self.loader

    def round(self) -> None:
        start = time.perf_counter()
        for _ in range(STEPS):
            images, labels = next(self.batches)
            loss = F.cross_entropy(self.model(images), labels)
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()
            assert loss.item() > 0
        self.seconds.append(time.perf_counter() - start)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resnet20_images_per_second(
    benchmark: BenchmarkFixture,
    dataset: ImageDataset,
    paper_recipe: Recipe,
    precision: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = PlainLoop(dataset)
    trainer = Trainer(resolve(NET), paper_recipe, dataset, seed=0, precision=precision, device=torch.device("cpu"))
    ours: list[float] = []

    def our_round() -> None:
        start = time.perf_counter()
        for _ in range(STEPS):
            trainer.step()
        ours.append(time.perf_counter() - start)

    our_round()
    ours.clear()
    benchmark.pedantic(our_round, setup=plain.round, rounds=ROUNDS)

    ratios = [p / o for p, o in zip(plain.seconds, ours, strict=True)]
    images = STEPS * BATCH
    benchmark.extra_info["plain_images_per_second"] = images / statistics.median(plain.seconds)
    benchmark.extra_info["our_images_per_second"] = images / statistics.median(ours)
    benchmark.extra_info["ratio"] = statistics.median(ratios)
    with capsys.disabled():
        print(
            f"\n{NET}, {torch.get_num_threads()} threads, {precision}: "
            f"plain fp32 loop {benchmark.extra_info['plain_images_per_second']:.0f} images/s, "
            f"paperbench {benchmark.extra_info['our_images_per_second']:.0f}, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f} in {ROUNDS} rounds)"
        )
