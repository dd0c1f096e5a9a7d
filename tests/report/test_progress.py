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

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.report.progress import Progress
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun, plan
from paperbench.runs.record import Divergence
from paperbench.specs.table import Table
from tests.helpers import a_record


@pytest.fixture
def run(table2: Table, small_dataset: ImageDataset) -> PlannedRun:
    (planned,) = plan(table2, table2.cells("preact/resnet110"), "smoke", "fp32", 1, {"digits": small_dataset})
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


def line(iteration: int, test_error: float | None) -> HistoryLine:
    return HistoryLine(iteration, 1.0, 0.1, 1.17, 41.52, 1.0 if test_error else None, test_error, 1.0)


def train(run: PlannedRun, stream: TextIO, goal: int = 80, **ending: object) -> Progress:
    """Report one finished run, and 40 iterations of another."""
    progress = Progress([(run, 80)], 2, stream)
    progress.skipped(replace(run, seed=1), "finished at iteration 80 already")
    progress.started(run, 0, goal, "eager", "a reason")
    for iteration in range(1, 41):
        progress.stepped(iteration)
    progress.logged(line(20, None))
    progress.logged(line(40, 78.61))
    if not ending:
        progress.finishing("averaging BN statistics over 9 training images, testing 4 images", 59.0)
    progress.ended(a_record(**ending))
    return progress


def plain(run: PlannedRun, goal: int = 80, **ending: object) -> list[str]:
    stream = io.StringIO()
    train(run, stream, goal, **ending)
    return stream.getvalue().splitlines()


def test_plain_lines_name_run_tests_speed_and_time_left(run: PlannedRun) -> None:
    lines = plain(run)
    assert lines[0].startswith("[1/2] preact/resnet110 (preact_resnet110(depth=14), seed 1, run ")
    assert lines[0].endswith("finished at iteration 80 already")
    assert lines[1].startswith("[2/2] ")
    assert lines[1].endswith(": to iteration 80")
    assert lines[2] == "    engine eager: a reason"
    assert "40/80  lr 0.1, train loss 1.1700, error 41.52 %, test error 78.61 %, " in lines[3]
    assert " left in this run, " in lines[3]
    assert lines[3].endswith(" in all runs, one after another")
    assert lines[4].strip() == "averaging BN statistics over 9 training images, testing 4 images"
    assert lines[5].strip() == "test error 6.50 % (moving averages 6.75 %), took 0:12"
    assert len(lines) == 6  # none for iteration 20: no test, and no ten seconds since the last line


def test_terminal_keeps_one_line_per_run(run: PlannedRun) -> None:
    with terminal(60) as (stream, screen):
        train(run, stream)
        assert screen.lines() == [
            "[1/2] preact/resnet110, seed 1: finished at iteration 80",
            "    already",
            "    engine eager: a reason",
            "[2/2] preact/resnet110, seed 0: test error 6.50 %, took",
            "    0:12",
            "",
        ]


@pytest.mark.parametrize(
    ("columns", "start"),
    [
        (40, "0:00 left |█████     |"),
        (60, "0:00 left, [1/2] preact/resnet110, seed 0 |█████     |"),
        (80, "0:00 left, [1/2] preact/resnet110, seed 0, 40/80, loss 1.00 |█████     |"),
        (200, "0:00 left, [1/2] preact/resnet110, seed 0, 40/80, loss 1.00, err 41.5, test 78.6 |█████     |"),
    ],
)
def test_bar_shows_the_run_and_the_facts_that_fit(
    run: PlannedRun, columns: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    with terminal(columns) as (stream, screen):
        progress = Progress([(run, 80)], 2, stream)
        progress.started(run, 0, 80, "eager", "a reason")
        progress.stepped(40)
        progress.logged(line(40, 78.61))
        progress.logged(replace(line(40, None), train_loss=0.999))  # the last test error stays
        assert screen.lines()[-1].startswith(start)


def test_bar_follows_the_width_of_the_terminal(run: PlannedRun) -> None:
    with terminal(200) as (stream, screen):
        progress = Progress([(run, 80)], 1, stream)
        progress.started(run, 0, 80, "eager", "a reason")
        assert "loss" not in screen.lines()[-1]
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        progress.stepped(1)
        progress.logged(line(1, None))
        assert screen.lines()[-1].rstrip().endswith("left |▏         |")


def test_closed_terminal_does_not_end_a_training(run: PlannedRun) -> None:
    class Closed(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

        def flush(self) -> None:
            raise ValueError("I/O operation on closed file")

    train(run, Closed())


@pytest.mark.parametrize(
    ("goal", "ending", "message"),
    [
        (40, {"iteration": 40}, "paused at iteration 40 of 80 as requested; a later --stop-at, or none, resumes it"),
        (80, {"iteration": 40}, "paused at iteration 40 of 80; the same command resumes it"),
        (80, {"iteration": 80}, "stopped after iteration 80, before its final test; the same command runs the test"),
        (80, {"status": "diverged", "divergence": Divergence(9, 0.1)}, "diverged: "),
    ],
)
def test_run_without_result_is_reported(run: PlannedRun, goal: int, ending: dict[str, object], message: str) -> None:
    lines = plain(run, goal, **{"status": "partial", **ending})
    assert message in lines[-1]
    assert lines[1].endswith(f": to iteration {goal} of 80" if goal < 80 else ": to iteration 80")
    assert " 40/80  lr" in lines[3]


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["finished at iteration 80 already"] * 2, ["[1-2/2] 2 runs: finished at iteration 80 already"]),
        (["finished at iteration 80 already"], ["seed 0: finished at iteration 80 already"]),
        (
            ["finished at iteration 80 already", "paused at iteration 40 already"],
            ["seed 0: finished at iteration 80 already", "seed 1: paused at iteration 40 already"],
        ),
    ],
)
def test_runs_that_are_skipped_for_one_reason_take_one_line(
    run: PlannedRun, reasons: list[str], expected: list[str]
) -> None:
    with terminal(80) as (stream, screen):
        progress = Progress([], len(reasons), stream)
        for seed, why in enumerate(reasons):
            progress.skipped(replace(run, seed=seed), why)
        progress.all_done()
        *lines, _ = screen.lines()
    assert [line.rpartition("resnet110, ")[2] for line in lines] == expected


def test_history_line_of_an_interrupted_session_may_precede_any_step(run: PlannedRun) -> None:
    stream = io.StringIO()
    progress = Progress([(run, 40)], 1, stream)
    progress.started(run, 40, 80, "eager", "a reason")
    progress.logged(line(40, 12.5))
    assert "resumed at 40" in stream.getvalue()
    assert stream.getvalue().endswith("test error 12.50 %\n")


def test_failed_run_is_counted_once_and_its_error_is_complete(run: PlannedRun) -> None:
    error = "no memory; " + "use a smaller batch or " * 5 + "another GPU"
    with terminal(80) as (stream, screen):
        progress = Progress([(run, 80)], 2, stream)
        progress.started(run, 0, 80, "eager", "a reason")
        progress.warned(run, "begun elsewhere")
        progress.failed(run, error)
        progress.skipped(replace(run, seed=1), "another process works on it")
        progress.all_done()
        _, warning, *failure, skipped, _ = screen.lines()
    assert warning == f"    {run.id}: begun elsewhere"
    assert failure[0].startswith("[1/2] ")
    assert " ".join(" ".join(failure).split()).endswith(f": error: {error}")
    assert skipped == "[2/2] preact/resnet110, seed 1: another process works on it"


def test_loss_that_is_not_finite_is_reported(run: PlannedRun) -> None:
    broken = replace(line(20, 90.0), train_loss=None, train_error=None)
    stream = io.StringIO()
    with terminal(100) as (on_terminal, screen):
        for one in (stream, on_terminal):
            progress = Progress([(run, 80)], 1, one)
            progress.started(run, 0, 80, "eager", "a reason")
            progress.stepped(1)
            progress.logged(broken)
        assert "loss not finite, test 90.0 |" in screen.lines()[-1]
    assert "train loss not finite" in stream.getvalue()


def test_engine_is_named_once_until_it_changes(run: PlannedRun) -> None:
    stream = io.StringIO()
    progress = Progress([], 4, stream)
    for seed, engine in enumerate(["graph", "graph", "eager", "compile", "compile"]):
        progress.started(replace(run, seed=seed), 0, 80, engine, "a reason")
        progress.stepped(1)
        progress.ended(a_record())
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "engine" in line] == [
        "    engine graph: a reason",
        "    engine eager: a reason",
        "    engine compile: a reason",
    ]
    assert "engine" in lines[1]


def test_comparison_of_engines_warns_of_compilation(run: PlannedRun) -> None:
    stream = io.StringIO()
    progress = Progress([], 1, stream)
    progress.checking(run, "compile", 1)
    progress.checking(run, "graph", 2)
    progress.started(run, 8, 80, "compile", "the run started with it")
    assert [line for line in stream.getvalue().splitlines() if "engine" in line] == [
        f"    {run.id}: comparing the first steps of engine compile with eager ones; compiling can take minutes",
        f"    {run.id}: comparing the first steps of engine graph in 2 processes with those of eager in one",
        "    engine compile: the run started with it; compiling can take minutes",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_long_final_phase_says_how_long_it_takes(run: PlannedRun, is_terminal: bool) -> None:
    stream = io.StringIO()
    with terminal(100) as (on_terminal, screen):
        progress = Progress([(run, 80)], 1, on_terminal if is_terminal else stream)
        progress.started(run, 0, 80, "eager", "a reason")
        progress.finishing("testing 50,000 images twice", 2_400.0)
        lines = screen.lines() if is_terminal else stream.getvalue().splitlines()
    assert "    testing 50,000 images twice (about 40 minutes)" in lines


def test_row_stands_for_its_cells_if_they_share_the_run(run: PlannedRun) -> None:
    stream = io.StringIO()
    progress = Progress([], 1, stream)
    progress.skipped(replace(run, cells=("a/top1", "b/top1", "a/top5", "c/top1")), "someone is training it")
    progress.all_done()
    assert stream.getvalue().startswith("[1/1] a, b/top1, c/top1 (preact_resnet110(depth=14), seed 0, run ")


def test_text_of_others_stays_in_one_line(run: PlannedRun) -> None:
    stream = io.StringIO()
    Progress([], 1, stream).failed(run, "x\nOK: all finished\x1b[2J")
    assert stream.getvalue().endswith("x\\nOK: all finished\\x1b[2J\n")
