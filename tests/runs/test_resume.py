"""A run that was interrupted, however and however often, ends as the one that was not."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.writer import THREAD
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe
from paperbench.specs.run_spec import Precision
from paperbench.training import evaluation
from paperbench.training.trainer import Trainer
from tests.helpers import at_each_dealing_with_the_disk
from tests.runs.running import Log, assert_same, go, planned, tiny


@pytest.mark.parametrize("stops", [(3,), (5, 10), (8, 9, 19)])
def test_a_run_paused_and_continued_is_the_uninterrupted_one(
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
    assert_same(part, whole)


@pytest.mark.parametrize("net", ["resnet164_relu_only_preact", "resnet110_bn_after_addition"])
def test_random_pauses_of_other_nets_and_recipes_change_nothing(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, net: str
) -> None:
    """The pauses hit the warm-up's end (4), the drop (12), ends of epochs (every 6.25) and the middle of windows."""
    recipe = tiny(
        paper_recipe,
        momentum_form="pytorch" if "164" in net else "caffe",
        batch_norm=BatchNormSettings(16, 1e-5, 0.1, "moving_average"),
    )
    run = planned(recipe, small_dataset, net)
    whole, _ = go(run, tmp_path / "whole")
    pauses = random.Random(net)
    for trial in range(2):
        for stop in sorted(pauses.sample(range(1, 20), 6)):
            go(run, tmp_path / f"part{trial}", stop_at=stop)
        part, _ = go(run, tmp_path / f"part{trial}")
        assert_same(part, whole)


@pytest.mark.parametrize(
    "net",
    ["resnet110_dropout_shortcut", "resnet110_exclusive_gating", "resnet110_conv_shortcut", "preact_resnet110_1layer"],
)
def test_nets_that_draw_their_own_noise_and_others_of_table_1_and_3_go_on_exactly(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, net: str
) -> None:
    run = planned(tiny(paper_recipe), small_dataset, net)
    whole, _ = go(run, tmp_path / "whole")
    for stop in (7, 13):
        go(run, tmp_path / "part", stop_at=stop)
        torch.rand(5)  # what a process draws between two runs is its own affair
    part, log = go(run, tmp_path / "part")
    assert log.record.status == "finished"
    assert_same(part, whole)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph", "compile"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "bf16-fp32-stream"])
def test_a_run_on_a_gpu_paused_and_continued_is_the_uninterrupted_one(
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


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compile"])
def test_a_divergence_on_a_gpu_is_found_whatever_the_engine(run: PlannedRun, tmp_path: Path, engine: str) -> None:
    hot = planned(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)
    _, log = go(hot, tmp_path, device=torch.device("cuda"), engine=engine)
    assert (log.record.status, log.record.iteration) == ("diverged", 5)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")


class Signalled(Log):
    """Is hit by a signal the moment something happens for the n-th time."""

    def __init__(self, limits: Limits, happening: str, n: int) -> None:
        super().__init__()
        self._limits, self._happening, self._left = limits, happening, n

    def _happens(self, what: str) -> None:
        if what == self._happening:
            self._left -= 1
            if self._left == 0:
                self._limits.signal = signal.SIGTERM

    def stepped(self, iteration: int) -> None:
        super().stepped(iteration)
        self._happens("step")

    def finishing(self) -> None:
        self._happens("end")


@pytest.mark.parametrize(
    ("happening", "n", "paused_at"),
    [
        ("step", 1, 1),
        ("step", 4, 4),
        ("step", 5, 5),
        ("step", 10, 10),
        ("step", 13, 13),
        ("step", 20, 20),
        ("end", 1, 20),
    ],
)
def test_a_signal_never_waits_for_a_test_to_end_and_the_test_is_made_up_for(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happening: str, n: int, paused_at: int
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
    part, log = go(run, tmp_path / "part", limits, Signalled(limits, happening, n))
    assert (log.record.status, log.record.iteration) == ("partial", paused_at)
    assert signal.SIGTERM not in forward_passes
    monkeypatch.undo()
    part, _ = go(run, tmp_path / "part")
    whole, _ = go(run, tmp_path / "whole")
    assert_same(part, whole)


def test_a_signal_in_the_middle_of_the_last_averaging_leaves_a_run_to_be_finished(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits()
    one_pass = Trainer._one_pass

    def signalled(self: Trainer) -> Any:
        for number, images in enumerate(one_pass(self)):
            yield images
            if number == 3:
                limits.signal = signal.SIGTERM

    monkeypatch.setattr(Trainer, "_one_pass", signalled)
    part, log = go(run, tmp_path / "part", limits)
    assert (log.record.status, log.record.iteration) == ("partial", 20)
    monkeypatch.undo()
    part, log = go(run, tmp_path / "part")
    assert log.steps == []
    assert_same(part, go(run, tmp_path / "whole")[0])


def test_what_was_written_after_the_last_checkpoint_is_written_anew(run: PlannedRun, tmp_path: Path) -> None:
    """As after a kill between checkpoints: the history is ahead of the checkpoint, its last line cut short."""
    directory, _ = go(run, tmp_path / "killed", stop_at=8)
    with open(directory.history_file, "a") as stream:
        stream.write(directory.history()[0].to_json().replace('"iteration": 5', '"iteration": 10'))
        stream.write('{"iteration": 15, "ep')
    directory, _ = go(run, tmp_path / "killed")
    assert_same(directory, go(run, tmp_path / "whole")[0])


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    run: PlannedRun, tmp_path: Path, damage: str
) -> None:
    directory, _ = go(run, tmp_path / "part", stop_at=8)
    directory, _ = go(run, tmp_path / "part", stop_at=13)
    newest, before = directory.checkpoints.newest_first()
    assert (newest.iteration, before.iteration) == (13, 8)
    data = bytearray(newest.read())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    else:
        data.clear()
    newest.path.write_bytes(data)
    directory, log = go(run, tmp_path / "part")
    assert log.warnings == [
        f"{newest.path} does not hold what was written: its hash is another. It is kept as {newest.path.name}.damaged.",
        f"going on from {before.path.name}.",
    ]
    assert log.steps == list(range(9, 21))
    assert [path.name for path in directory.checkpoints.damaged()] == [f"{newest.path.name}.damaged"]
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_anew_unasked(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path / "part", stop_at=8)
    for file in directory.checkpoints.newest_first():
        file.path.write_bytes(b"")
    directory.record_file.unlink()  # as if the first checkpoint's record had never been written
    for _ in range(2):
        _, log = go(run, tmp_path / "part")
        assert "has no checkpoint that can be read. Restore one, or start this run again" in log.failure
        assert log.steps == []
    directory, log = go(run, tmp_path / "part", incompatible="restart")
    assert len(list((tmp_path / "part" / "superseded" / f"{run.id}-1").glob("*.damaged"))) == 1
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_checkpoint_of_another_run_is_not_gone_on_from(run: PlannedRun, tmp_path: Path) -> None:
    other, _ = go(replace(run, seed=1), tmp_path, stop_at=8)
    directory = go(run, tmp_path, stop_at=5)[0]
    shutil.copy(other.checkpoints.newest_first()[0].path, directory.path)
    _, log = go(run, tmp_path)
    assert f"belongs to run {other.path.name}. Remove it, or start this run again" in log.failure
    assert directory.checkpoints.damaged() == [], "it holds what was written"
    directory, _ = go(run, tmp_path, incompatible="restart")
    assert_same(directory, go(run, tmp_path / "whole")[0])


@pytest.mark.parametrize("stops", [(8, 13), (13, 8), (8, 20), (20, 8)])
def test_stores_merge_by_copying_in_either_direction(run: PlannedRun, tmp_path: Path, stops: tuple[int, int]) -> None:
    """Whichever record and history win, as with `cp -r`, the farther checkpoint is gone on from."""
    for place, stop in zip("ab", stops, strict=True):
        go(run, tmp_path / place, stop_at=stop)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    directory, log = go(run, tmp_path / "a")
    assert log.steps == list(range(max(stops) + 1, 21))
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_checkpoint_of_another_format_is_refused_and_kept(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    newer = directory.checkpoints.write(9, b"PK\3\4 of another age")
    _, log = go(run, tmp_path)
    assert f"{newer.path} cannot be read (" in log.failure
    assert "`--incompatible restart` trains it anew" in log.failure
    assert newer.read()


@pytest.mark.parametrize("where", ["paperbench.training.checkpoint.torch.load", "torch.nn.Module.load_state_dict"])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: out of memory")])
def test_too_little_memory_to_continue_condemns_no_checkpoint(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    directory, _ = go(run, tmp_path / "part", stop_at=8)
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}

    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, exhausted)
    for incompatible in ("refuse", "restart"):
        _, log = go(run, tmp_path / "part", incompatible=incompatible)
        assert "cpu ran out of memory" in log.failure
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before
    monkeypatch.undo()
    assert_same(go(run, tmp_path / "part")[0], go(run, tmp_path / "whole")[0])


@pytest.mark.parametrize("stop_at", [8, 20])
def test_a_damaged_record_is_set_aside_and_made_again_from_the_checkpoint(
    run: PlannedRun, tmp_path: Path, stop_at: int
) -> None:
    directory, _ = go(run, tmp_path / "part", stop_at=stop_at)
    directory.record_file.write_text("{")
    directory, log = go(run, tmp_path / "part")
    assert "record.json is no JSON" in log.warnings[0]
    assert log.warnings[0].endswith(". It is kept as record.json.damaged; a new one is made from the checkpoint.")
    assert (directory.path / "record.json.damaged").read_text() == "{"
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_record_of_another_schema_is_left_to_its_version(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    directory.record_file.write_text('{"schema": 4}')
    _, log = go(run, tmp_path)
    assert "has schema 4, and this version of paperbench reads 1. Use the version that wrote it" in log.failure
    assert directory.record_file.read_text() == '{"schema": 4}'


def test_a_record_of_another_schema_with_its_checkpoint_is_begun_anew_if_asked_to(
    run: PlannedRun, tmp_path: Path
) -> None:
    """As the advice says; without the record, the checkpoint is refused too: it holds other things."""
    directory, _ = go(run, tmp_path / "part", stop_at=8)
    for file in directory.checkpoints.newest_first():
        file.path.unlink()
    stream = io.BytesIO()
    torch.save({"format": 2, "run": run.id, "torch": str(torch.__version__), "contents": {"trainer": {}}}, stream)
    old = directory.checkpoints.write(8, stream.getvalue()).path
    record = directory.record_file.read_text().replace('"schema": 1', '"schema": 3')
    directory.record_file.write_text(record)
    _, log = go(run, tmp_path / "part")
    assert "has schema 3, and this version of paperbench reads 1." in log.failure
    assert "`paperbench run --incompatible restart` trains the run anew and keeps the old files aside" in log.failure
    directory.record_file.unlink()
    _, log = go(run, tmp_path / "part")
    assert f"{old.name} has format 2, and this version of paperbench reads 3. Continue with that" in log.failure
    directory.record_file.write_text(record)
    _, log = go(run, tmp_path / "part", incompatible="restart")
    aside = tmp_path / "part" / "superseded" / f"{run.id}-1"
    assert log.warnings == [f"begun anew; what there was of it is now in {aside}."]
    assert (aside / "record.json").read_text() == record
    assert (aside / old.name).read_bytes() == stream.getvalue()
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_run_of_which_only_a_whole_history_is_left_is_not_begun_anew_unasked(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path)
    history = directory.history_file.read_bytes()
    directory.record_file.unlink()
    directory.checkpoints.newest_first()[0].path.unlink()
    _, log = go(run, tmp_path)
    assert "has no checkpoint that can be read. Restore one" in log.failure
    assert directory.history_file.read_bytes() == history


def kill_at(point: int, told: Path) -> None:
    """Let this process be killed at the n-th of its dealings with the disk; each write and rename has some.

    The name of the thread that dealt with the disk is left in a file.
    """
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        if count == point:
            told.write_text(current_thread().name)
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    at_each_dealing_with_the_disk(tick)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_point_of_a_save_loses_nothing(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, full: bool
) -> None:
    """Checkpoints at 2 and 4, the last at 5, then the result: killed between any two steps of these on the disk.

    The first two are written beside the training, by a thread of their own.
    """
    recipe = tiny(paper_recipe, iterations=5, drops=Drops((4,), 0.1), monitoring=Monitoring(2, 4, 2, 1.0))
    run = planned(recipe, small_dataset)
    whole, _ = go(run, tmp_path / "whole")
    survived, killed_in = 0, set()
    for point in itertools.count(1, 1 if full else 6):
        root = tmp_path / f"killed at {point}"
        child = os.fork()
        if child == 0:
            try:
                kill_at(point, tmp_path / "thread")
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
        killed_in.add((tmp_path / "thread").read_text())
    assert survived > 50 / (1 if full else 6)
    assert killed_in == {THREAD, current_thread().name}


def test_how_often_a_run_is_saved_changes_nothing(run: PlannedRun, tmp_path: Path) -> None:
    states = []
    for monitoring in (Monitoring(5, 10, 1, 1.0), Monitoring(5, 10, 20, 1e-9)):
        varied = replace(run, recipe=replace(run.recipe, monitoring=monitoring))
        directory, _ = go(varied, tmp_path / str(monitoring.checkpoint_every))
        states.append(directory)
    assert_same(*states)


def test_the_history_of_a_continued_run_comes_from_its_checkpoint(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path / "part", stop_at=13)
    directory.history_file.write_text("somebody's notes\n")
    directory, _ = go(run, tmp_path / "part")
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_files_that_vanish_while_a_run_is_at_work_are_made_again(run: PlannedRun, tmp_path: Path) -> None:
    class Vandal(Log):
        def stepped(self, iteration: int) -> None:
            folder = tmp_path / "part" / "runs" / run.id
            if iteration == 7:
                (folder / "history.jsonl").unlink()
            if iteration == 14:
                shutil.rmtree(folder)

    part, _ = go(run, tmp_path / "part", log=Vandal())
    assert_same(part, go(run, tmp_path / "whole")[0])


def test_a_session_does_not_depend_on_the_clock_of_the_day(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = itertools.cycle([0.0, 4e9, -1e9])
    monkeypatch.setattr("time.time", lambda: next(days))
    directory, log = go(run, tmp_path / "part")
    assert 0 < log.record.seconds < 600
    assert all(0 <= line.seconds < 600 for line in directory.history())
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_run_session_is_not_begun_over_foreign_files(run: PlannedRun, tmp_path: Path) -> None:
    """A folder that merely has other files in it is none of our business."""
    folder = tmp_path / "runs" / run.id
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint-best.pt").write_text("mine too")
    go(run, tmp_path)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "checkpoint-best.pt").read_text() == "mine too"
