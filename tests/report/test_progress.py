from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TextIO
from unittest.mock import patch

import pytest

from paperbench.catalogue import PLACEMENTS, Placement
from paperbench.data.dataset import ImageDataset
from paperbench.report.progress import Progress
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun, planned_runs
from paperbench.runs.record import Divergence
from paperbench.specs.table import Table
from tests.golden import assert_golden
from tests.helpers import a_record


@pytest.fixture
def run(table2: Table, small_dataset: ImageDataset) -> PlannedRun:
    (planned,) = planned_runs(table2, table2.cells("preact/resnet110"), "smoke", "fp32", 1, {"digits": small_dataset})
    return planned


class Screen:
    """What a terminal of some width shows of the output so far."""

    def __init__(self, file: int, columns: int) -> None:
        self._file, self.columns = file, columns

    def lines(self) -> list[str]:
        """Return the lines, asserting that none is wider than the terminal."""
        os.set_blocking(self._file, False)
        text = b""
        with suppress(BlockingIOError):
            while True:
                text += os.read(self._file, 65536)
        lines = []
        for written in text.decode().replace("\r\n", "\n").split("\n"):
            line: list[str] = []
            for part in written.split("\r"):
                assert len(part) < self.columns
                line[: len(part)] = part
            lines.append("".join(line).rstrip())
        return lines


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, Screen]]:
    main, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        with os.fdopen(secondary, "w") as stream:
            yield stream, Screen(main, columns)
    finally:
        os.close(main)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def line(iteration: int, test_error: float | None) -> HistoryLine:
    return HistoryLine(iteration, 1.0, 0.1, 1.17, 41.52, 1.0 if test_error else None, test_error, 1.0)


def train(progress: Progress, clock: Clock, run: PlannedRun, goal: int = 80, engine: str = "eager") -> None:
    """Report 40 iterations of two seconds."""
    progress.started(run, 0, goal, engine, "a reason")
    for iteration in range(1, 41):
        clock.now += 2.0
        progress.stepped(run, iteration)
    progress.logged(run, line(40, 78.61))


def report_everything(run: PlannedRun, stream: TextIO) -> None:
    """Report runs that begin and end in every way."""
    clock = Clock()
    runs = [replace(run, seed=seed) for seed in range(11)]
    progress = Progress([(one, 80) for one in runs[3:]], len(runs), stream, clock)
    for one in runs[:2]:
        progress.skipped(one, "finished at iteration 80 already")
    row = replace(runs[2], cells=("a/top1", "b/top1", "a/top5", "c/top1"))
    progress.skipped(row, "paused at iteration 40 already")
    train(progress, clock, runs[3])
    progress.logged(runs[3], line(41, None))  # in the same ten seconds: no line of its own
    clock.now += 10
    progress.logged(runs[3], replace(line(45, None), train_loss=None, train_error=None))
    progress.finishing(runs[3], None)
    progress.ended(runs[3], a_record())
    progress.checking(runs[4], "graph", 1)
    progress.checking(runs[4], "graph", 2)
    progress.started(runs[4], 40, 80, "eager", "as requested")
    progress.logged(runs[4], line(40, 12.5))  # of the interrupted session
    progress.finishing(runs[4], 2_400.0)
    progress.ended(runs[4], a_record())
    for one, goal, iteration in ((runs[5], 40, 40), (runs[6], 80, 40), (runs[7], 80, 80)):
        train(progress, clock, one, goal, "graph")
        progress.ended(one, a_record(status="partial", iteration=iteration))
    train(progress, clock, runs[8], engine="graph")
    progress.ended(runs[8], a_record(status="diverged", divergence=Divergence(9, 0.1, None, None)))
    progress.started(runs[9], 0, 80, "graph", "a reason")
    progress.warned(runs[9], "begun elsewhere")
    progress.failed(runs[9], "no memory; use a smaller batch\nOK: all finished\x1b[2J")
    progress.waiting(1, 60.0)
    progress.skipped(runs[10], "another process works on it")
    progress.all_done()


def report_turns(run: PlannedRun, stream: TextIO) -> None:
    """Report two runs that take turns, of which one ends and a third begins, and then one loses its lease."""
    clock = Clock()
    first, second, third, lost = (replace(run, seed=seed) for seed in range(4))
    progress = Progress([(one, 80) for one in (first, second, third, lost)], 4, stream, clock)
    progress.started(first, 70, 80, "graph", "a reason")
    progress.stepped(first, 71)
    progress.started(second, 0, 80, "graph", "a reason")
    for iteration in range(72, 81):
        clock.now += 5
        progress.stepped(first, iteration)
        progress.stepped(second, iteration - 71)
    progress.logged(first, line(80, 78.61))
    progress.logged(second, line(9, 90.0))
    progress.finishing(first, None)
    progress.ended(first, a_record())
    progress.started(lost, 0, 80, "graph", "a reason")
    progress.skipped(lost, "this process lost its lease on the run")
    progress.started(third, 0, 80, "graph", "a reason")


def test_runs_that_take_turns_are_told_apart(run: PlannedRun) -> None:
    stream = io.StringIO()
    report_turns(run, stream)
    with terminal(80) as (shown, screen):
        report_turns(run, shown)
        assert_golden("progress_in_turns", stream.getvalue() + "\n".join(screen.lines()))


def test_everything_is_reported_in_plain_lines(run: PlannedRun) -> None:
    stream = io.StringIO()
    report_everything(run, stream)
    assert_golden("progress", stream.getvalue())


def test_terminal_keeps_one_line_per_run(run: PlannedRun) -> None:
    with terminal(80) as (stream, screen):
        report_everything(run, stream)
        assert_golden("progress_on_a_terminal", "\n".join(screen.lines()))


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (40, "1:20 left, 40/80, test error 78.61 %"),
        (60, "1:20 left, [1/1] preact/resnet110, seed 0, 40/80, lr 0.1"),
        (80, "1:20 left, [1/1] preact/resnet110, seed 0, 40/80, test error 78.61 %, lr 0.1"),
    ],
)
def test_line_shows_the_run_and_the_facts_that_fit(run: PlannedRun, columns: int, shown: str) -> None:
    clock = Clock()
    with terminal(columns) as (stream, screen):
        progress = Progress([(run, 80)], 1, stream, clock)
        train(progress, clock, run)
        progress.logged(run, line(40, None))  # the last test error stays
        assert screen.lines()[-1] == shown


def test_line_follows_the_width_of_the_terminal(run: PlannedRun) -> None:
    clock = Clock()
    with terminal(200) as (stream, screen):
        progress = Progress([(run, 80)], 1, stream, clock)
        train(progress, clock, run)
        assert screen.lines()[-1].endswith("train error 41.52 %, lr 0.1")
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        progress.logged(run, line(40, None))
        assert screen.lines()[-1] == "1:20 left, [1/1] preact/resnet110, seed 0, 40/80"


def test_closed_terminal_does_not_end_a_training(run: PlannedRun) -> None:
    class Closed(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

        def flush(self) -> None:
            raise ValueError("I/O operation on closed file")

    report_everything(run, Closed())


def test_no_averaging_is_announced_of_a_net_without_bn(run: PlannedRun) -> None:
    with patch.dict(PLACEMENTS, bare=Placement("bare", "", "", between=("relu",))):
        run, stream = replace(run, net=replace(run.net, placement="bare")), io.StringIO()
        progress = Progress([(run, 1)], 1, stream)
        progress.started(run, 0, 1, "eager", "")
        progress.finishing(run, None)
    assert stream.getvalue().endswith("\n    testing 40 images\n")
