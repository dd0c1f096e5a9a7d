"""Interrupted and resumed runs end exactly like uninterrupted ones."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.data.feed import ImageFeed
from paperbench.runs.hashed import SCHEMA
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import verify
from paperbench.specs.recipe import BatchNormSettings, Monitoring, Recipe
from paperbench.specs.run_spec import Precision
from paperbench.training import evaluation
from paperbench.typed import to_json
from tests.runs.running import Log, assert_same, edit_checkpoint, plan_run, tiny_recipe, train


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize("stops", [slow((3,)), (5, 8, 9, 10, 19)])
def test_resumed_run_equals_uninterrupted_run(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    for stop in stops:
        part, log = train(run, tmp_path, stop_at=stop)
        assert (log.record.status, log.record.iteration) == ("partial", stop)
    part, log = train(run, tmp_path)
    assert [s.last for s in log.record.sessions] == [*stops, 20]
    assert_same(part, expected)


def test_run_that_is_stopped_all_the_time_has_few_sessions(run: PlannedRun, tmp_path: Path) -> None:
    """Also between two machines."""
    directory, log = train(run, tmp_path, stop_at=5)
    first = replace(log.record.sessions[0], seconds=0.1)
    other = replace(first, environment=replace(first.environment, device="another CPU"))
    edit_checkpoint(directory, lambda c: replace(c, facts=replace(c.facts, sessions=(other, first) * 10_000)))
    _, log = train(run, tmp_path)
    found = log.record.sessions
    assert found[:50] == (other, first) * 25
    assert found[50:52] == (replace(other, seconds=997.5), replace(first, seconds=997.5))
    assert [one.last for one in found[52:]] == [20]
    assert verify(Store(tmp_path))[0].problems == []


def test_best_test_error_survives_resuming(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=10)
    edit_checkpoint(directory, lambda c: replace(c, facts=replace(c.facts, best_test_error=0.0)))
    _, log = train(run, tmp_path)
    assert log.record.result
    assert log.record.result.best_test_error == 0.0


@pytest.mark.parametrize(
    ("net", "changes"),
    [
        ("resnet110_dropout_shortcut", {"momentum_form": "pytorch"}),  # draws random numbers in the net
        slow("resnet110_bn_after_addition", {"batch_norm": BatchNormSettings(16, 1e-5, 0.1, "moving_average")}),
        slow("resnet110_exclusive_gating", {"momentum": 0.0}),
        slow("resnet110_conv_shortcut", {"momentum_form": "nesterov"}),
    ],
)
def test_random_pauses_change_nothing_for_other_nets(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, net: str, changes: dict[str, Any]
) -> None:
    """Pauses hit the end of the warm-up (4), the drop (12), epoch ends (every 6.25) and the middle of windows."""
    noise = {"residual_dropout": 0.3} if "dropout" in net else {}
    run = plan_run(tiny_recipe(paper_recipe, **changes), small_dataset, net, **noise)
    expected, _ = train(run, tmp_path / "uninterrupted")
    for stop in sorted(random.Random(net).sample(range(1, 20), 3)):
        train(run, tmp_path / "part", stop_at=stop)
        torch.rand(5)  # random numbers drawn between two sessions do not matter
    assert_same(train(run, tmp_path / "part")[0], expected)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_resumed_gpu_run_equals_uninterrupted_run(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, precision: Precision, engine: str
) -> None:
    """Including the BN averaging and the final tests."""
    run, cuda = plan_run(tiny_recipe(paper_recipe), small_dataset, precision=precision), torch.device("cuda")
    expected, _ = train(run, tmp_path / "uninterrupted", device=cuda, engine=engine)
    train(run, tmp_path / "part", device=cuda, engine=engine, stop_at=3)
    for stop in (10, 13):
        train(run, tmp_path / "part", device=cuda, stop_at=stop)
    part, log = train(run, tmp_path / "part", device=cuda)
    assert [s.engine for s in log.record.sessions] == [engine, *["graph"] * 3]
    assert_same(part, expected)


@pytest.mark.gpu
def test_gpu_run_may_switch_between_bit_equal_engines(run: PlannedRun, tmp_path: Path) -> None:
    cuda = torch.device("cuda")
    expected, _ = train(run, tmp_path / "uninterrupted", device=cuda, engine="eager")
    train(run, tmp_path / "part", device=cuda, engine="graph", stop_at=7)
    part, log = train(run, tmp_path / "part", device=cuda, engine="eager")
    assert log.warnings == []
    assert_same(part, expected)


class Signalled(Log):
    """Receives a signal after a step, or when the final test starts."""

    def __init__(self, limits: Limits, at: int | str) -> None:
        super().__init__(self.receive)
        self._limits, self._at = limits, at

    def receive(self, moment: int | str) -> None:
        if moment == self._at:
            self._limits.signal = signal.SIGTERM

    def finishing(self, what: str, seconds: float | None) -> None:
        self.receive("end")


@pytest.mark.parametrize("at", [5, 10, 20, "end"])
def test_signal_does_not_wait_for_a_test(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | str
) -> None:
    """Iterations 10 and 20 are tested, and BN is re-estimated after 20: no batch may be evaluated after the signal."""
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
    _, log = train(run, tmp_path, limits, Signalled(limits, at))
    assert (log.record.status, log.record.iteration) == ("partial", 20 if at == "end" else at)
    assert signal.SIGTERM not in forward_passes
    monkeypatch.undo()
    assert_same(train(run, tmp_path)[0], expected)


def test_signal_during_final_averaging_can_be_resumed(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits()
    all_batches = ImageFeed.reestimation

    def signalled(self: ImageFeed) -> Any:
        for number, images in enumerate(all_batches(self)):
            yield images
            if number == 3:
                limits.signal = signal.SIGTERM

    monkeypatch.setattr(ImageFeed, "reestimation", signalled)
    _, log = train(run, tmp_path, limits)
    assert (log.record.status, log.record.iteration) == ("partial", 20)
    monkeypatch.undo()
    part, log = train(run, tmp_path)
    assert log.steps == []
    assert_same(part, expected)


@pytest.mark.parametrize("is_ahead", [True, False])
def test_resumed_history_comes_from_the_checkpoint(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, is_ahead: bool
) -> None:
    """After a kill between checkpoints with an incomplete last line, or after the file was deleted."""
    directory, _ = train(run, tmp_path, stop_at=8)
    if is_ahead:
        line = to_json(directory.history()[0])
        directory.history_file.write_text(f"{line}\n{line.replace('5', '10')}\n{line[:20]}")
    else:
        directory.history_file.unlink()
    seen = []
    log = Log(lambda _: seen.append([line.iteration for line in directory.history()]))
    assert_same(train(run, tmp_path, log=log)[0], expected)
    assert seen[0] == [5], "since the first step"


def test_damaged_checkpoint_is_set_aside(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    train(run, tmp_path, stop_at=8)
    directory, _ = train(run, tmp_path, stop_at=13)
    newest, before = directory.checkpoints.newest_first()
    newest.path.write_bytes(newest.read()[:-1] + b"!")
    directory, log = train(run, tmp_path)
    aside = f"{newest.path.name}.damaged"
    assert log.warnings == [
        f"{newest.path} is damaged: its hash does not match its name. It is kept as {aside}.",
        f"resuming from {before.path.name}.",
    ]
    assert log.steps == list(range(9, 21))
    assert [path.name for path in directory.checkpoints.damaged()] == [aside]
    assert_same(directory, expected)


@pytest.mark.parametrize("lost", ["damaged", "removed", "all but the history"])
def test_run_without_checkpoints_restarts_only_on_request(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, lost: str
) -> None:
    directory, _ = train(run, tmp_path, stop_at=20 if lost.startswith("all") else 8)
    history = directory.history_file.read_bytes()
    for file in directory.checkpoints.newest_first():
        file.path.write_bytes(b"") if lost == "damaged" else file.path.unlink()
    if lost != "removed":
        directory.record_file.unlink()
    _, log = train(run, tmp_path)
    reached = ", although its record is at iteration 8" if lost == "removed" else ""
    assert f"has no readable checkpoint{reached}. Restore one, or restart this run" in log.failure
    assert log.steps == []
    assert directory.history_file.read_bytes() == history
    directory, log = train(run, tmp_path, incompatible="restart")
    aside = tmp_path / "superseded" / f"{run.id}-1"
    assert log.warnings[-1] == f"restarts; its old files are now in {aside}."
    assert (aside / "history.jsonl").read_bytes() == history
    assert_same(directory, expected)


def test_run_with_only_a_damaged_history_restarts(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    directory = Store(tmp_path).directory(run.id)
    directory.path.mkdir(parents=True)
    directory.history_file.write_text("{\n")
    assert_same(train(run, tmp_path)[0], expected)


def test_checkpoint_of_another_run_is_refused_and_kept(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    other, _ = train(replace(run, seed=1), tmp_path, stop_at=8)
    directory = train(run, tmp_path, stop_at=5)[0]
    shutil.copy(other.checkpoints.newest_first()[0].path, directory.path)
    _, log = train(run, tmp_path)
    assert f"belongs to run {other.path.name}. Use the version that wrote it, delete it, or restart" in log.failure
    assert directory.checkpoints.damaged() == [], "it is not damaged"
    assert_same(train(run, tmp_path, incompatible="restart")[0], expected)


@pytest.mark.parametrize("stops", [(13, 8), (8, 20)])
def test_results_directories_merge_by_copying(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, stops: tuple[int, int]
) -> None:
    """Whichever record and history survive `cp -r`, the run resumes from the later checkpoint."""
    for place, stop in zip("ab", stops, strict=True):
        train(run, tmp_path / place, stop_at=stop)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    directory, log = train(run, tmp_path / "a")
    assert log.steps == list(range(max(stops) + 1, 21))
    assert_same(directory, expected)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("safetensors.torch.load", MemoryError()),
        ("torch.nn.Module.load_state_dict", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
    ],
)
def test_out_of_memory_while_resuming_keeps_checkpoints(
    run: PlannedRun,
    expected: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: Exception,
) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}

    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, exhausted)
    for incompatible in ("refuse", "restart"):
        _, log = train(run, tmp_path, incompatible=incompatible)  # type: ignore[arg-type]
        assert "cpu ran out of memory" in log.failure
    directory.failure_file.unlink()
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before
    monkeypatch.undo()
    assert_same(train(run, tmp_path)[0], expected)


@pytest.mark.parametrize("stop_at", [8, 20])
def test_damaged_record_is_rewritten_from_the_checkpoint(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, stop_at: int
) -> None:
    directory, _ = train(run, tmp_path, stop_at=stop_at)
    directory.record_file.write_text("{")
    directory, log = train(run, tmp_path)
    assert log.warnings[0].startswith(f"{directory.record_file} ")
    assert log.warnings[0].endswith(". It is kept as record.json.damaged and rewritten from the checkpoint.")
    assert (directory.path / "record.json.damaged").read_text() == "{"
    assert_same(directory, expected)


def test_record_of_another_schema_is_refused_and_kept(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    directory.record_file.write_text('{"schema": 99}')
    _, log = train(run, tmp_path)
    assert f"has schema 99, and this version of paperbench reads {SCHEMA}." in log.failure
    assert "restart the run with `paperbench run --incompatible restart`, which keeps the old files." in log.failure
    assert directory.record_file.read_text() == '{"schema": 99}'
    directory, _ = train(run, tmp_path, incompatible="restart")
    assert (tmp_path / "superseded" / f"{run.id}-1" / "record.json").read_text() == '{"schema": 99}'
    assert_same(directory, expected)


def test_checkpoint_interval_does_not_change_results(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    often = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(5, 10, 1, 1.0)))
    assert_same(train(often, tmp_path)[0], expected)


def test_files_deleted_during_a_run_are_rewritten(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / run.id

    def delete_files(iteration: int) -> None:
        if iteration == 7:
            (directory / "history.jsonl").unlink()
        if iteration == 14:
            shutil.rmtree(directory)

    assert_same(train(run, tmp_path, log=Log(delete_files))[0], expected)


def test_other_files_in_the_run_directory_stay(run: PlannedRun, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / run.id
    directory.mkdir(parents=True)
    for name in ("notes.txt", "checkpoint-best.safetensors"):
        (directory / name).write_text("mine")
    train(run, tmp_path)
    assert {(directory / name).read_text() for name in ("notes.txt", "checkpoint-best.safetensors")} == {"mine"}
