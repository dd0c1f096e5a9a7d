from __future__ import annotations

import errno
import gc
import getpass
import json
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from paperbench.data.dataset import ImageDataset
from paperbench.errors import format_bytes
from paperbench.runs.checkpoints import Checkpoints
from paperbench.runs.lease import Lease
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Session
from paperbench.runs.resume import Checkpoint
from paperbench.runs.session import RunSession, SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.worker import Incompatible, Worker, is_done, remaining
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import Precision
from paperbench.training import trainer as trainer_module
from paperbench.training.engines import Way
from paperbench.training.memory import memory_needed
from paperbench.training.trainer import Trainer
from tests.conftest import ROOT
from tests.helpers import a_session
from tests.runs.running import (
    CPU,
    Log,
    assert_same,
    edit_checkpoint,
    newest_state,
    plan_run,
    tiny_recipe,
    train,
    without_times,
)


def files_of(directory: RunDirectory) -> dict[str, bytes]:
    """The files of a run, but for why it failed."""
    return {path.name: path.read_bytes() for path in directory.path.iterdir() if path != directory.failure_file}


def monitored(run: PlannedRun, **changes: Any) -> PlannedRun:
    monitoring = replace(run.recipe.monitoring, **changes)
    return replace(run, recipe=replace(run.recipe, monitoring=monitoring))


def test_finished_run_leaves_record_history_checkpoint_and_weights(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(run, tmp_path)
    record = directory.read_record()
    assert record == log.record
    assert (record.status, record.iteration) == ("finished", 20)
    assert record.result
    assert 0 <= record.result.test_error <= 100
    history = directory.history()
    assert history == log.lines
    assert [line.iteration for line in history] == [5, 10, 15, 20]
    assert [line.test_error is not None for line in history] == [False, True, False, True]
    assert [line.lr for line in history] == [0.1, 0.1, pytest.approx(0.01), pytest.approx(0.01)]
    assert [line.epoch for line in history] == [0.8, 1.6, 2.4, 3.2]
    assert history[-1].test_error == record.result.moving_average_test_error
    assert record.result.best_test_error == min(line.test_error for line in history if line.test_error is not None)
    assert newest_state(directory)["iteration"] == 20
    assert set(files_of(directory)) == {record.files.checkpoint, "history.jsonl", "model.safetensors", "record.json"}
    assert list((tmp_path / "leases").iterdir()) == []


def test_history_lines_at_log_and_test_intervals(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(monitored(run, log_every=6, test_every=7), tmp_path)
    history = directory.history()
    assert [(line.iteration, line.test_error is not None) for line in history] == [
        *((6, False), (7, True), (12, False), (14, True), (18, False), (20, True))
    ]
    assert [line.lr for line in history] == [0.1, 0.1, 0.1, *[pytest.approx(0.01)] * 3], "the rate drops after 12"
    assert log.record.result
    assert history[-1].test_error == log.record.result.moving_average_test_error


def test_run_is_done_when_finished_or_paused_at_stop_at(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    partial = directory.read_record()
    assert partial
    assert is_done(partial, run, Limits(stop_at=8))
    assert not is_done(partial, run, Limits(stop_at=9))
    assert not is_done(partial, run, Limits())
    assert not is_done(None, run, Limits())
    # killed after the last checkpoint and before the final test
    assert not is_done(replace(partial, iteration=20, sessions=(a_session(20),)), run, Limits())
    assert remaining([run], Store(tmp_path), Limits(), "refuse") == [(run, 12)]
    directory, _ = train(run, tmp_path)
    assert is_done(directory.read_record(), run, Limits())
    assert remaining([run], Store(tmp_path), Limits(), "refuse") == []


def test_finished_run_is_skipped_and_missing_result_is_added(run: PlannedRun, tmp_path: Path) -> None:
    directory, first = train(run, tmp_path)
    before = files_of(directory)
    _, again = train(run, tmp_path)
    assert again.steps == []
    assert again.skips == [(run.id, "finished at iteration 20 already")]
    assert files_of(directory) == before
    files = replace(first.record.files, weights_sha256=None)
    directory.write_record(replace(first.record, status="partial", result=None, files=files))
    _, again = train(run, tmp_path)
    assert again.steps == []
    assert again.record.result == first.record.result


def test_sessions_and_seconds_accumulate(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=7)
    past = [directory.read_record()]
    for _ in range(2):
        limits = Limits()

        class SignalledAtOnce(Log):
            def started(self, *_: object) -> None:
                limits.signal = 15  # noqa: B023

        train(run, tmp_path, limits, SignalledAtOnce())
        past.append(directory.read_record())
    assert [len(record.sessions) for record in past if record] == [1, 2, 3]
    assert past[0].seconds < past[1].seconds < past[2].seconds
    assert {record.iteration for record in past if record} == {7}
    assert len(directory.checkpoints.newest_first()) == 1
    _, log = train(run, tmp_path)
    assert log.lines[0].seconds > past[2].seconds, "seconds include earlier sessions"


@pytest.mark.parametrize("failing", [(Checkpoints, "write"), (RunDirectory, "write_history"), (Checkpoints, "prune")])
def test_error_during_save_loses_nothing(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[type, str]
) -> None:
    """At iteration 16 of 20. The record still refers to existing files."""
    directory, _ = train(run, tmp_path, stop_at=8)
    log, method = Log(), getattr(*failing)

    def fail(self: Any, *arguments: Any, **names: Any) -> Any:
        if log.steps and log.steps[-1] == 16:
            raise OSError("the disk is gone")
        return method(self, *arguments, **names)

    monkeypatch.setattr(*failing, fail)
    with pytest.raises(OSError, match="the disk is gone"):
        train(run, tmp_path, log=log)
    assert log.steps[-1] == 16
    record = directory.read_record()
    assert record
    assert record.files.checkpoint in files_of(directory)
    assert list((tmp_path / "leases").iterdir()) == []
    monkeypatch.undo()
    assert_same(train(run, tmp_path)[0], expected)


def test_run_stops_at_next_step_after_lost_heartbeat(run: PlannedRun, tmp_path: Path) -> None:
    leases: list[Lease] = []

    def new_session(run: PlannedRun, directory: RunDirectory, lease: Lease, setting: SessionSetting) -> RunSession:
        leases.append(lease)
        return RunSession(run, directory, lease, setting)

    log = Log(lambda iteration: setattr(leases[0], "is_lost", iteration == 12))
    Worker(Store(tmp_path), SessionSetting(CPU, Limits(), log), new_session=new_session).run_all([run])
    assert log.steps == [*range(1, 13), *range(9, 21)], "resumed, as nobody else trains it"
    assert "this process lost its lease on the run" in log.skips[0][1]


def test_sessions_that_take_turns_leave_what_each_leaves_alone(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    store, sessions, leases = Store(tmp_path), [], []
    for one in (run, replace(run, seed=1)):
        leases.append(lease := store.lease(one.id, one.spec))
        assert lease.acquire()
        session = RunSession(one, store.directory(one.id, lease.check), lease, SessionSetting(CPU, Limits(), Log()))
        sessions.append(session.train(Way("eager", False, 0), "auto", 20))
    assert [*zip(*sessions, strict=True)] == [(iteration,) * 2 for iteration in range(1, 21)]
    for lease in leases:
        lease.release()
    assert without_times(store.directory(run.id)) == without_times(expected), "with the same weights"


def test_two_checkpoints_are_kept_and_one_at_the_end(run: PlannedRun, tmp_path: Path) -> None:
    checkpoints = Store(tmp_path).directory(run.id).checkpoints

    def iterations() -> list[int]:
        return [file.iteration for file in checkpoints.newest_first()]

    kept = {}
    train(run, tmp_path, log=Log(lambda iteration: kept.update({iteration: iterations()})))
    assert (kept[8], kept[9], kept[17], iterations()) == ([], [8], [16, 8], [20])


@pytest.mark.parametrize(
    ("share", "at_once", "step", "save", "written"),
    [
        (1e-9, 1, 1, 5, [1, 20]),  # the first, whose cost is unknown, and the last, which is always saved
        (0.5, 1, 1, 5, [1, 11, 20]),
        (1.0, 2, 1, 5, [1, 11, 20]),  # the other saves, too
        (1.0, 1, 1, 5, [1, 6, 11, 16, 20]),
        (0.01, 1, 5_000, 200, [1, 5, 9, 13, 17, 20]),  # minutes, as on a slow disk: after a hundred times as long
    ],
)
def test_saving_stays_within_its_share_of_time(
    run: PlannedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    at_once: int,
    step: int,
    save: int,
    written: list[int],
) -> None:
    """On a fake clock; seconds."""
    now = 0.0
    saved = []
    write = Checkpoints.write

    def tick(_: int) -> None:
        nonlocal now
        now += step

    def slowly(self: Checkpoints, iteration: int, data: bytes) -> Any:
        nonlocal now
        now += save
        saved.append(iteration)
        return write(self, iteration, data)

    monkeypatch.setattr(Checkpoints, "write", slowly)
    often = monitored(run, checkpoint_every=1, checkpoint_share=share)
    train(often, tmp_path, Limits(clock=lambda: now), Log(tick), setting={"at_once": at_once})
    assert saved == written


def test_checkpoint_is_not_written_twice(run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end and at a pause, the due checkpoint is also the last of the session."""
    written: list[int] = []
    write = Checkpoints.write
    monkeypatch.setattr(Checkpoints, "write", lambda self, *of: written.append(of[0]) or write(self, *of))
    often = monitored(run, checkpoint_every=10)
    train(often, tmp_path, stop_at=10)
    train(often, tmp_path)
    assert written == [10, 20]


@pytest.mark.parametrize("fails", [False, True])
def test_memory_of_a_run_is_freed_when_it_ends(run: PlannedRun, tmp_path: Path, fails: bool) -> None:
    """Even with the garbage collector disabled, since the next run needs the memory."""
    held: list[weakref.ref[Any]] = []

    class Recording(Trainer):
        def test(self, *arguments: Any) -> Any:
            held.extend(weakref.ref(part) for part in (self, self.model, self.model.fc.weight))
            if fails:
                error = RuntimeError("CUDA error: out of memory")
                raise error  # a reference cycle: the variable, the error, its traceback, this frame
            return super().test(*arguments)

    gc.disable()
    try:
        train(run, tmp_path, setting={"new_trainer": Recording})
        assert len(held) == (6 if fails else 9), "once more with recomputation"
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


def test_session_that_cannot_resume_is_freed_before_the_restart(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    edit_checkpoint(directory, lambda checkpoint: Checkpoint(checkpoint.facts, {"iteration": torch.tensor(8)}))
    made: list[weakref.ref[Any]] = []

    class Recording(Trainer):
        def __init__(self, *arguments: Any, **names: Any) -> None:
            assert [ref() for ref in made] == [None] * len(made)
            made.append(weakref.ref(self))
            super().__init__(*arguments, **names)

    _, log = train(run, tmp_path, incompatible="restart", setting={"new_trainer": Recording})
    assert len(made) == 2
    assert log.record.status == "finished"


THIS = trainer_module.NUMERICS_VERSION


def age(directory: RunDirectory, numerics: int = THIS - 1, torch_version: str = torch.__version__) -> None:
    """Make a run one of other versions of the code or of torch."""

    def aged(session: Session) -> Session:
        environment = replace(session.environment, torch=torch_version)
        return replace(session, code=replace(session.code, numerics=numerics), environment=environment)

    def change(checkpoint: Checkpoint) -> Checkpoint:
        sessions = tuple(map(aged, checkpoint.facts.sessions))
        return replace(checkpoint, facts=replace(checkpoint.facts, sessions=sessions))

    edit_checkpoint(directory, change)
    record = directory.read_record()
    assert record
    file = directory.checkpoints.newest_first()[0].path.name
    files = replace(record.files, checkpoint=file)
    directory.write_record(replace(record, sessions=tuple(map(aged, record.sessions)), files=files))


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({}, f"numerics version {THIS - 1} (this is {THIS}). Resuming would mix versions."),
        ({"numerics": THIS, "torch_version": "1.13.1"}, "by torch 1.13.1 (this is"),
    ],
)
def test_versions_are_never_mixed(run: PlannedRun, tmp_path: Path, versions: dict[str, Any], message: str) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    age(directory, **versions)
    before = files_of(directory)
    _, refused = train(run, tmp_path)
    assert message in refused.failure
    assert "`--incompatible restart` restarts it" in refused.failure
    assert files_of(directory) == before

    _, anew = train(run, tmp_path, incompatible="restart")
    assert anew.steps == list(range(1, 21))
    assert not anew.record.is_mixed


def test_run_that_mixes_versions_is_not_resumed(run: PlannedRun, tmp_path: Path) -> None:
    """The version before could resume a run of another version, and wrote checkpoints of its own."""
    directory, log = train(run, tmp_path, stop_at=8)
    (session,) = log.record.sessions
    earlier = replace(session, last=3, code=replace(session.code, numerics=THIS - 1))

    def mix(checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, facts=replace(checkpoint.facts, sessions=(earlier, session)))

    edit_checkpoint(directory, mix)
    assert f"numerics version {THIS - 1} (this is {THIS})" in train(run, tmp_path)[1].failure


def test_finished_run_of_other_version_restarts_on_request(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path)
    age(directory)
    old = files_of(directory)
    _, refused = train(run, tmp_path)
    expected = f"by numerics version {THIS - 1} (this is {THIS}; `--incompatible restart` restarts it)"
    assert expected in refused.skips[0][1]
    assert remaining([run], Store(tmp_path), Limits(), "restart") == [(run, 20)]
    directory, log = train(run, tmp_path, incompatible="restart")
    assert log.steps == list(range(1, 21))
    assert (log.record.numerics, log.record.is_mixed) == ((THIS,), False)
    assert files_of(RunDirectory(tmp_path / "superseded" / f"{run.id}-1")) == old
    _, again = train(run, tmp_path, incompatible="restart")
    assert again.steps == []


def test_restart_leaves_what_a_successor_has_finished(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is suspended right before it moves the old files away; meanwhile another one restarts the run."""
    directory, _ = train(run, tmp_path, stop_at=8)
    age(directory)
    finished: dict[str, bytes] = {}
    rename = Path.replace

    def suspended(self: Path, target: Path) -> Path:
        if self == directory.path and (tmp_path / "leases" / f"{run.id}.1").exists():
            monkeypatch.setattr(Path, "replace", rename)
            (tmp_path / "leases" / f"{run.id}.1").unlink()  # as a process does that takes over
            train(run, tmp_path, incompatible="restart")
            finished.update(files_of(directory))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", suspended)
    _, log = train(run, tmp_path, incompatible="restart")
    assert "lost its lease" in log.skips[0][1]
    assert log.skips[1:] == [(run.id, "finished at iteration 20 already")]
    assert files_of(directory) == finished


@pytest.mark.parametrize("incompatible", ["refuse", "restart"])
def test_record_that_cannot_be_read_is_not_damaged(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, incompatible: Incompatible
) -> None:
    """It may belong to another user, or the file server may have restarted."""
    directory, _ = train(run, tmp_path)
    old = files_of(directory)

    def fail(path: Path, limit: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr("paperbench.runs.hashed.read_at_most", fail)
        _, log = train(run, tmp_path, incompatible=incompatible)
    assert "record.json cannot be read: Stale file handle. Restore it or make it readable" in log.failure
    assert files_of(directory) == old
    assert not (tmp_path / "superseded").exists()


@pytest.mark.parametrize(
    ("error", "iteration"),
    [(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), 0), (None, 9)],
    ids=["CUDA", "CPU"],
)
def test_out_of_memory_fails_the_run_with_advice(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, error: Exception | None, iteration: int
) -> None:
    class Exhausting(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.iteration == iteration:
                if error:
                    raise error
                torch.empty(2**60, dtype=torch.uint8)  # raises the error that torch raises on a CPU
            super().step(rate)

    directory, log = train(run, tmp_path, setting={"new_trainer": Exhausting})
    assert "cpu ran out of memory with preact_resnet20(depth=8) in fp32." in log.failure
    assert "`--device`" in log.failure
    assert "`--precision bf16`" in log.failure
    assert "--engine" not in log.failure
    record = directory.read_record()
    if iteration:
        assert record
        assert (record.status, record.iteration, record.result) == ("partial", 8, None)
        assert "The last checkpoint is kept, and the same command resumes from it." in log.failure
    else:
        assert record is None
        assert "No checkpoint exists yet: the same command restarts the run." in log.failure
    assert_same(train(run, tmp_path)[0], expected)


def with_free_memory(size: int, new_trainer: Callable[..., Trainer] = Trainer) -> dict[str, Any]:
    """The setting of a session on a device with so many free bytes."""
    return {"memory_free": lambda _: size, "new_trainer": new_trainer}


class Recomputing:
    """Makes trainers, and notes which of them recompute their units."""

    def __init__(self, new: type[Trainer] = Trainer) -> None:
        self._new = new
        self.made: list[bool] = []

    def __call__(self, *arguments: Any, recompute: bool, **options: Any) -> Trainer:
        self.made.append(recompute)
        return self._new(*arguments, recompute=recompute, **options)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_run_recomputes_units_only_while_memory_is_short(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, precision: Precision
) -> None:
    run = plan_run(tiny_recipe(paper_recipe), small_dataset, precision=precision)
    needed, less = (memory_needed(run.net, run.recipe, precision, recompute=recompute) for recompute in (False, True))
    assert less < needed
    directory, log = train(run, tmp_path, setting=with_free_memory(less - 1))
    assert f"in {precision} needs about {format_bytes(needed)} for a training step" in log.failure
    assert f"({format_bytes(less)} if the backward pass recomputes the residual units" in log.failure
    assert ("`--precision bf16`" in log.failure) is (precision == "fp32")
    assert f"cpu has {format_bytes(less - 1)} free." in log.failure
    assert files_of(directory) == {}

    trainers = Recomputing()
    _, log = train(run, tmp_path, stop_at=8, setting=with_free_memory(less, trainers))
    (warning,) = log.warnings
    assert f"needs about {format_bytes(needed)} for a training step, and cpu has {format_bytes(less)} free" in warning
    assert f"recomputes the residual units, which needs {format_bytes(less)}" in warning
    part, log = train(run, tmp_path, setting=with_free_memory(needed, trainers))
    assert (log.warnings, trainers.made) == ([], [True, False])
    assert_same(part, train(run, tmp_path / "uninterrupted")[0])


def test_groups_side_by_side_need_more_memory(run: PlannedRun, tmp_path: Path) -> None:
    setting = with_free_memory(1)
    _, log = train(run, tmp_path, device=torch.device("cuda"), engine="graph", setting=setting)
    needed = memory_needed(run.net, run.recipe, "fp32", run.side, 2)
    assert f"needs about {format_bytes(needed)} for a training step" in log.failure
    assert "choose `--engine eager`, which keeps activations of 8 images, not 16" in log.failure


def test_no_other_engine_is_advised_if_not_even_a_net_fits(run: PlannedRun, tmp_path: Path) -> None:
    def exhausting(*_: object, **__: object) -> Any:
        return torch.empty(2**60, dtype=torch.uint8)

    _, log = train(run, tmp_path, setting={"new_trainer": exhausting})
    assert "cpu ran out of memory" in log.failure
    assert "--engine" not in log.failure


def test_run_that_runs_out_of_memory_goes_on_with_recomputation(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    class Exhausting(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.iteration == 9 and trainers.made == [False]:
                torch.empty(2**60, dtype=torch.uint8)
            super().step(rate)

    trainers = Recomputing(Exhausting)
    directory, log = train(run, tmp_path, setting={"new_trainer": trainers})
    assert trainers.made == [False, True]
    assert log.steps == [*range(1, 10), *range(9, 21)], "resumed from the checkpoint of iteration 8"
    (warning,) = log.warnings
    assert warning.startswith("cpu ran out of memory with preact_resnet20(depth=8) in fp32; it goes on from the last")
    assert "recomputes the residual units" in warning
    assert log.failures == []
    assert_same(directory, expected)


def test_run_that_recomputes_already_is_not_tried_again(run: PlannedRun, tmp_path: Path) -> None:
    class Exhausting(Trainer):
        def step(self, rate: float | None = None) -> None:
            torch.empty(2**60, dtype=torch.uint8)

    trainers = Recomputing(Exhausting)
    free = memory_needed(run.net, run.recipe, "fp32", recompute=True)
    _, log = train(run, tmp_path, setting=with_free_memory(free, trainers))
    assert trainers.made == [True]
    assert "cpu ran out of memory" in log.failure


def test_other_runtime_errors_propagate(run: PlannedRun, tmp_path: Path) -> None:
    class Broken(Trainer):
        def step(self, rate: float | None = None) -> None:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        train(run, tmp_path, setting={"new_trainer": Broken})
    assert list((tmp_path / "leases").iterdir()) == []


def test_record_contains_no_private_names(expected: RunDirectory) -> None:
    text = expected.record_file.read_text()
    for private in (
        os.uname().nodename,
        getpass.getuser(),
        str(Path.home()),
        str(expected.path.parents[1]),
        str(ROOT),
    ):
        assert private not in text
    assert set(json.loads(text)["sessions"][0]["environment"]) == {
        *("python", "torch", "torchvision", "timm", "numpy", "cuda", "cudnn", "system", "device", "threads")
    }


def test_time_limit() -> None:
    now = 100.0
    limits = Limits(max_seconds=10, clock=lambda: now)
    assert not limits.exhausted
    now = 110.0
    assert limits.exhausted
    assert not Limits().exhausted
