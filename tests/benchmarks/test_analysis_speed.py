"""Time to measure signal and gradient in every unit of a net, forward and back."""

from __future__ import annotations

import torch
from pytest_benchmark.fixture import BenchmarkFixture

from paperbench.analysis.walk import Subject, measure
from paperbench.catalogue import resolve
from paperbench.models import ResidualNet


def test_passes(benchmark: BenchmarkFixture) -> None:
    model, images, labels = ResidualNet(resolve("preact_resnet110")), torch.randn(4, 3, 32, 32), torch.arange(4)
    subject = Subject(model, images, labels, by_batch=True, dtype=torch.float64)
    benchmark.pedantic(measure, args=(subject,), rounds=3, warmup_rounds=1)
