from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.feed import make_feed
from paperbench.data.loader import Batch
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe
from paperbench.training.batch_norm import TrainingBatchNorm2d
from paperbench.training.evaluation import as_memory_allows, evaluate, reestimate_batch_norm
from paperbench.training.memory import release_memory
from paperbench.training.trainer import Trainer
from tests.training.trainings import advance, differences, state_of

CPU = torch.device("cpu")


def test_evaluate_equals_numpy_and_changes_nothing(small_dataset: ImageDataset, paper_recipe: Recipe) -> None:
    model = ResidualNet(resolve("preact_resnet20", depth=8)).to(memory_format=torch.channels_last)
    feed = make_feed(small_dataset, paper_recipe, 0, CPU, lambda: None, lambda _: None)
    batches = list(feed.test(None, 13))
    with torch.no_grad():
        logits = torch.cat([model.eval()(b.images) for b in batches]).double().numpy()
    right = small_dataset.y_test
    log_sum = np.log(np.exp(logits).sum(axis=1))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    metrics = evaluate(model.train(), batches, "fp32", CPU)
    assert metrics.error == pytest.approx(100 * np.mean(logits.argmax(axis=1) != right))
    assert metrics.loss == pytest.approx(np.mean(log_sum - logits[np.arange(len(right)), right]), rel=1e-6)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_top5_error_counts_classes_ahead_and_gives_ties_to_the_lower_label() -> None:
    scores = [
        ([6, 5, 4, 3, 2, 1, 0], 4),  # the fifth
        ([6, 5, 4, 3, 2, 1, 0], 5),  # the sixth: wrong
        ([6, 5, 4, 3, 1, 1, 0], 4),  # ties for the fifth place, and has the lower label
        ([6, 5, 4, 3, 1, 1, 0], 5),  # has the higher one: wrong
        ([0, 0, 0, 0, 0, 0, 9], 3),  # as torch's topk of equal scores need not say
        ([9, 9, 9, 9, 9, 9, 9], 5),  # wrong
    ]
    logits, labels = (torch.tensor(part) for part in zip(*scores, strict=True))
    found = evaluate(nn.Identity(), [Batch(logits.float(), labels)], "fp32", CPU)
    assert found.top5_error == pytest.approx(100 * 3 / 6)


def test_reestimated_statistics_are_the_averages_over_groups() -> None:
    """With two BN layers, so that the second reads the output of the first in training mode."""
    torch.manual_seed(0)
    groups = [torch.randn(6, 3, 4, 4) * (i + 1) + i for i in range(5)]
    stack = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    for layer in (stack[0], stack[2]):
        layer.running_mean.fill_(7)
        layer.running_var.fill_(torch.inf)  # as after near-divergence
        TrainingBatchNorm2d.replace(layer)
    before = [p.detach().clone() for p in stack.parameters()]
    reestimate_batch_norm(stack, groups, "fp32", CPU)
    assert all(map(torch.equal, stack.parameters(), before))

    first = [g.double() for g in groups]
    normalised = [
        (g - g.mean((0, 2, 3), keepdim=True)) / torch.sqrt(g.var((0, 2, 3), unbiased=False, keepdim=True) + 1e-5)
        for g in first
    ]
    second = [stack[1].double()(g).detach() for g in normalised]
    for layer, seen in ((stack[0], first), (stack[2], second)):
        mean = torch.stack([g.mean((0, 2, 3)) for g in seen]).mean(0)
        variance = torch.stack([g.var((0, 2, 3), unbiased=True) for g in seen]).mean(0)
        torch.testing.assert_close(layer.running_mean.double(), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.running_var.double(), variance, rtol=1e-5, atol=1e-6)
        assert layer.momentum == 0.1
        assert layer.num_batches_tracked == 5
    assert not stack.training


def test_reestimation_adds_in_float64() -> None:
    """In float32, the second mean would vanish in the first."""
    layer = nn.BatchNorm2d(1)
    TrainingBatchNorm2d.replace(layer)
    means = torch.tensor([2.0**26, 1.0, -(2.0**26)])
    images = means.repeat_interleave(2)[:, None, None, None].expand(-1, 1, 4, 4)
    reestimate_batch_norm(nn.Sequential(layer), images.split(2), "fp32", CPU)
    torch.testing.assert_close(layer.running_mean, torch.tensor([1 / 3]))


class LittleMemory:
    """Lets a trainer's net take at most `limit` images at once.

    Attributes:
        seen: The numbers of images that the net was given.
    """

    def __init__(self, trainer: Trainer, limit: int) -> None:
        self.seen: list[int] = []
        self._limit = limit
        trainer.model.stem.register_forward_pre_hook(self)

    def __call__(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        self.seen.append(len(inputs[0]))
        if self.seen[-1] > self._limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def __deepcopy__(self, _: Any) -> LittleMemory:
        return self  # for working copies of the net


@pytest.fixture
def trainer(recipe: Recipe, small_dataset: ImageDataset) -> Trainer:
    """After three iterations, with 40 images to test."""
    return advance(Trainer(resolve("preact_resnet20", depth=8), recipe, small_dataset, 0, "fp32", CPU), 3)


def test_test_halves_its_batch_while_memory_is_short(trainer: Trainer) -> None:
    unlimited = trainer.test()
    before = state_of(trainer)
    memory = LittleMemory(trainer, 12)
    found = trainer.test()
    assert memory.seen == [40, 40, 25, 12, 12, 12, 4]
    assert (found.loss, found.error) == (pytest.approx(unlimited.loss, rel=1e-6), unlimited.error)
    assert differences(state_of(trainer), before) == []
    memory.seen.clear()
    assert trainer.test() == found
    assert memory.seen == [12, 12, 12, 4]


@pytest.mark.gpu
def test_gpu_with_little_memory_left_tests_fewer_images_at_once(recipe: Recipe, small_dataset: ImageDataset) -> None:
    """2,000 images take 131 MB per layer."""
    cuda = torch.device("cuda", 0)
    many = replace(
        small_dataset, x_test=np.tile(small_dataset.x_test, (50, 1, 1, 1)), y_test=np.tile(small_dataset.y_test, 50)
    )
    trainer = advance(Trainer(resolve("preact_resnet20", depth=8), recipe, many, 0, "fp32", cuda, "graph"), 3)
    unlimited = trainer.test()
    release_memory(cuda)
    left = torch.cuda.memory_reserved(cuda) + 100 * 2**20
    torch.cuda.set_per_process_memory_fraction(left / torch.cuda.get_device_properties(cuda).total_memory, cuda)
    try:
        found = trainer.test()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, cuda)
    assert trainer.feed.test_batch < 2000
    assert (found.loss, found.error) == (pytest.approx(unlimited.loss, rel=1e-4), pytest.approx(unlimited.error, abs=1))


def test_memory_is_free_before_the_work_is_repeated() -> None:
    """The traceback of an error keeps what its functions refer to."""
    kept = []

    def work(at_once: int) -> int:
        assert [tensor() for tensor in kept] == [None] * len(kept)
        images = torch.zeros(at_once)
        kept.append(weakref.ref(images))
        if at_once > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return at_once

    assert as_memory_allows(work, 16, CPU) == 2
    assert len(kept) == 4


@pytest.mark.parametrize(
    ("error", "expected"),
    [(torch.OutOfMemoryError(), [3, 1]), (RuntimeError("CUDA error: unspecified"), [3]), (KeyboardInterrupt(), [3])],
)
def test_only_lack_of_memory_is_tried_again_until_one(error: BaseException, expected: list[int]) -> None:
    calls = []

    def work(at_once: int) -> None:
        calls.append(at_once)
        raise error

    with pytest.raises(type(error)):
        as_memory_allows(work, 3, CPU)
    assert calls == expected
