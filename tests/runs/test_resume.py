"""Interrupted and resumed runs end exactly like uninterrupted ones."""

from __future__ import annotations

import math
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.runs import environment, resume, session
from paperbench.runs.environment import code_facts
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence
from paperbench.runs.resume import Checkpoint
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import verify
from paperbench.specs.recipe import BatchNormSettings, Monitoring, Recipe
from paperbench.specs.run_spec import Precision
from paperbench.tensor_file import tensor_file_bytes
from paperbench.training.facts import facts_of
from paperbench.typed import to_json
from tests.golden import assert_golden
from tests.runs.running import (
    Log,
    assert_same,
    before_forward,
    edit_checkpoint,
    plan_run,
    tiny_recipe,
    train,
    without_names,
)

Damage = Callable[[RunDirectory], object]


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


@pytest.mark.parametrize("at", [5, 10, 20, "end", "averaging"])
def test_signal_does_not_wait_for_a_test(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, at: int | str
) -> None:
    """Iterations 10 and 20 are tested, and BN is re-estimated after 20: no batch may be evaluated after the signal."""
    limits, passes = Limits(), list[int | None]()

    class Signalled(Log):
        def finishing(self, run: PlannedRun, test_seconds: float | None) -> None:
            signalling("end")
            self.finishing_at = len(passes)

    def signalling(moment: int | str) -> None:
        if moment == at:
            limits.signal = signal.SIGTERM

    def count() -> None:
        passes.append(limits.signal)
        if len(passes) == getattr(log, "finishing_at", math.inf) + 3:
            signalling("averaging")

    log = Signalled(signalling)
    with before_forward(count):
        train(run, tmp_path, limits, log)
    assert (log.record.status, log.record.iteration) == ("partial", at if isinstance(at, int) else 20)
    assert None in passes
    assert signal.SIGTERM not in passes
    part, log = train(run, tmp_path)
    assert log.steps == [*range((at if isinstance(at, int) else 20) + 1, 21)]
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


def damage_all(run: RunDirectory) -> None:
    for file in run.checkpoints.newest_first():
        file.path.write_bytes(b"")
    run.record_file.unlink()


def remove_checkpoints(run: RunDirectory) -> None:
    for file in run.checkpoints.newest_first():
        file.path.unlink()


def leave_a_complete_history(run: RunDirectory) -> None:
    run.write_history([replace(run.history()[-1], iteration=20)])
    remove_checkpoints(run)
    run.record_file.unlink()


def edit(change: Callable[[Checkpoint], Checkpoint], at: int = 8) -> Damage:
    """Write a changed copy of the checkpoint, named as of an iteration."""

    def damage(run: RunDirectory) -> None:
        data = run.checkpoints.newest_first()[0].read()
        remove_checkpoints(run)
        run.checkpoints.write(at, change(Checkpoint.from_bytes(data, run.path.name)).to_bytes())

    return damage


def edit_facts(**changes: Any) -> Damage:
    return edit(lambda found: replace(found, facts=replace(found.facts, **changes)))


def move_on(checkpoint: Checkpoint) -> Checkpoint:
    """Claim that the run has gone on to iteration 21 of 20."""
    (session,) = checkpoint.facts.sessions
    facts = replace(checkpoint.facts, sessions=(replace(session, last=21),))
    return replace(checkpoint, facts=facts, state={**checkpoint.state, "iteration": torch.tensor(21)})


DAMAGES: dict[str, Damage] = {
    "checkpoints damaged, no record": damage_all,
    "checkpoints removed": remove_checkpoints,
    "only a complete history": leave_a_complete_history,
    "checkpoint of another run": edit_facts(run="0123456789ab-s1"),
    "checkpoint of another name": edit(lambda found: found, at=9),
    "checkpoint beyond the recipe": edit(move_on, at=21),
    "checkpoint without history": edit_facts(history=()),
    "checkpoint in another format": lambda run: run.checkpoints.write(
        9, tensor_file_bytes({}, {"paperbench": to_json(Divergence(1, 0.1))})
    ),
    "record of another schema": lambda run: run.record_file.write_text('{"schema": 99}'),
}


def test_run_that_cannot_be_resumed_restarts_only_on_request(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    paused, failures = train(run, tmp_path / "paused", stop_at=8)[0], ""
    for number, (name, damage) in enumerate(DAMAGES.items()):
        root = shutil.copytree(paused.path.parents[1], tmp_path / str(number))
        damage(directory := RunDirectory(root / "runs" / run.id))
        files = sorted(path.read_bytes() for path in directory.path.iterdir())
        _, log = train(run, root)
        assert log.steps == []
        directory.failure_file.unlink()
        assert sorted(path.read_bytes() for path in directory.path.iterdir()) == files
        failures += f"{name}:\n    {without_names(log.failure, root)}\n"
        if name in ("checkpoints removed", "record of another schema"):
            directory, log = train(run, root, incompatible="restart")
            aside = root / "superseded" / f"{run.id}-1"
            assert log.warnings[-1] == f"restarts; its old files are now in {aside}."
            assert sorted(path.read_bytes() for path in aside.iterdir()) == files
            assert_same(directory, expected)
    assert_golden("resume_refused", failures)


def test_run_with_only_a_damaged_history_restarts(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    directory = Store(tmp_path).directory(run.id)
    directory.path.mkdir(parents=True)
    directory.history_file.write_text("{\n")
    assert_same(train(run, tmp_path)[0], expected)


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
        pytest.param("safetensors.torch.load", MemoryError(), marks=pytest.mark.full),
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


@pytest.mark.parametrize("stop", [8, None])
def test_run_with_other_facts_is_neither_resumed_nor_finished(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int | None
) -> None:
    directory, _ = train(run, tmp_path, stop_at=stop)
    other = replace(run.recipe, batch_norm=replace(run.recipe.batch_norm, eps=1e-3))
    for module in (resume, session):
        monkeypatch.setattr(module, "facts_of", lambda net, _: facts_of(net, other))
    other_code = replace(code_facts(), source="other code")
    monkeypatch.setattr(environment, "code_facts", lambda: other_code)
    _, log = train(run, tmp_path)
    assert "stages.0.0.preactivation.bn: was eps 1e-05 and is eps 0.001. Resume" in log.failure
    assert directory.read_record().status == ("partial" if stop else "finished")
    directory, log = train(run, tmp_path, incompatible="restart")
    assert log.steps == list(range(1, 21))
    assert directory.read_record().facts == facts_of(run.net, other)


def test_run_of_a_version_without_facts_is_resumed(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    edit_checkpoint(directory, lambda found: replace(found, facts=replace(found.facts, facts=None)))
    directory.record_file.unlink()
    directory, log = train(run, tmp_path)
    assert log.steps == list(range(9, 21))
    assert directory.read_record().facts is None
