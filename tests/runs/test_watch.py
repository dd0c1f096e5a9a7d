"""Lines of history whose numbers arrive late, as on a GPU: the run is the one that waited for each of them."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.session import RunSession
from paperbench.runs.store import Store
from paperbench.specs.recipe import BatchNormSettings, Monitoring
from paperbench.training.snapshot import Snapshot
from paperbench.training.trainer import Trainer
from paperbench.training.window import PendingMetrics, WindowMetrics
from tests.runs.running import CPU, Log, assert_same, go, planned

NEVER = 10**9


class Late:
    """Metrics that arrive after some looks, or when somebody waits for them."""

    def __init__(self, metrics: PendingMetrics, looks: int) -> None:
        self._metrics, self._looks = metrics, looks

    @property
    def is_ready(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def get(self) -> WindowMetrics:
        return self._metrics.get()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the numbers of every line arrive so many steps after it was due."""
    close = Trainer.close_window

    def arrange(steps: int) -> None:
        monkeypatch.setattr(Trainer, "close_window", lambda self: Late(close(self), steps))

    return arrange


class Noting(Log):
    """Remembers after which step each line came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[int, int]] = []

    def logged(self, line: Any) -> None:
        super().logged(line)
        self.came.append((line.iteration, self.steps[-1] if self.steps else 0))


@pytest.fixture
def busy(run: PlannedRun) -> PlannedRun:
    """A line every 3 iterations, tests at 10 and 20, checkpoints at 8 and 16."""
    return replace(run, recipe=replace(run.recipe, monitoring=Monitoring(3, 10, 8, 1.0)))


@pytest.mark.parametrize(
    ("steps", "came"),
    [
        (0, [(3, 3), (6, 6), (9, 9), (10, 10), (12, 12), (15, 15), (18, 18), (20, 20)]),
        (1, [(3, 4), (6, 7), (9, 10), (10, 10), (12, 13), (15, 16), (18, 19), (20, 20)]),
        # 6 and 15 wait for the checkpoints at 8 and 16, 3 and 12 for the next line, 9 and 18 for the tests at 10 and 20
        (NEVER, [(3, 6), (6, 8), (9, 10), (10, 10), (12, 15), (15, 16), (18, 20), (20, 20)]),
    ],
)
def test_lines_that_come_late_are_the_same_lines(
    busy: PlannedRun, tmp_path: Path, late: Callable[[int], None], steps: int, came: list[tuple[int, int]]
) -> None:
    whole, _ = go(busy, tmp_path / "whole")
    late(steps)
    directory, log = go(busy, tmp_path / "late", log=Noting())
    assert log.came == came
    assert [line.iteration for line in log.lines] == [line.iteration for line in directory.history()]
    assert_same(directory, whole)


def breaks_in(run: PlannedRun, monkeypatch: pytest.MonkeyPatch, iteration: int) -> None:
    """Let the loss of an iteration be infinite, and its update spoil the net, in every training."""
    step = Trainer.step

    def breaking(self: Trainer) -> None:
        step(self)
        if self.iteration == iteration:
            self._window._loss += math.inf
            with torch.no_grad():
                self.model.stem.conv.weight[0, 0, 0, 0] = math.nan

    monkeypatch.setattr(Trainer, "step", breaking)


@pytest.mark.parametrize("steps", [1, 2, NEVER])
@pytest.mark.parametrize(("iteration", "seen_at"), [(1, 3), (3, 3), (4, 6), (7, 9), (8, 9), (10, 10), (14, 15)])
def test_a_divergence_that_is_seen_late_ends_the_run_where_it_would_have_ended(
    busy: PlannedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[int], None],
    steps: int,
    iteration: int,
    seen_at: int,
) -> None:
    """Record, history, origin, parameters, statistics, momentum and the sums of the window."""
    breaks_in(busy, monkeypatch, iteration)
    whole, at_once = go(busy, tmp_path / "whole")
    assert (at_once.record.status, at_once.record.iteration) == ("diverged", seen_at)
    assert at_once.steps[-1] == seen_at
    late(steps)
    made: list[int] = []
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self: (made.append(self.iteration), step(self)))
    directory, log = go(busy, tmp_path / "late")
    line_before = max(i for i in (0, 3, 6, 9, 10, 12) if i < seen_at)
    assert len(made) == len(log.steps) + iteration - line_before, "the search begins at the last line"
    assert log.record.divergence == at_once.record.divergence
    assert log.record.divergence
    assert log.record.divergence.iteration == iteration
    assert (log.steps[-1] > seen_at) is (seen_at != 10), "a line with a test is finished at once"
    assert_same(directory, whole)


@pytest.mark.parametrize("stop", [4, 6, 7, 11, 14, 17])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_pause_finishes_the_line_that_is_pending(
    busy: PlannedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[int], None],
    stop: int,
    breaks: bool,
) -> None:
    if breaks:
        breaks_in(busy, monkeypatch, 6)
    whole, _ = go(busy, tmp_path / "whole")
    late(NEVER)
    part, log = go(busy, tmp_path / "part", stop_at=stop)
    if breaks and stop >= 6:
        assert (log.record.status, log.record.iteration) == ("diverged", 6)
    else:
        assert (log.record.status, log.record.iteration) == ("partial", stop)
        due = [i for i in range(1, stop + 1) if i % 3 == 0 or i == 10]
        assert [line.iteration for line in part.history()] == due
    part, _ = go(busy, tmp_path / "part")
    assert_same(part, whole)


@pytest.mark.parametrize("n", [6, 7, 8])
def test_a_signal_while_a_line_of_a_broken_run_is_pending_loses_nothing(
    busy: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: Callable[[int], None], n: int
) -> None:
    """The search is broken off: the run is left at the line, which the next session writes before any step."""
    breaks_in(busy, monkeypatch, 5)
    whole, _ = go(busy, tmp_path / "whole")
    late(NEVER)
    limits = Limits()

    class Signalled(Log):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == n:
                limits.signal = signal.SIGTERM

    part, log = go(busy, tmp_path / "part", limits, Signalled())
    assert (log.record.status, log.record.iteration) == ("partial", 6)
    assert [line.iteration for line in part.history()] == [3]
    part, log = go(busy, tmp_path / "part")
    assert log.steps == []
    assert_same(part, whole)


def test_a_run_has_two_copies_of_its_state_for_lines_and_one_for_checkpoints(
    busy: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: Callable[[int], None]
) -> None:
    late(NEVER)
    made = []
    monkeypatch.setattr(
        Snapshot, "__init__", lambda self, trainer, begin=Snapshot.__init__: made.append(begin(self, trainer))
    )
    go(busy, tmp_path)
    assert len(made) == 3


def test_a_save_that_would_lack_a_line_is_refused(
    busy: PlannedRun, tmp_path: Path, late: Callable[[int], None]
) -> None:
    late(NEVER)
    directory, log = Store(tmp_path).directory(busy.id), Log()
    session = RunSession(
        busy, directory, CPU, None, engine="eager", mixes=False, logged=log.logged, warn=log.warnings.append
    )
    for _ in range(3):
        session.trainer.step()
        session.look(lambda: None)
    with pytest.raises(RuntimeError, match="settle first"):
        session.save()
    session.settle(lambda: None)
    assert session.save().files.history_lines == 1
    session.close()


HOST_READS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::unique")


class NoHostReads(TorchDispatchMode):
    """Notes every operation whose result the host would have to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        name = func._schema.name
        if name.startswith(HOST_READS):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_the_host_reads_nothing_from_the_device_within_an_epoch(
    run: PlannedRun, tmp_path: Path, late: Callable[[int], None]
) -> None:
    """Epochs of 25 iterations, a line every 5, a checkpoint, and no test from the 26th iteration to the 50th."""
    epochs = planned(
        replace(
            run.recipe,
            batch_size=4,
            iterations=75,
            batch_norm=BatchNormSettings(4, 1e-5, 0.1, "moving_average"),
            monitoring=Monitoring(5, 25, 1_000, 1.0),
        ),
        run.dataset,
    )
    mode = NoHostReads()

    class Observing(Log):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 26:
                mode.__enter__()
            if iteration == 50:
                mode.__exit__(None, None, None)

    late(2)
    _, log = go(epochs, tmp_path, log=Observing())
    assert log.record.status == "finished"
    assert [line.iteration for line in log.lines] == list(range(5, 76, 5))
    assert mode.operations > 24 * 50
    assert mode.seen == []


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.item(),
        lambda t: bool(t > 0),
        lambda t: torch.equal(t, t),
        lambda t: t.nonzero(),
        lambda t: float(t),
    ],
)
def test_reads_by_the_host_would_be_seen(read: Callable[[torch.Tensor], object]) -> None:
    with NoHostReads() as mode:
        read(torch.ones(()))
    assert mode.seen
