"""A run that was interrupted, however and however often, ends as the one that was not."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.runs import store as store_module
from paperbench.runs.hashed import SCHEMA
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe
from paperbench.specs.run_spec import Precision
from paperbench.training import evaluation
from paperbench.training.trainer import Trainer
from paperbench.typed import to_json
from tests.helpers import HalfWritten, at_each_dealing_with_the_disk
from tests.runs.running import Log, assert_same, go, planned, tiny


@pytest.mark.parametrize("stops", [(3,), (5, 8, 9, 10, 19)])
def test_a_run_paused_and_resumed_is_the_uninterrupted_one(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    for stop in stops:
        part, log = go(run, tmp_path, stop_at=stop)
        assert (log.record.status, log.record.iteration) == ("partial", stop)
    part, log = go(run, tmp_path)
    assert [s.last for s in log.record.sessions] == [*stops, 20]
    assert_same(part, whole)


@pytest.mark.parametrize(
    ("net", "changes"),
    [
        ("resnet110_bn_after_addition", {"batch_norm": BatchNormSettings(16, 1e-5, 0.1, "moving_average")}),
        ("resnet110_dropout_shortcut", {"momentum_form": "pytorch"}),  # draws noise of its own
        ("resnet110_exclusive_gating", {"momentum": 0.0}),
        ("resnet110_conv_shortcut", {"momentum_form": "nesterov"}),
    ],
)
def test_random_pauses_of_other_nets_and_recipes_change_nothing(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, net: str, changes: dict[str, Any]
) -> None:
    """The pauses hit the warm-up's end (4), the drop (12), ends of epochs (every 6.25) and the middle of windows."""
    run = planned(tiny(paper_recipe, **changes), small_dataset, net)
    whole, _ = go(run, tmp_path / "whole")
    for stop in sorted(random.Random(net).sample(range(1, 20), 3)):
        go(run, tmp_path / "part", stop_at=stop)
        torch.rand(5)  # what a process draws between two runs does not matter
    assert_same(go(run, tmp_path / "part")[0], whole)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph", "compile"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "bf16-fp32-stream"])
def test_a_run_on_a_gpu_paused_and_resumed_is_the_uninterrupted_one(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, precision: Precision, engine: str
) -> None:
    """Through its end: BN averaged anew and the final tests included. The engine is the one that began the run."""
    run, cuda = planned(tiny(paper_recipe), small_dataset, precision=precision), torch.device("cuda")
    whole, _ = go(run, tmp_path / "whole", device=cuda, engine=engine)
    go(run, tmp_path / "part", device=cuda, engine=engine, stop_at=3)
    for stop in (10, 13):
        go(run, tmp_path / "part", device=cuda, stop_at=stop)
    part, log = go(run, tmp_path / "part", device=cuda)
    assert [s.engine for s in log.record.sessions] == [engine] * 4
    assert_same(part, whole)


@pytest.mark.gpu
def test_a_run_on_a_gpu_may_change_between_engines_that_train_the_same_numbers(run: PlannedRun, tmp_path: Path) -> None:
    cuda = torch.device("cuda")
    whole, _ = go(run, tmp_path / "whole", device=cuda, engine="eager")
    go(run, tmp_path / "part", device=cuda, engine="graph", stop_at=7)
    part, log = go(run, tmp_path / "part", device=cuda, engine="eager")
    assert log.warnings == []
    assert_same(part, whole)


class Signalled(Log):
    """Receives a signal after a step, or when the final test begins."""

    def __init__(self, limits: Limits, at: int | str) -> None:
        super().__init__(self.receive)
        self._limits, self._at = limits, at

    def receive(self, moment: int | str) -> None:
        if moment == self._at:
            self._limits.signal = signal.SIGTERM

    def finishing(self) -> None:
        self.receive("end")


@pytest.mark.parametrize("at", [5, 10, 20, "end"])
def test_a_signal_never_waits_for_a_test_and_the_next_session_makes_up_for_it(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | str
) -> None:
    """Iterations 10 and 20 are tested, and after 20 BN is averaged anew: no batch of these may begin any more."""
    limits = Limits()
    forward_passes = []
    evaluate = evaluation.evaluate

    def counting(model: Any, batches: Any, *arguments: Any) -> Any:
        def counted() -> Any:
            for batch in batches:
                yield batch
                forward_passes.append(limits.signal)

        return evaluate(model, counted(), *arguments)

    monkeypatch.setattr("paperbench.training.trainer.evaluate", counting)
    _, log = go(run, tmp_path, limits, Signalled(limits, at))
    assert (log.record.status, log.record.iteration) == ("partial", 20 if at == "end" else at)
    assert signal.SIGTERM not in forward_passes
    monkeypatch.undo()
    assert_same(go(run, tmp_path)[0], whole)


def test_a_signal_in_the_middle_of_the_last_averaging_leaves_a_run_to_be_finished(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits()
    one_pass = Trainer._one_pass

    def signalled(self: Trainer) -> Any:
        for number, images in enumerate(one_pass(self)):
            yield images
            if number == 3:
                limits.signal = signal.SIGTERM

    monkeypatch.setattr(Trainer, "_one_pass", signalled)
    _, log = go(run, tmp_path, limits)
    assert (log.record.status, log.record.iteration) == ("partial", 20)
    monkeypatch.undo()
    part, log = go(run, tmp_path)
    assert log.steps == []
    assert_same(part, whole)


def kill_at(point: int) -> None:
    """Have this process killed at the n-th of its dealings with the disk; each write, sync and rename has some."""
    count = itertools.count(1)

    def tick() -> bool:
        if next(count) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    at_each_dealing_with_the_disk(tick)
    store_module.open = lambda *of: HalfWritten(open(*of), tick)  # type: ignore[attr-defined]  # noqa: SIM115


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_point_of_a_save_loses_nothing(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, full: bool
) -> None:
    """Lines of history at 2, 4 and 5, checkpoints at 2, 4 and 5, then the result: killed in the middle of these."""
    recipe = tiny(paper_recipe, iterations=5, drops=Drops((4,), 0.1), monitoring=Monitoring(2, 4, 2, 1.0))
    run = planned(recipe, small_dataset)
    whole, _ = go(run, tmp_path / "whole")
    survived, stride = 0, 1 if full else 6
    for point in itertools.count(1, stride):
        root = tmp_path / f"killed at {point}"
        child = os.fork()
        if child == 0:
            try:
                kill_at(point)
                go(run, root)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        part, log = go(run, root)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert log.skips or log.record.status == "finished"
        assert_same(part, whole)
        assert not list(part.path.glob("*.tmp"))
        survived += 1
    assert survived > 50 / stride


@pytest.mark.parametrize("is_ahead", [True, False])
def test_the_history_of_a_resumed_run_comes_from_its_checkpoint(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, is_ahead: bool
) -> None:
    """As after a kill between checkpoints, with the last line cut short; or if somebody removes the file."""
    directory, _ = go(run, tmp_path, stop_at=8)
    if is_ahead:
        line = to_json(directory.history()[0])
        directory.history_file.write_text(f"{line}\n{line.replace('5', '10')}\n{line[:20]}")
    else:
        directory.history_file.unlink()
    seen = []
    log = Log(lambda _: seen.append([line.iteration for line in directory.history()]))
    assert_same(go(run, tmp_path, log=log)[0], whole)
    assert seen[0] == [5], "from the first step on"


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path
) -> None:
    go(run, tmp_path, stop_at=8)
    directory, _ = go(run, tmp_path, stop_at=13)
    newest, before = directory.checkpoints.newest_first()
    newest.path.write_bytes(newest.read()[:-1] + b"!")
    directory, log = go(run, tmp_path)
    aside = f"{newest.path.name}.damaged"
    assert log.warnings == [
        f"{newest.path} does not hold what was written: its hash is another. It is kept as {aside}.",
        f"resuming from {before.path.name}.",
    ]
    assert log.steps == list(range(9, 21))
    assert [path.name for path in directory.checkpoints.damaged()] == [aside]
    assert_same(directory, whole)


@pytest.mark.parametrize("lost", ["damaged", "removed", "all but the history"])
def test_a_run_that_has_lost_its_checkpoints_starts_again_only_if_asked_to(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, lost: str
) -> None:
    directory, _ = go(run, tmp_path, stop_at=20 if lost.startswith("all") else 8)
    history = directory.history_file.read_bytes()
    for file in directory.checkpoints.newest_first():
        file.path.write_bytes(b"") if lost == "damaged" else file.path.unlink()
    if lost != "removed":
        directory.record_file.unlink()
    for incompatible in ("refuse", "continue"):
        _, log = go(run, tmp_path, incompatible=incompatible)  # type: ignore[arg-type]
        told = ", while its record says 8 iterations" if lost == "removed" else ""
        assert f"has no readable checkpoint{told}. Restore one, or start this run again" in log.failure
        assert log.steps == []
        assert directory.history_file.read_bytes() == history
    directory, log = go(run, tmp_path, incompatible="restart")
    aside = tmp_path / "superseded" / f"{run.id}-1"
    assert log.warnings[-1] == f"starts again; its old files are now in {aside}."
    assert (aside / "history.jsonl").read_bytes() == history
    assert_same(directory, whole)


def test_a_run_of_which_only_a_damaged_history_is_left_starts_again(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path
) -> None:
    directory = Store(tmp_path).directory(run.id)
    directory.path.mkdir(parents=True)
    directory.history_file.write_text("{\n")
    assert_same(go(run, tmp_path)[0], whole)


def test_a_checkpoint_of_another_run_is_refused_and_kept(run: PlannedRun, whole: RunDirectory, tmp_path: Path) -> None:
    other, _ = go(replace(run, seed=1), tmp_path, stop_at=8)
    directory = go(run, tmp_path, stop_at=5)[0]
    shutil.copy(other.checkpoints.newest_first()[0].path, directory.path)
    _, log = go(run, tmp_path)
    assert f"belongs to run {other.path.name}. Use the version that wrote it, remove it, or start" in log.failure
    assert directory.checkpoints.damaged() == [], "it holds what was written"
    assert_same(go(run, tmp_path, incompatible="restart")[0], whole)


@pytest.mark.parametrize("stops", [(13, 8), (8, 20)])
def test_stores_merge_by_copying_in_either_direction(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, stops: tuple[int, int]
) -> None:
    """Whichever record and history win, as with `cp -r`, the run resumes from the farther checkpoint."""
    for place, stop in zip("ab", stops, strict=True):
        go(run, tmp_path / place, stop_at=stop)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    directory, log = go(run, tmp_path / "a")
    assert log.steps == list(range(max(stops) + 1, 21))
    assert_same(directory, whole)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("safetensors.torch.load", MemoryError()),
        ("torch.nn.Module.load_state_dict", RuntimeError("CUDA error: out of memory")),
        ("torch.nn.Module.load_state_dict", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
    ],
)
def test_too_little_memory_to_resume_condemns_no_checkpoint(
    run: PlannedRun,
    whole: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: Exception,
) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}

    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, exhausted)
    for incompatible in ("refuse", "restart"):
        _, log = go(run, tmp_path, incompatible=incompatible)  # type: ignore[arg-type]
        assert "cpu ran out of memory" in log.failure
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before
    monkeypatch.undo()
    assert_same(go(run, tmp_path)[0], whole)


@pytest.mark.parametrize("stop_at", [8, 20])
def test_a_damaged_record_is_set_aside_and_made_again_from_the_checkpoint(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, stop_at: int
) -> None:
    directory, _ = go(run, tmp_path, stop_at=stop_at)
    directory.record_file.write_text("{")
    directory, log = go(run, tmp_path)
    assert log.warnings[0].startswith(f"{directory.record_file} ")
    assert log.warnings[0].endswith(". It is kept as record.json.damaged; the checkpoint gives a new one.")
    assert (directory.path / "record.json.damaged").read_text() == "{"
    assert_same(directory, whole)


def test_a_record_of_another_schema_is_left_to_its_version(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path
) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    directory.record_file.write_text('{"schema": 99}')
    _, log = go(run, tmp_path)
    told = f"has schema 99, and this version of paperbench reads {SCHEMA}. Use the version that wrote it"
    assert told in log.failure
    assert "`paperbench run --incompatible restart` trains the run anew and keeps the old files aside" in log.failure
    assert directory.record_file.read_text() == '{"schema": 99}'
    directory, _ = go(run, tmp_path, incompatible="restart")
    assert (tmp_path / "superseded" / f"{run.id}-1" / "record.json").read_text() == '{"schema": 99}'
    assert_same(directory, whole)


def test_how_often_a_run_is_saved_changes_nothing(run: PlannedRun, whole: RunDirectory, tmp_path: Path) -> None:
    often = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(5, 10, 1, 1.0)))
    assert_same(go(often, tmp_path)[0], whole)


def test_files_that_vanish_while_a_run_is_at_work_are_made_again(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / run.id

    def vandalise(iteration: int) -> None:
        if iteration == 7:
            (folder / "history.jsonl").unlink()
        if iteration == 14:
            shutil.rmtree(folder)

    assert_same(go(run, tmp_path, log=Log(vandalise))[0], whole)


def test_a_session_does_not_depend_on_the_clock_of_the_day(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = itertools.cycle([0.0, 4e9, -1e9])
    monkeypatch.setattr("time.time", lambda: next(days))
    directory, log = go(run, tmp_path)
    assert 0 < log.record.seconds < 600
    assert all(0 <= line.seconds < 600 for line in directory.history())
    assert_same(directory, whole)


def test_other_files_in_the_folder_of_a_run_stay(run: PlannedRun, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / run.id
    folder.mkdir(parents=True)
    for name in ("notes.txt", "checkpoint-best.safetensors"):
        (folder / name).write_text("mine")
    go(run, tmp_path)
    assert {(folder / name).read_text() for name in ("notes.txt", "checkpoint-best.safetensors")} == {"mine"}
