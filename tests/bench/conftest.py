from __future__ import annotations

import pytest
import torch

from paperbench.bench import plain_loop, setup, throughput
from paperbench.bench.setup import Training, bench_training
from paperbench.catalogue import resolve
from paperbench.training import soundness


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images and steps, nets of depth 8, one worker, no pauses."""
    monkeypatch.setitem(setup.IMAGES, "cpu", 64)
    monkeypatch.setitem(plain_loop.WORKERS, "cpu", 1)
    monkeypatch.setattr(plain_loop, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(plain_loop, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(setup, "resolve", lambda name: resolve(name, depth=8))
    for module in (soundness, throughput):
        monkeypatch.setattr(module, "STEPS", 5)


@pytest.fixture
def training() -> Training:
    return bench_training("preact_resnet20", 16, torch.device("cpu"))
