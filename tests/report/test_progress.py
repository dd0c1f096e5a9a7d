from __future__ import annotations

import io
from dataclasses import replace

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(iteration: int, test_error: float | None) -> HistoryLine:
    return HistoryLine(iteration, 1.0, 0.1, 1.5, 50.0, 1.0 if test_error else None, test_error, 1.0)


def told(run: PlannedRun, stream: io.StringIO, goal: int = 80, **ending: object) -> str:
    other = replace(run, seed=1)
    progress = Progress([(run, 80)], 2, stream)
    progress.skipped(other, "finished at iteration 80 already")
    progress.started(run, 0, goal, "eager", "a reason")
    for iteration in range(1, 41):
        progress.stepped(iteration)
    progress.logged(line(20, None))
    progress.logged(line(40, 12.5))
    if not ending:
        progress.finishing()
    progress.ended(a_record(**ending))
    return stream.getvalue()


def test_plain_lines_name_run_tests_speed_and_time_left(run: PlannedRun) -> None:
    lines = told(run, io.StringIO()).splitlines()
    assert lines[0].startswith("[1/2] preact/resnet110 (preact_resnet110(depth=14), seed 1, run ")
    assert lines[0].endswith("finished at iteration 80 already")
    assert lines[1].startswith("[2/2] ")
    assert lines[1].endswith(": to iteration 80")
    assert lines[2] == "    engine eager: a reason"
    assert "40/80  lr 0.1, train loss 1.5000, error 50.00 %, test error 12.50 %, " in lines[3]
    assert lines[3].endswith("in all")
    assert lines[4].strip() == "averaging BN statistics over the training set, testing"
    assert lines[5].strip().startswith("test error 6.50 % (moving averages 6.75 %), 0:00:12")
    assert len(lines) == 6  # nothing for iteration 20: no test, and no ten seconds since the last line


def test_a_terminal_gets_a_bar(run: PlannedRun) -> None:
    text = told(run, Terminal())
    assert "40/80" in text
    assert "\r" in text
    assert "test error 6.50 %" in text


@pytest.mark.parametrize(
    ("goal", "ending", "message"),
    [
        (40, {"iteration": 40}, "paused at iteration 40 as asked; a later --stop-at, or none, continues it"),
        (80, {"iteration": 40}, "paused at iteration 40; the same command continues it"),
        (80, {"iteration": 80}, "stopped after iteration 80, before its final test; the same command makes it"),
        (
            80,
            {"iteration": 40, "status": "diverged"},
            "diverged: not finite from iteration 5 on, at learning rate 0.1; first in the",
        ),
        (
            80,
            {"status": "diverged", "divergence": Divergence(9, 0.1, None, None)},
            "iterations before did not show where",
        ),
    ],
)
def test_how_a_run_without_a_result_ended(run: PlannedRun, goal: int, ending: dict[str, object], message: str) -> None:
    assert message in told(run, io.StringIO(), goal, **{"status": "partial", **ending})


def test_a_prefix_says_of_how_much(run: PlannedRun) -> None:
    assert ": to iteration 40 of 80" in told(run, io.StringIO(), 40, status="partial", iteration=40)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_line_that_an_interrupted_session_owed_comes_before_any_step(run: PlannedRun, stream: io.StringIO) -> None:
    progress = Progress([(run, 40)], 1, stream)
    progress.started(run, 40, 80, "eager", "a reason")
    progress.logged(line(40, 12.5))
    progress.stepped(41)
    progress.ended(a_record())
    assert ("test error 12.50 %\n" in stream.getvalue()) is not stream.isatty()


def test_a_run_that_fails_or_is_lost_closes_its_bar_and_counts_once(run: PlannedRun) -> None:
    stream = Terminal()
    progress = Progress([(run, 80)], 2, stream)
    progress.started(run, 0, 80, "eager", "a reason")
    progress.warned(run, "begun elsewhere")
    progress.failed(run, "no memory")
    progress.skipped(replace(run, seed=1), "another process is at it")
    lines = [line.split("\r")[-1].strip() for line in stream.getvalue().split("\n")]
    assert f"{run.id}: begun elsewhere" in lines
    assert any(line.startswith("[1/2] ") and line.endswith(": error: no memory") for line in lines)
    assert lines[-2].startswith("[2/2] ")
    assert lines[-2].endswith(": another process is at it")


def test_a_loss_that_is_not_finite_is_said(run: PlannedRun) -> None:
    stream = io.StringIO()
    progress = Progress([(run, 80)], 1, stream)
    progress.started(run, 0, 80, "eager", "a reason")
    progress.stepped(1)
    progress.logged(replace(line(20, 90.0), train_loss=None, train_error=None))
    assert "train loss not finite" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_engine_is_named_once_until_it_changes(run: PlannedRun, stream: io.StringIO) -> None:
    progress = Progress([], 4, stream)
    for seed, engine in enumerate(["graph", "graph", "eager", "compile", "compile"]):
        progress.started(replace(run, seed=seed), 0, 80, engine, "a reason")
        progress.stepped(1)
        progress.ended(a_record())
    lines = [line.split("\r")[-1] for line in stream.getvalue().split("\n")]
    assert [line for line in lines if "engine" in line] == [
        "    engine graph: a reason",
        "    engine eager: a reason",
        "    engine compile: a reason; the first step compiles the net, which can take minutes",
    ]
    assert next(i for i, line in enumerate(lines) if "engine" in line) == 1, "right behind the run's name"
