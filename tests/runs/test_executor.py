from __future__ import annotations

import getpass
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.runs import executor
from paperbench.runs.executor import execute, is_done
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun, run_spec
from paperbench.runs.record import Record
from paperbench.runs.store import HistoryLine, RunDirectory, Store
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe, WarmUp
from paperbench.training.checkpoint import load_checkpoint, save_checkpoint
from paperbench.training.trainer import NUMERICS_VERSION
from tests.conftest import ROOT

CPU = torch.device("cpu")


class Log:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.lines: list[HistoryLine] = []

    def started(self, run: PlannedRun, iteration: int, last_iteration: int) -> None:
        self.goal = last_iteration

    def stepped(self, iteration: int) -> None:
        self.steps.append(iteration)

    def logged(self, line: HistoryLine) -> None:
        self.lines.append(line)

    def finishing(self) -> None:
        self.finished = True

    def ended(self, record: Record) -> None:
        self.record = record


@pytest.fixture
def run(paper_recipe: Recipe, small_dataset: ImageDataset) -> PlannedRun:
    recipe = replace(
        paper_recipe,
        batch_size=16,
        iterations=20,
        warm_up=WarmUp(0.01, 4),
        drops=Drops((12,), 0.1),
        batch_norm=BatchNormSettings(8, 1e-5, 0.1, "reestimated"),
        monitoring=Monitoring(log_every=5, test_every=10, checkpoint_every=8),
    )
    return planned(recipe, small_dataset)


def planned(recipe: Recipe, dataset: ImageDataset, net_name: str = "preact_resnet20") -> PlannedRun:
    net = resolve(net_name, depth=8)
    spec = run_spec(net, recipe, dataset.fingerprint, "paper", "fp32")
    return PlannedRun(spec, 0, net, net_name, recipe, dataset, ("preact/resnet110",))


def go(run: PlannedRun, root: Path, **limits: float) -> tuple[RunDirectory, Log]:
    directory, log = Store(root).directory(run.id), Log()
    execute(run, directory, CPU, Limits(**limits), log)
    return directory, log


def without_times(record: Record | None) -> Record:
    assert record
    return replace(record, seconds=0.0, sessions=())


def test_a_finished_run_leaves_record_history_and_checkpoint(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = go(run, tmp_path)
    record = directory.read_record()
    assert record == log.record
    assert record.status == "finished"
    assert record.iteration == 20
    assert record.result
    assert 0 <= record.result.test_error <= 100
    history = directory.history()
    assert [line.iteration for line in history] == [5, 10, 15, 20]
    assert [line.test_error is not None for line in history] == [False, True, False, True]
    assert [line.lr for line in history] == [0.1, 0.1, pytest.approx(0.01), pytest.approx(0.01)]
    assert [line.epoch for line in history] == [0.8, 1.6, 2.4, 3.2]
    assert history[-1].test_error == record.result.moving_average_test_error
    assert record.result.best_test_error == min(line.test_error for line in history if line.test_error is not None)
    assert load_checkpoint(directory.checkpoint_file, run.id)["trainer"]["iteration"] == 20


@pytest.mark.parametrize("stops", [(3,), (5, 10), (8, 9, 19)])
def test_a_run_stopped_and_continued_is_the_uninterrupted_one(
    run: PlannedRun, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    whole, _ = go(run, tmp_path / "whole")
    for stop in stops:
        part, log = go(run, tmp_path / "part", stop_at=stop)
        assert log.record.status == "partial"
        assert log.record.iteration == stop
    part, log = go(run, tmp_path / "part")
    ends = [0, *stops, 20]
    assert [(s.first, s.last) for s in log.record.sessions] == list(itertools.pairwise(ends))
    assert sum(s.seconds for s in log.record.sessions) == pytest.approx(log.record.seconds, abs=0.1)
    assert without_times(part.read_record()) == without_times(whole.read_record())
    lines = [[replace(line, seconds=0.0) for line in d.history()] for d in (part, whole)]
    assert lines[0] == lines[1]
    states = [load_checkpoint(d.checkpoint_file, run.id)["trainer"]["model"] for d in (part, whole)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])


def test_what_was_written_after_the_last_checkpoint_is_written_anew(run: PlannedRun, tmp_path: Path) -> None:
    """As after a kill between checkpoints: the history is ahead of the checkpoint, its last line cut short."""
    directory, _ = go(run, tmp_path / "killed", stop_at=8)
    with open(directory.history_file, "a") as stream:
        stream.write(directory.history()[0].to_json().replace('"iteration": 5', '"iteration": 10'))
        stream.write('{"iteration": 15, "ep')
    directory, _ = go(run, tmp_path / "killed")
    whole, _ = go(run, tmp_path / "whole")
    lines = [[replace(line, seconds=0.0) for line in d.history()] for d in (directory, whole)]
    assert lines[0] == lines[1]


def test_done_means_finished_diverged_or_at_the_pause(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    partial = directory.read_record()
    assert is_done(partial, run, Limits(stop_at=8))
    assert not is_done(partial, run, Limits(stop_at=9))
    assert not is_done(partial, run, Limits())
    assert not is_done(None, run, Limits())
    # killed after the last checkpoint, before the result
    assert not is_done(replace(partial, iteration=20), run, Limits())
    directory, _ = go(run, tmp_path)
    assert is_done(directory.read_record(), run, Limits())


def test_a_run_killed_before_its_result_gets_it_without_training(run: PlannedRun, tmp_path: Path) -> None:
    directory, first = go(run, tmp_path)
    directory.write_record(replace(first.record, status="partial", result=None))
    directory, second = go(run, tmp_path)
    assert second.steps == []
    assert second.record.result == first.record.result


def test_a_finished_run_is_left_as_it_is(run: PlannedRun, tmp_path: Path) -> None:
    """Whoever finished it: another process may have, since this one read the records."""
    directory, _ = go(run, tmp_path)
    before = directory.record_file.read_bytes()
    _, again = go(run, tmp_path)
    assert again.steps == []
    assert directory.record_file.read_bytes() == before


def test_sessions_and_seconds_only_grow(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=7)
    past = [directory.read_record()]
    for _ in range(2):
        go(run, tmp_path, max_seconds=1e-9)
        past.append(directory.read_record())
    assert [len(record.sessions) for record in past] == [1, 2, 3]
    assert past[0].seconds < past[1].seconds < past[2].seconds
    assert {record.iteration for record in past} == {7}


def test_the_record_never_claims_more_than_the_checkpoint_holds(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    before = directory.record_file.read_bytes()

    def full_disk(*_: object) -> None:
        raise PaperbenchError("no room")

    monkeypatch.setattr(executor, "save_checkpoint", full_disk)
    with pytest.raises(PaperbenchError, match="no room"):
        go(run, tmp_path)
    assert directory.record_file.read_bytes() == before
    monkeypatch.undo()
    assert go(run, tmp_path)[1].record.status == "finished"


def test_a_missing_checkpoint_is_told_and_nothing_is_trained_anew(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    history = directory.history_file.read_bytes()
    directory.checkpoint_file.unlink()
    with pytest.raises(PaperbenchError, match=r"checkpoint.pt is missing, while the record .* speaks of 8 iterations"):
        go(run, tmp_path)
    assert directory.history_file.read_bytes() == history


def test_numerics_are_not_mixed_within_a_run(run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(run, tmp_path, stop_at=8)
    monkeypatch.setattr(executor, "NUMERICS_VERSION", NUMERICS_VERSION + 1)
    with pytest.raises(PaperbenchError, match="going on would mix them"):
        go(run, tmp_path)


def test_a_checkpoint_that_does_not_fit_is_told(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    contents = load_checkpoint(directory.checkpoint_file, run.id)
    del contents["trainer"]["model"]["stem.conv.weight"]
    save_checkpoint(directory.checkpoint_file, run.id, contents)
    with pytest.raises(PaperbenchError, match="does not fit this version of paperbench"):
        go(run, tmp_path)


def test_no_time_left_means_no_step(run: PlannedRun, tmp_path: Path) -> None:
    limits = Limits(max_seconds=1e-9)
    log = Log()
    execute(run, Store(tmp_path).directory(run.id), CPU, limits, log)
    assert log.steps == []
    assert log.record.status == "partial"


def test_a_training_that_overflows_ends_as_diverged_and_is_kept(run: PlannedRun, tmp_path: Path) -> None:
    hot = planned(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)
    directory, log = go(hot, tmp_path)
    assert log.record.status == "diverged"
    assert log.record.iteration == 5
    assert log.record.result is None
    assert directory.history()[-1].train_loss is None
    assert "NaN" not in directory.history_file.read_text()
    assert is_done(directory.read_record(), hot, Limits())
    # as after a kill between checkpoint and record, or if somebody deletes a damaged record
    directory.record_file.unlink()
    lines = len(directory.history())
    directory, again = go(hot, tmp_path)
    assert again.steps == []
    assert again.record.status == "diverged"
    assert len(directory.history()) == lines


def test_a_net_that_only_its_last_steps_break_has_diverged_too(run: PlannedRun, tmp_path: Path) -> None:
    """The training loss of an iteration is measured before its update."""
    broken = planned(
        replace(run.recipe, learning_rate=1e30, warm_up=WarmUp(0.01, 19), drops=Drops((), 0.1)), run.dataset
    )
    _, log = go(broken, tmp_path)
    assert log.lines[-1].train_loss is not None
    assert log.record.status == "diverged"
    assert log.record.result is None


def test_a_record_names_no_person_and_no_place(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=1)
    text = directory.record_file.read_text()
    for private in (os.uname().nodename, getpass.getuser(), str(Path.home()), str(tmp_path), str(ROOT)):
        assert private not in text
    assert set(json.loads(text)["environment"]) == {
        *("python", "torch", "torchvision", "timm", "numpy", "cuda", "cudnn", "system", "device", "threads")
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_pauses_the_run_and_the_same_command_continues_it(
    tmp_path: Path, number: signal.Signals, short_specs: Path
) -> None:
    command = [sys.executable, "-m", "paperbench", "run", "table2", "--profile", "smoke", "--cells", "preact/resnet110"]
    command += ["--results", str(tmp_path / "results"), "--tables", str(short_specs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    for line in process.stderr:
        if "train loss" in line:
            break
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "paused at iteration" in errors
    assert "partial" in output
    (record,) = Store(tmp_path / "results").records().records
    assert 0 < record.iteration < 100_000
    continued = subprocess.run(
        [*command, "--stop-at", str(record.iteration + 2)], capture_output=True, text=True, env=environment
    )
    assert continued.returncode == 0, continued.stderr
    assert f"continued at {record.iteration:,}" in continued.stderr
    (again,) = Store(tmp_path / "results").records().records
    assert (again.iteration, len(again.sessions)) == (record.iteration + 2, 2)


@pytest.fixture
def short_specs(tmp_path: Path) -> Path:
    """The shipped tables, with a smoke profile whose run is tiny per iteration but never ends by itself."""
    import shutil

    for folder in ("experiments", "expected"):
        shutil.copytree(ROOT / folder, tmp_path / "specs" / folder)
    (tmp_path / "specs" / "experiments" / "profiles.yaml").write_text(
        """
schema: 1
profiles:
  paper: {title: exact}
  smoke:
    title: endless
    depth: {basic: 8, bottleneck: 11}
    dataset: digits
    seeds: 1
    recipe:
      batch_size: 8
      iterations: 100000
      batch_norm: {group: 8}
      monitoring: {log_every: 5, test_every: 10, checkpoint_every: 1000}
"""
    )
    return tmp_path / "specs"


def test_limits_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = Limits(max_seconds=10, _started=100.0)
    assert limits.seconds_left == 10
    assert not limits.exhausted
    now = 110.0
    assert limits.exhausted
    assert not Limits().exhausted
