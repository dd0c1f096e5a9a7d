from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.data.photos import load_photos
from paperbench.errors import RunError
from paperbench.runs.checkpoints import CheckpointFile, Checkpoints
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence, Measured, Record
from paperbench.runs.rerun import DisprovedError, Rerun, Retest, rerun_prefix, retest
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import _SIZES, VerifiedRun, verify
from paperbench.runs.weights import recorded_metadata
from paperbench.specs.recipe import BatchNormSettings, Drops, Evaluation, Monitoring
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.trainer import Trainer
from tests.helpers import json_with_hash
from tests.limits import limit_memory
from tests.runs.running import CPU, photographs_recipe, plan_run, train
from tests.training.trainings import MORE


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.fixture
def directory(finished: RunDirectory) -> RunDirectory:
    return finished


@pytest.fixture
def store(directory: RunDirectory) -> Store:
    return Store(directory.path.parents[1])


def record_of(directory: RunDirectory) -> Record:
    record = directory.read_record()
    assert record
    return record


def problems(store: Store) -> list[str]:
    return [problem for run in verify(store) for problem in run.problems]


def problem(store: Store) -> str:
    (text,) = problems(store)
    return text


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the pause before a run with problems is verified again."""
    monkeypatch.setattr("paperbench.runs.verify._PAUSE_SECONDS", 0)


def test_finished_run_verifies(store: Store, directory: RunDirectory) -> None:
    assert verify(store) == [VerifiedRun("finished", [], [], record_of(directory))]


@pytest.mark.parametrize("changes", [{"drops": Drops((10,), 0.1)}, MORE], ids=["drop after a line", "smooth"])
def test_paused_run_verifies(run: PlannedRun, tmp_path: Path, changes: dict[str, Any]) -> None:
    train(plan_run(replace(run.recipe, **changes), run.dataset), tmp_path, stop_at=13)
    assert [(found.status, found.problems) for found in verify(Store(tmp_path))] == [("partial", [])]


def test_run_finished_on_another_machine_verifies(
    run: PlannedRun, directory: RunDirectory, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last test was made on the first machine; the second one rounds differently."""
    directory.record_file.unlink()
    test = Trainer.test
    monkeypatch.setattr(
        Trainer, "test", lambda *of: replace(test(*of), error=test(*of).error + 2.5, loss=test(*of).loss * 1.001)
    )
    train(run, store.root)
    monkeypatch.undo()
    assert record_of(directory).status == "finished"
    assert problems(store) == []


def test_diverged_run_verifies(run: PlannedRun, tmp_path: Path) -> None:
    train(plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset), tmp_path)
    assert [(found.status, found.problems) for found in verify(Store(tmp_path))] == [("diverged", [])]


@pytest.mark.parametrize(
    ("key", "update_hash", "message"),
    [
        ("test_error", False, "does not have the sha256 of its values"),
        ("test_error", True, "model.safetensors and record.json contradict each other (result): one was edited."),
        ("test_loss", True, "model.safetensors and record.json contradict each other (result): one was edited."),
        ("moving_average_test_loss", True, "or its best test error, differs from the record"),
        ("best_test_error", True, "or its best test error, differs from the record"),
    ],
)
def test_edited_record_is_found(
    store: Store, directory: RunDirectory, key: str, update_hash: bool, message: str
) -> None:
    record = json.loads(directory.record_file.read_text())
    record["result"][key] = 6.37
    directory.record_file.write_text(json_with_hash(record) if update_hash else json.dumps(record))
    assert any(message in found for found in problems(store))


def test_weights_of_another_seed_are_found(store: Store, directory: RunDirectory) -> None:
    record = record_of(directory)
    directory.checkpoints.newest_first()[0].path.unlink()
    other = store.directory(record.spec.run_id(7))
    directory.path.rename(other.path)
    other.write_record(replace(record, run=other.path.name, seed=7))
    assert "contradict each other (run, seed)" in problem(store)


def forge(directory: RunDirectory, edit: Callable[[dict[str, torch.Tensor]], object] = dict, **result: Any) -> None:
    """Change the result in record and weights, and the tensors of the net, and recompute all hashes."""
    record = record_of(directory)
    assert record.result
    forged = replace(record, result=replace(record.result, **result))
    tensors, metadata = read_tensor_file(directory.weights_file.read_bytes())
    edit(tensors)
    metadata.update(recorded_metadata(record.spec, record.seed, forged.result))
    directory.write_weights(tensor_file_bytes(tensors, metadata))
    digest = hashlib.sha256(directory.weights_file.read_bytes()).hexdigest()
    directory.write_record(replace(forged, files=replace(record.files, weights_sha256=digest)))


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the original CIFAR-10 have as few training images as the data of these runs."""
    monkeypatch.setitem(_SIZES, 10, (100, 10_000))


@pytest.mark.usefixtures("small_cifar10")
def test_error_of_a_fraction_of_an_image_is_found(store: Store, directory: RunDirectory, run: PlannedRun) -> None:
    forge(directory, test_error=6.37)
    assert problems(store) == [], "the number of test images is not known"
    (found,) = verify(store, [run.dataset])
    assert "6.37 % is not the error of a whole number of 40 test images." in found.problems[0]
    record = record_of(directory)
    directory.write_record(replace(record, data=replace(record.data, canonical=True)))
    assert problems(store) == []
    forge(directory, test_error=6.375)
    assert "6.375 % is not the error of a whole number of 10,000 test images." in problem(store)


@pytest.mark.usefixtures("small_cifar10")
def test_data_that_are_called_canonical_must_be_the_original(
    store: Store, directory: RunDirectory, run: PlannedRun
) -> None:
    record = record_of(directory)
    directory.write_record(replace(record, data=replace(record.data, canonical=True)))
    original = replace(run.dataset, canonical=True, y_test=run.dataset.y_test[::-1].copy())
    (found,) = verify(store, [original])
    assert "calls its data canonical, but the fingerprint is not that of the original data." in found.problems[0]
    assert verify(store, [replace(original, key="cifar100")])[0].problems == []
    directory.write_record(replace(record, data=replace(record.data, unverified=True)))
    (found,) = verify(store, [original])
    assert "calls its data unverified, but the fingerprint" in found.problems[0]


@pytest.mark.parametrize(
    ("original", "problem", "remark"),
    [
        ((100, 10_000), "the fingerprint is not that of the original", ""),
        ((100, 40), "", "Those at hand may be others."),
    ],
)
def test_data_at_hand_need_not_be_the_original(
    store: Store,
    directory: RunDirectory,
    run: PlannedRun,
    monkeypatch: pytest.MonkeyPatch,
    original: tuple[int, int],
    problem: str,
    remark: str,
) -> None:
    monkeypatch.setitem(_SIZES, 10, original)
    record = record_of(directory)
    directory.write_record(replace(record, data=replace(record.data, canonical=True)))
    (found,) = verify(store, [run.dataset])
    assert len(found.problems) == bool(problem)
    assert problem in "".join(found.problems)
    assert remark in found.remarks[0]
    assert verify(store, [replace(run.dataset, canonical=True)])[0].remarks == []


def test_weights_with_other_parameters_than_the_last_checkpoint_are_found(
    store: Store, directory: RunDirectory
) -> None:
    forge(directory, lambda tensors: tensors["tail.bn.running_mean"].neg_())
    assert problems(store) == [], "averages are made anew"
    forge(directory, lambda tensors: tensors["fc.weight"].neg_())
    assert problem(store).endswith(
        f"{record_of(directory).files.checkpoint} hold different nets (fc.weight): one was swapped."
    )


@pytest.mark.parametrize(("left", "rests_on_record"), [("checkpoint", False), ("model", False), ("neither", True)])
def test_finished_run_without_any_net_rests_on_its_record(
    store: Store, directory: RunDirectory, left: str, rests_on_record: bool
) -> None:
    for file in directory.path.glob("*.safetensors"):
        if not file.name.startswith(left):
            file.unlink()
    (found,) = verify(store)
    assert (found.problems, found.rests_on_record) == ([], rests_on_record)


def test_invalid_spec_is_found(store: Store, directory: RunDirectory) -> None:
    record = record_of(directory)
    odd = replace(record.spec, recipe={**record.spec.recipe, "momentum": 2.0})
    target = store.directory(odd.run_id(0))
    directory.path.rename(target.path)
    target.write_record(replace(record, spec=odd, run=odd.run_id(0)))
    assert "has an invalid spec: momentum: must be below 1" in problems(store)[0]


def cut_checkpoint(run: RunDirectory) -> None:
    (file,) = run.checkpoints.newest_first()
    file.path.write_bytes(file.read()[:-1])


def edit_history(change: Callable[[list[HistoryLine]], list[HistoryLine]]) -> Callable[[RunDirectory], object]:
    """Edit the history, and update its hash in the record."""

    def damage(run: RunDirectory) -> None:
        lines = change(run.history())
        run.write_history(lines)
        record, digest = record_of(run), hashlib.sha256(history_bytes(lines)).hexdigest()
        run.write_record(replace(record, files=replace(record.files, history_lines=len(lines), history_sha256=digest)))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: run.history_file.unlink(), "was cut short: it has 0 of the 4 lines"),
        (edit_history(lambda lines: [replace(lines[0], lr=0.2), *lines[1:]]), ":1: lr is 0.2, but the recipe has 0.1."),
        (
            edit_history(lambda lines: [*lines[:-1], replace(lines[-1], iteration=21)]),
            ":4: iteration is 21, but the record is at 20.",
        ),
        (cut_checkpoint, "is damaged: its hash does not match its name."),
        (
            lambda run: run.checkpoints.write(19, run.checkpoints.newest_first()[0].read()),
            "contains a different iteration from",
        ),
        (
            lambda run: shutil.copytree(run.path, run.path.with_name("0123456789ab-s0")),
            "Rename the directory to match, or move it away.",
        ),
    ],
)
def test_changed_files_are_found(
    store: Store, directory: RunDirectory, damage: Callable[[RunDirectory], object], message: str
) -> None:
    damage(directory)
    assert message in problems(store)[0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: [*lines[:2], replace(lines[2], train_loss=1.0), lines[3]],
        lambda lines: [lines[0], *lines[2:]],
    ],
    ids=["edited", "removed"],
)
def test_history_that_differs_from_the_last_checkpoint_is_found(
    store: Store, directory: RunDirectory, edit: Callable[[list[HistoryLine]], list[HistoryLine]]
) -> None:
    edit_history(edit)(directory)
    assert "contradicts record.json or the history: one of them was edited." in problems(store)[0]


def test_invented_divergence_contradicts_the_last_checkpoint(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(run, tmp_path, stop_at=8)
    invented = Divergence(8, 0.1)
    directory.write_record(replace(log.record, status="diverged", divergence=invented))
    finite, contradiction = problems(Store(tmp_path))
    assert "history.jsonl: its last training loss is finite, so the training did not diverge" in finite
    assert "contradicts record.json or the history: one of them was edited." in contradiction


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_run_that_only_other_checkpoints_support_rests_on_its_record(
    run: PlannedRun, tmp_path: Path, status: str
) -> None:
    recipe = run.recipe if status == "finished" else replace(run.recipe, learning_rate=1e30, warm_up=None)
    run = plan_run(recipe, run.dataset)
    earlier = train(run, tmp_path / "earlier", stop_at=1)[0].checkpoints.newest_first()[0]
    directory, _ = train(run, tmp_path / "all")
    store = Store(tmp_path / "all")
    assert [found.rests_on_record for found in verify(store)] == [False]
    for file in (directory.weights_file, directory.checkpoints.newest_first()[0].path):
        file.unlink(missing_ok=True)
    shutil.copy(earlier.path, directory.path)
    assert [(found.rests_on_record, found.problems) for found in verify(store)] == [(True, [])]


def test_damaged_line_of_unfinished_run_is_found(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    with open(directory.history_file, "a") as stream:
        stream.write("{}\n")
    assert f"{directory.history_file}:2: iteration: is missing." in problem(Store(tmp_path))


def test_checkpoint_of_another_run_is_found(store: Store, directory: RunDirectory, run: PlannedRun) -> None:
    other, _ = train(replace(run, seed=1), store.root, stop_at=2)
    copy = Path(shutil.copy(other.checkpoints.newest_first()[0].path, directory.path))
    assert f"belongs to run {other.path.name}." in problem(store)
    directory.weights_file.unlink()
    record = record_of(directory)
    assert directory.has_weights_or_checkpoint(record)
    assert not directory.has_weights_or_checkpoint(replace(record, files=replace(record.files, checkpoint=copy.name)))


def test_checkpoint_of_finished_run_may_be_missing(store: Store, directory: RunDirectory) -> None:
    directory.checkpoints.newest_first()[0].path.unlink()
    assert problems(store) == []


def test_missing_checkpoint_of_paused_run_is_found(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    directory.checkpoints.newest_first()[0].path.unlink()
    assert "is missing: the run cannot resume." in problem(Store(tmp_path))


def test_unreadable_run_does_not_hide_others(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = directory.path.parent / "0-s0"
    locked.mkdir()
    (locked / "record.json").write_text("{")
    listing = Path.iterdir

    def forbidden(self: Path) -> object:
        if self == locked:
            raise PermissionError(13, "Permission denied")
        return listing(self)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    unreadable, sound = verify(store)
    assert unreadable.problems == [f"{locked} cannot be read: Permission denied. Check its permissions."]
    assert sound.record == record_of(directory)


def test_temporary_and_damaged_files_are_remarks(store: Store, directory: RunDirectory) -> None:
    (directory.path / "record.json.1-0123abcd.tmp").touch()
    directory.checkpoints.set_aside(directory.checkpoints.newest_first()[0])
    (found,) = verify(store)
    assert found.problems == []
    temporary, aside = found.remarks
    assert aside.endswith(".damaged was set aside as damaged.")
    assert temporary.endswith("record.json.1-0123abcd.tmp is incomplete: a killed process left it. You can delete it.")


def test_checkpoints_pruned_during_the_check_are_no_problem(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times in a row, another process saves and prunes between listing and reading."""
    read, saves = CheckpointFile.read, iter(range(3))

    def pruned_before(self: CheckpointFile) -> bytes:
        if next(saves, None) is None:
            return read(self)
        data = self.path.read_bytes()
        self.path.unlink()
        try:
            return read(self)
        finally:
            self.path.write_bytes(data)
            with open(directory.path / "another file", "ab") as stream:
                stream.write(b"longer")

    monkeypatch.setattr(CheckpointFile, "read", pruned_before)
    assert problems(store) == []


def test_run_whose_files_change_during_every_check_is_a_remark(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.record_file.write_bytes(directory.record_file.read_bytes()[:-7])
    read = RunDirectory.read_record

    def written_before(self: RunDirectory) -> Record | None:
        with open(self.history_file, "ab") as stream:
            stream.write(b" ")
        return read(self)

    monkeypatch.setattr(RunDirectory, "read_record", written_before)
    (found,) = verify(store)
    assert found.problems == []
    assert "is being written: its files changed during every check." in found.remarks[-1]


def test_run_that_is_moved_away_during_the_check_is_left_out(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Checkpoints.newest_first

    def moved_before(self: Checkpoints) -> list[CheckpointFile]:
        if directory.path.exists():
            directory.supersede()
        return read(self)

    monkeypatch.setattr(Checkpoints, "newest_first", moved_before)
    assert verify(store) == []


@pytest.mark.parametrize("start", [1, *(slow(n) for n in range(2, 8))])
def test_run_that_trains_during_the_check_has_no_problems(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """From the given file operation of `verify` on, each one is followed by an iteration and a save."""
    train(run, tmp_path, stop_at=2)
    operations, stops, is_training = itertools.count(1), iter(range(3, 21)), [False]

    def followed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **names: Any) -> Any:
            found = function(*arguments, **names)
            if not is_training[0] and next(operations) >= start and (stop := next(stops, None)):
                is_training[0] = True
                train(run, tmp_path, stop_at=stop)
                is_training[0] = False
            return found

        return wrapped

    for name in ("open", "listdir", "scandir"):
        monkeypatch.setattr(os, name, followed(getattr(os, name)))
    (found,) = verify(Store(tmp_path))
    assert found.problems == []
    assert next(stops, 21) > 3, "the run was trained meanwhile"


@pytest.mark.parametrize("size", [3 * 10**9, 10**6])
def test_sparse_checkpoint_does_not_hide_other_runs(store: Store, directory: RunDirectory, size: int) -> None:
    other = store.directory("0-s0")
    other.path.mkdir()
    name = f"checkpoint-9-{hashlib.sha256(bytes(10**6)).hexdigest()[:16]}.safetensors"
    (other.path / name).touch()
    os.truncate(other.path / name, size)
    with limit_memory():
        odd, sound = verify(store)
    (text,) = odd.problems
    assert text.startswith(f"{other.path / name} ")
    assert sound.record == record_of(directory)


def test_checkpoint_that_does_not_fit_the_memory_is_a_problem(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("safetensors.torch.load", exhausted)
    found = problems(store)
    assert [text.rsplit("/", 1)[1][:5] for text in found] == ["check", "model"]
    assert all(text.endswith(".safetensors does not fit into the memory.") for text in found)


def repeated(run: PlannedRun, record: Record, history: list[HistoryLine], seed: int = 0) -> Rerun:
    return rerun_prefix(record, history, run.dataset, CPU, random.Random(seed))


def test_rerun_is_bit_identical(
    run: PlannedRun, directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is counted in images (16 in an iteration), however often it logged, tested or stopped."""
    often = replace(run.recipe, monitoring=replace(run.recipe.monitoring, log_every=1, test_every=2))
    logged_often, _ = train(plan_run(often, run.dataset), tmp_path, stop_at=3)
    train(plan_run(often, run.dataset), tmp_path)
    for window, possible in ((12_800, {20}), (80, {5, 10, 15})):
        monkeypatch.setattr("paperbench.runs.rerun.WINDOW", window)
        for one in (directory, logged_often):
            found = [repeated(run, record_of(one), one.history(), seed) for seed in range(8)]
            assert {(rerun.is_identical, rerun.is_same_machine, rerun.deviation) for rerun in found} == {
                (True, True, 0)
            }
            assert {rerun.iterations for rerun in found} == possible


def test_rerun_contradicts_edited_numbers(run: PlannedRun, directory: RunDirectory) -> None:
    history = directory.history()
    history[0] = replace(history[0], train_error=1.0)
    rerun = repeated(run, record_of(directory), history)
    assert not rerun.is_identical
    assert not rerun.holds


def first_session(record: Record, **changes: Any) -> Record:
    """Return the record with changes to its first session."""
    session = record.sessions[0]
    code, environment = (
        replace(part, **{key: changes.pop(key) for key in list(changes) if hasattr(part, key)})
        for part in (session.code, session.environment)
    )
    first = replace(session, code=code, environment=environment, **changes)
    return replace(record, sessions=(first, replace(first, last=record.iteration)))


def test_rerun_on_other_machine_allows_small_differences(run: PlannedRun, directory: RunDirectory) -> None:
    record = first_session(record_of(directory), device="another CPU")
    history = directory.history()
    for factor, holds in ((1.01, True), (1.05, False)):
        changed = [replace(line, train_loss=line.train_loss * factor) for line in history]
        rerun = repeated(run, record, changed)
        assert (rerun.is_same_machine, rerun.is_identical, rerun.holds) == (False, False, holds)
        assert rerun.deviation == pytest.approx(1 - 1 / factor)


def test_divergence_on_other_hardware_proves_nothing(run: PlannedRun, directory: RunDirectory) -> None:
    history = [replace(line, train_loss=None, train_error=None) for line in directory.history()]
    assert not repeated(run, record_of(directory), history).holds
    with pytest.raises(RunError, match="it diverges in these iterations"):
        repeated(run, first_session(record_of(directory), device="another CPU"), history)


@pytest.mark.parametrize(("processors", "is_same_machine"), [(2, True), (1, False)])
def test_rerun_uses_recorded_thread_count_on_as_many_processors(
    run: PlannedRun,
    directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    processors: int,
    is_same_machine: bool,
) -> None:
    threads, step = [], Trainer.step
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processors))
    monkeypatch.setattr(Trainer, "step", lambda self: threads.append(torch.get_num_threads()) or step(self))
    before = torch.get_num_threads()
    rerun = repeated(run, first_session(record_of(directory), threads=2), directory.history())
    assert rerun.is_same_machine == is_same_machine
    assert set(threads) == {processors}
    assert torch.get_num_threads() == before


def test_rerun_of_too_many_images_is_refused(
    run: PlannedRun, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paperbench.runs.rerun.MAX_IMAGES", 320)
    assert repeated(run, record_of(directory), directory.history()).iterations == 20
    monkeypatch.setattr("paperbench.runs.rerun.MAX_IMAGES", 319)
    with pytest.raises(RunError, match="its first history lines are after more than 319 images"):
        repeated(run, record_of(directory), directory.history())


def test_rerun_that_does_not_fit_the_memory_is_refused(
    run: PlannedRun, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(_: Trainer) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Trainer, "step", exhausted)
    with pytest.raises(RunError, match="memory of cpu is not sufficient"):
        repeated(run, record_of(directory), directory.history())


@pytest.mark.parametrize("net", [{"num_classes": 5}, {"in_chans": 1}])
def test_net_for_other_data_is_not_retrained(run: PlannedRun, directory: RunDirectory, net: dict[str, int]) -> None:
    record = record_of(directory)
    spec = replace(record.spec, net={**record.spec.net, **net})
    with pytest.raises(DisprovedError, match="has a net for other images or classes than those of random pixels"):
        repeated(run, replace(record, spec=spec, run=spec.run_id(0)), directory.history())


def retested(run: PlannedRun, directory: RunDirectory, **machine: Any) -> Retest:
    record = record_of(directory)
    record = first_session(record, **machine) if machine else record
    (found,) = retest(record, directory, run.dataset, CPU)
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("at_test", ["reestimated", slow("moving_average")])
def test_saved_net_has_the_recorded_result(run: PlannedRun, tmp_path: Path, precision: Any, at_test: Any) -> None:
    recipe = replace(run.recipe, batch_norm=replace(run.recipe.batch_norm, at_test=at_test))
    run = plan_run(recipe, run.dataset, precision=precision)
    directory, _ = train(run, tmp_path)
    assert retested(run, directory) == Retest(run.id, None, 40, True, True, {"test error": 0}, 0.0)


def test_saved_net_of_a_gpu_can_be_tested_on_a_cpu(run: PlannedRun, directory: RunDirectory) -> None:
    record = first_session(record_of(directory), device="a GPU")
    spec = replace(record.spec, precision="tf32")
    record = replace(record, spec=spec, run=spec.run_id(0))
    (found,) = retest(record, directory, run.dataset, CPU)
    assert found.holds


def test_forged_result_is_not_that_of_the_saved_net(run: PlannedRun, directory: RunDirectory, store: Store) -> None:
    result = record_of(directory).result
    assert result
    forge(directory, test_error=result.test_error - 2.5)
    assert verify(store, [run.dataset])[0].problems == [], "the files agree"
    tested = retested(run, directory)
    assert (tested.changed, tested.holds) == ({"test error": 1}, False)
    assert retested(run, directory, device="another CPU").holds, "another machine may round one image differently"
    forge(directory, test_error=result.test_error - 5)
    assert not retested(run, directory, device="another CPU").holds


@pytest.mark.parametrize(("factor", "holds_elsewhere"), [(1.001, True), (1.005, False)])
def test_forged_loss_is_not_that_of_the_saved_net(
    run: PlannedRun, directory: RunDirectory, factor: float, holds_elsewhere: bool
) -> None:
    result = record_of(directory).result
    assert result
    forge(directory, test_loss=result.test_loss * factor)
    assert not retested(run, directory).holds
    assert retested(run, directory, device="another CPU").holds == holds_elsewhere


def test_net_of_another_run_does_not_have_the_result(run: PlannedRun, directory: RunDirectory, tmp_path: Path) -> None:
    other, _ = train(replace(run, seed=1), tmp_path / "other")
    forge(directory, lambda tensors: tensors.update(read_tensor_file(other.weights_file.read_bytes())[0]))
    assert not retested(run, directory).holds


@pytest.mark.parametrize(
    "edit",
    [
        lambda tensors: tensors.pop("fc.bias"),
        lambda tensors: tensors.update({"fc.bias": torch.zeros(11)}),
        lambda tensors: tensors.update({"fc.bias": torch.zeros(10, dtype=torch.float64)}),
        lambda tensors: tensors.update({"more": torch.zeros(1)}),
    ],
)
def test_weights_that_do_not_fit_the_net_disprove_the_record(
    run: PlannedRun, directory: RunDirectory, edit: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    forge(directory, edit)
    with pytest.raises(DisprovedError, match="does not hold the net of the record: missing, unknown or of another"):
        retested(run, directory)


@pytest.mark.parametrize(
    ("session", "message"),
    [({"numerics": 0}, "it has numerics version 0")],
)
def test_run_that_cannot_be_rerun_says_why(
    run: PlannedRun, directory: RunDirectory, session: dict[str, int], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        repeated(run, first_session(record_of(directory), **session), directory.history())


@pytest.mark.parametrize(
    ("recorded", "is_same_machine"),
    [("eager", True), ("graph", True), ("streams", True), ("compile", False), ("of the future", False)],
)
def test_rerun_must_agree_bit_for_bit_with_engines_that_do(
    run: PlannedRun, directory: RunDirectory, recorded: str, is_same_machine: bool
) -> None:
    rerun = repeated(run, first_session(record_of(directory), engine=recorded), directory.history())
    assert (rerun.is_same_machine, rerun.is_identical) == (is_same_machine, True)


# Photographs


@pytest.fixture(scope="session")
def photographs() -> PlannedRun:
    """Six iterations of 20, 20 and 8 of the 48 photographs, tested in two ways."""
    recipe = photographs_recipe(
        batch_size=20,
        iterations=6,
        drops=Drops((4,), 0.1),
        epoch_end="short_batch",
        batch_norm=BatchNormSettings(10, 1e-5, 0.1, "reestimated"),
        monitoring=Monitoring(log_every=1, test_every=3, checkpoint_every=3, checkpoint_share=1.0),
    )
    return plan_run(recipe, load_photos())


@pytest.fixture(scope="session")
def trained_on_photographs(photographs: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(photographs, tmp_path_factory.mktemp("photographs"))[0]


@pytest.fixture
def tested_twice(trained_on_photographs: RunDirectory, tmp_path: Path) -> RunDirectory:
    """The run on photographs, whose net was tested in two ways. The test may change it."""
    root = shutil.copytree(trained_on_photographs.path.parents[1], tmp_path / "photographs")
    return Store(root).directory(trained_on_photographs.path.name)


def test_run_on_photographs_verifies_and_repeats(photographs: PlannedRun, tested_twice: RunDirectory) -> None:
    (found,) = verify(Store(tested_twice.path.parents[1]), [photographs.dataset])
    assert (found.status, found.problems) == ("finished", [])
    record, said = record_of(tested_twice), []
    for seed in range(2):
        rerun = rerun_prefix(record, tested_twice.history(), photographs.dataset, CPU, random.Random(seed), said.append)
        assert (rerun.is_identical, rerun.is_same_machine) == (True, True)
        assert ": training on 96 photographs again" in said[-1]
        assert said[-1].endswith(", then testing its saved net on 12 photographs in each of 2 ways.")
    retests = retest(record, tested_twice, photographs.dataset, CPU)
    assert [one.evaluation for one in retests] == [Evaluation(32, 36), Evaluation(40, 40)]
    assert [(one.is_identical, one.changed) for one in retests] == [(True, {"top-1 error": 0, "top-5 error": 0})] * 2


def changed_result(record: Record, number: int, **changes: float) -> tuple[Measured, ...]:
    """Return the results of a record's evaluations with changes to one of them."""
    assert record.result
    found = list(record.result.evaluations)
    found[number] = replace(found[number], **changes)
    return tuple(found)


def swap(values: dict[str, Any]) -> None:
    """Exchange the results of the two evaluations."""
    one, other = values["result"]["evaluations"]
    one["evaluation"], other["evaluation"] = other["evaluation"], one["evaluation"]
    values["result"].update(evaluations=[other, one], test_error=other["top1"], test_loss=other["loss"])


def remove_one(values: dict[str, Any]) -> None:
    del values["evaluations"][1], values["result"]["evaluations"][1]


def remove_all(values: dict[str, Any]) -> None:
    values["evaluations"] = values["result"]["evaluations"] = []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["result"]["evaluations"][1].update(loss=0.5), "contradict each other (result)"),
        (lambda v: v["result"]["evaluations"][1].update(top1=50.0, top5=0.0), "contradict each other (result)"),
        (swap, "contradict each other (result)"),
        (remove_one, "contradict each other (result)"),
        (remove_all, "has an invalid spec: evaluations: are required with photographs, and only then."),
    ],
)
def test_edited_evaluations_are_found(tested_twice: RunDirectory, change: Any, message: str) -> None:
    values = json.loads(tested_twice.record_file.read_text())
    change(values)
    tested_twice.record_file.write_text(json_with_hash(values))
    assert any(message in found for found in problems(Store(tested_twice.path.parents[1])))


@pytest.mark.parametrize("error", ["top1", "top5"])
def test_fraction_of_a_photograph_is_found(photographs: PlannedRun, tested_twice: RunDirectory, error: str) -> None:
    changes = {"top1": 99.0} if error == "top1" else {"top5": 0.5}
    forge(tested_twice, evaluations=changed_result(record_of(tested_twice), 1, **changes))
    (found,) = verify(Store(tested_twice.path.parents[1]), [photographs.dataset])
    assert f"{changes[error]} % is not the error of a whole number of 12 test images." in found.problems[0]


@pytest.mark.parametrize(
    ("number", "error"), [(0, "loss"), (1, "top5"), slow(0, "top1"), slow(0, "top5"), slow(1, "top1"), slow(1, "loss")]
)
def test_every_forged_evaluation_is_not_that_of_the_net(
    photographs: PlannedRun, tested_twice: RunDirectory, number: int, error: str
) -> None:
    record = record_of(tested_twice)
    assert record.result
    before = record.result.evaluations[number]
    values = {"loss": before.loss * 1.01}  # and two images more or fewer
    values["top1"] = 100 * (round(before.top1 * 0.12) + (2 if before.top1 < 80 else -2)) / 12
    values["top5"] = 100 * (round(before.top5 * 0.12) + 2) / 12
    evaluations = changed_result(record, number, **{error: values[error]})
    forge(tested_twice, evaluations=evaluations, test_error=evaluations[0].top1, test_loss=evaluations[0].loss)
    (found,) = verify(Store(tested_twice.path.parents[1]), [photographs.dataset])
    assert found.problems == [], "the files agree"
    for device in (record.sessions[0].environment.device, "another CPU"):
        moved = first_session(record_of(tested_twice), device=device)
        retests = retest(moved, tested_twice, photographs.dataset, CPU)
        assert [one.holds for one in retests] == [i != number for i in range(2)]


def test_epoch_that_ignores_short_batches_is_found(photographs: PlannedRun, tested_twice: RunDirectory) -> None:
    history, record = tested_twice.history(), record_of(tested_twice)
    assert [line.epoch for line in history] == [0.4167, 0.8333, 1.0, 1.4167, 1.8333, 2.0]
    history[2] = replace(history[2], epoch=1.25)
    tested_twice.history_file.write_bytes(history_bytes(history))
    digest = hashlib.sha256(history_bytes(history)).hexdigest()
    tested_twice.write_record(replace(record, files=replace(record.files, history_sha256=digest)))
    (found,) = verify(Store(tested_twice.path.parents[1]), [photographs.dataset])
    assert any("history.jsonl:3: epoch is 1.25, but 3 iterations are 1.0 epochs." in text for text in found.problems)
