"""Specs and expected results for the tests of executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.runs.store import Store
from tests.cli.conftest import heeded_signals, run, taking
from tests.executors.commands import Command, StandIn
from tests.helpers import copy_of_tiny_specs

__all__ = ["heeded_signals", "run", "taking"]


@pytest.fixture(scope="session")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped tables, with a profile whose run takes some seconds, in two batch-norm groups."""
    return copy_of_tiny_specs(
        tmp_path_factory.mktemp("specs"),
        batch_size=16,
        iterations=80,
        warm_up={"learning_rate": 0.01, "iterations": 5},
        drops={"at": [40, 60]},
        batch_norm={"group": 8, "at_test": "reestimated"},
        monitoring={"log_every": 7, "test_every": 40, "checkpoint_every": 10, "checkpoint_share": 1.0},
    )


@pytest.fixture(scope="session")
def expected(specs: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The results of one process."""
    command = Command(specs, tmp_path_factory.mktemp("alone") / "r")
    assert command.status() == 0, command.output
    return Store(command.results)


@pytest.fixture
def stand_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What workers import in place of paperbench; by default it does nothing."""
    folder = tmp_path_factory.mktemp("stand_in")
    monkeypatch.syspath_prepend(folder)
    made = StandIn(folder)
    made.does("")
    return made
