from __future__ import annotations

import pytest

from paperbench.bench import plain_loop, profiling, setup, soundness, throughput
from paperbench.catalogue import resolve


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images, few compared steps, one worker, no rest."""
    monkeypatch.setitem(setup.IMAGES, "cpu", 64)
    monkeypatch.setitem(plain_loop.WORKERS, "cpu", 1)
    monkeypatch.setattr(plain_loop, "SETTLING_SECONDS", 0.0)
    monkeypatch.setattr(plain_loop, "REST_SECONDS", 0.0)
    for module in (soundness, profiling, throughput):
        monkeypatch.setattr(module, "STEPS", 5)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nets have depth 8."""
    monkeypatch.setattr(setup, "resolve", lambda name: resolve(name, depth=8))
