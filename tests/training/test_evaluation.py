from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.loader import EvaluationBatches, InputTransform
from paperbench.models import ResidualNet
from paperbench.training.evaluation import evaluate, reestimate_batch_norm

CPU = torch.device("cpu")


def test_evaluate_equals_numpy_and_changes_nothing(small_dataset: ImageDataset) -> None:
    model = ResidualNet(resolve("preact_resnet20", depth=8)).to(memory_format=torch.channels_last)
    transform = InputTransform(small_dataset.x_train, "per_pixel_mean")
    batches = EvaluationBatches(small_dataset, transform, batch_size=13, device=CPU)
    with torch.no_grad():
        logits = torch.cat([model.eval()(b.images) for b in batches]).double().numpy()
    right = small_dataset.y_test
    log_sum = np.log(np.exp(logits).sum(axis=1))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    metrics = evaluate(model.train(), batches, "fp32", CPU)
    assert metrics.error == pytest.approx(100 * np.mean(logits.argmax(axis=1) != right))
    assert metrics.loss == pytest.approx(np.mean(log_sum - logits[np.arange(len(right)), right]), rel=1e-6)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_reestimated_statistics_are_the_averages_over_groups(at_once: int) -> None:
    """With two BN layers, so that the second reads the output of the first in training mode."""
    torch.manual_seed(0)
    groups = [torch.randn(6, 3, 4, 4) * (i + 1) + i for i in range(5)]
    stack = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    for layer in (stack[0], stack[2]):
        layer.running_mean.fill_(7)
        layer.running_var.fill_(torch.inf)  # as after near-divergence
    before = [p.detach().clone() for p in stack.parameters()]
    reestimate_batch_norm(stack, torch.cat(groups).split(6 * at_once), 6, "fp32", CPU)
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
