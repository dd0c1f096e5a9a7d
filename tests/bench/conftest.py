from __future__ import annotations

import pytest

from paperbench.bench import plain_loop, rounds, setup, soundness
from paperbench.catalogue import resolve


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images, few compared steps, one worker."""
    monkeypatch.setitem(setup.IMAGES, "cpu", 64)
    monkeypatch.setitem(plain_loop.WORKERS, "cpu", 1)
    monkeypatch.setattr(rounds, "REST_SECONDS", 0.0)
    monkeypatch.setattr(soundness, "STEPS", 5)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nets have depth 8."""
    monkeypatch.setattr(setup, "resolve", lambda name: resolve(name, depth=8))
