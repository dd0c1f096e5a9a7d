"""What `verify` finds in the files of runs. The golden files list each damage with all its findings."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.data.photos import load_photos
from paperbench.errors import RunError
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence, Measured, Record
from paperbench.runs.rerun import DisprovedError, rerun_prefix, retest
from paperbench.runs.rerun_record import Rerun, Retest
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import SIZES, VerifiedRun, verify
from paperbench.runs.weights import recorded_metadata
from paperbench.specs.recipe import BatchNormSettings, Drops, Evaluation, Monitoring
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.evaluation import reestimate_batch_norm
from paperbench.training.trainer import Trainer
from tests.golden import assert_golden
from tests.helpers import json_with_hash
from tests.limits import limit_memory, limit_seconds
from tests.runs.running import (
    CPU,
    before_forward,
    edit_checkpoint,
    newest_state,
    photographs_recipe,
    plan_run,
    train,
    without_names,
)
from tests.training.trainings import MORE

Damage = Callable[[RunDirectory], object]


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


def problems(store: Store, *datasets: Any) -> list[str]:
    return [str(problem) for run in verify(store, datasets) for problem in run.problems]


def test_finished_run_verifies(store: Store, directory: RunDirectory) -> None:
    assert verify(store) == [VerifiedRun(directory.path.name, "", "finished", [], [])]


@pytest.mark.parametrize("changes", [{"drops": Drops((10,), 0.1)}, MORE], ids=["drop after a line", "smooth"])
def test_paused_run_verifies(run: PlannedRun, tmp_path: Path, changes: dict[str, Any]) -> None:
    train(plan_run(replace(run.recipe, **changes), run.dataset), tmp_path, stop_at=13)
    (found,) = verify(Store(tmp_path), [run.dataset])
    assert (found.status, found.problems) == ("partial", [])


def test_run_finished_on_another_machine_verifies(run: PlannedRun, directory: RunDirectory, store: Store) -> None:
    """Its last test before the end was made on the first machine; the second one rounds differently."""
    *lines, last = directory.history()
    edit_saved(history=(*lines, replace(last, test_error=2.5, test_loss=2.0)), best_test_error=2.5)(directory)
    directory.record_file.unlink()
    train(run, store.root)
    assert (record_of(directory).status, problems(store)) == ("finished", [])


def edit_record(change: Callable[[dict[str, Any]], object], *, hashed: bool = True) -> Damage:
    def damage(run: RunDirectory) -> None:
        values = json.loads(run.record_file.read_text())
        change(values)
        run.record_file.write_text(json_with_hash(values) if hashed else json.dumps(values))

    return damage


def edit_result(**changes: float) -> Damage:
    return edit_record(lambda values: values["result"].update(changes))


def edit_files(run: RunDirectory, **changes: Any) -> None:
    record = record_of(run)
    run.write_record(replace(record, files=replace(record.files, **changes)))


def edit_history(change: Callable[[list[HistoryLine]], list[HistoryLine]]) -> Damage:
    """Edit the history, and update its hash in the record."""

    def damage(run: RunDirectory) -> None:
        lines = change(run.history())
        run.write_history(lines)
        edit_files(run, history_lines=len(lines), history_sha256=sha256(history_bytes(lines)).hexdigest())

    return damage


def edit_line(index: int, **changes: Any) -> Damage:
    return edit_history(lambda lines: [*lines[:index], replace(lines[index], **changes), *lines[index + 1 :]])


def edit_saved(**changes: Any) -> Damage:
    """Edit the facts in the checkpoint, and update its hash in its name and in the record."""

    def damage(run: RunDirectory) -> None:
        edit_checkpoint(run, lambda found: replace(found, facts=replace(found.facts, **changes)))
        edit_files(run, checkpoint=run.checkpoints.newest_first()[0].path.name)

    return damage


def edit_tensor(name: str, tensor: torch.Tensor) -> Damage:
    return lambda run: edit_checkpoint(run, lambda found: replace(found, state={**found.state, name: tensor}))


def forge(directory: RunDirectory, edit: Callable[[dict[str, torch.Tensor]], object] = dict, **result: Any) -> None:
    """Change the result in record and weights, and the tensors of the net, and recompute all hashes."""
    record = record_of(directory)
    assert record.result
    forged = replace(record, result=replace(record.result, **result))
    tensors, metadata = read_tensor_file(directory.weights_file.read_bytes())
    edit(tensors)
    metadata.update(recorded_metadata(record.spec, record.seed, forged.result))
    directory.writer.write(directory.weights_file, tensor_file_bytes(tensors, metadata))
    directory.write_record(forged)
    edit_files(directory, weights_sha256=sha256(directory.weights_file.read_bytes()).hexdigest())


def rename(run: RunDirectory, **changes: Any) -> None:
    """Give a run another spec or seed, and the directory that goes with it."""
    record = replace_spec(record_of(run), **changes)
    target = RunDirectory(run.path.rename(run.path.with_name(record.run)))
    target.write_record(record)


def replace_spec(record: Record, seed: int | None = None, **changes: Any) -> Record:
    spec, seed = replace(record.spec, **changes), record.seed if seed is None else seed
    return replace(record, spec=spec, seed=seed, run=spec.run_id(seed))


def newest(run: RunDirectory) -> Path:
    return run.checkpoints.newest_first()[0].path


def a_byte_changed(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def dead_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def unread_record(run: RunDirectory) -> None:
    run.record_file.write_text('{"schema": 1}')
    a_byte_changed(newest(run))


def no_record(run: RunDirectory) -> None:
    run.record_file.unlink()
    a_byte_changed(newest(run))


FINISHED: dict[str, Damage] = {
    "temporary file left": lambda run: (run.path / "record.json.1-0123abcd.tmp").touch(),
    "checkpoint set aside": lambda run: run.writer.set_aside(run.checkpoints.newest_first()[0].path),
    "history deleted": lambda run: run.history_file.unlink(),
    "history with another rate": edit_line(0, lr=0.2),
    "history beyond the record": edit_line(3, iteration=21),
    "history from iteration 0": edit_line(0, iteration=0),
    "history with another epoch": edit_line(0, epoch=1.25),
    "history with another loss": edit_line(2, train_loss=1.0),
    "history with a line less": edit_history(lambda lines: [lines[0], *lines[2:]]),
    "record edited": edit_record(lambda values: values["result"].update(test_error=6.37), hashed=False),
    "record with another test error": edit_result(test_error=6.37),
    "record with another test loss": edit_result(test_loss=6.37),
    "record with another loss of the moving averages": edit_result(moving_average_test_loss=6.37),
    "record with another best error": edit_result(best_test_error=6.37),
    "record with another seed": lambda run: (newest(run).unlink(), rename(run, seed=7)),
    "record with an invalid recipe": lambda run: rename(run, recipe={**record_of(run).spec.recipe, "momentum": 2.0}),
    "record in another directory": lambda run: shutil.copytree(run.path, run.path.with_name("0123456789ab-s0")),
    "record unreadable, and checkpoint damaged": unread_record,
    "record deleted, and checkpoint damaged": no_record,
    "checkpoint cut": lambda run: os.truncate(newest(run), 1000),
    "checkpoint renamed": lambda run: run.checkpoints.write(19, newest(run).read_bytes()),
    "checkpoint deleted": lambda run: newest(run).unlink(),
    "checkpoint of the net with one tensor less": edit_tensor("model.fc.bias", torch.zeros(0)),
    "checkpoint with another window": edit_tensor("window.images", torch.tensor(16)),
    "checkpoint without the last test": edit_saved(best_test_error=None),
    "checkpoint with less history": edit_saved(history=()),
    "checkpoint that diverged": edit_saved(divergence=Divergence(20, 0.01)),
    "weights deleted": lambda run: run.weights_file.unlink(),
    "weights edited": lambda run: a_byte_changed(run.weights_file),
    "weights behind a dead link": lambda run: dead_link(run.weights_file),
    "weights too large": lambda run: os.truncate(run.weights_file, 400 * 10**9),
    "weights of another net": lambda run: forge(run, lambda tensors: tensors.pop("fc.bias")),
    "weights with other averages": lambda run: forge(run, lambda tensors: tensors["tail.bn.running_mean"].neg_()),
    "weights with other parameters": lambda run: forge(run, lambda tensors: tensors["fc.weight"].neg_()),
}


def invent_divergence(run: RunDirectory) -> None:
    run.write_record(replace(record_of(run), status="diverged", divergence=Divergence(8, 0.1)))


def append_line(run: RunDirectory) -> None:
    with open(run.history_file, "a") as stream:
        stream.write("{}\n")


def change_sessions(run: RunDirectory) -> None:
    first, last = record_of(run).sessions
    run.write_record(replace(record_of(run), sessions=(replace(first, seconds=0.0), last)))


def go_back(run: RunDirectory) -> None:
    first, last = record_of(run).sessions
    run.write_record(replace(record_of(run), iteration=5, sessions=(first, replace(last, last=5))))


PAUSED: dict[str, Damage] = {
    "nothing": lambda run: None,
    "newest checkpoint deleted": lambda run: newest(run).unlink(),
    "divergence invented": invent_divergence,
    "line damaged": append_line,
    "earlier session changed": change_sessions,
    "record of an earlier iteration": go_back,
}
DIVERGED: dict[str, Damage] = {
    "nothing": lambda run: None,
    "weights from elsewhere": lambda run: run.writer.write(run.weights_file, b""),
}


def listed(damages: dict[str, Damage], run: RunDirectory, place: Path, *datasets: Any) -> str:
    """Return what is found after each damage to a copy of a run, without names that differ between machines."""
    lines = []
    for number, (name, damage) in enumerate(damages.items()):
        copy = Store(shutil.copytree(run.path.parents[1], place / str(number)))
        damage(copy.directory(run.path.name))
        runs = verify(copy, datasets)
        texts = [
            *(f"{one}" for run in runs for one in run.problems),
            *(f"Remark: {one}" for run in runs for one in run.remarks),
        ]
        found = "\n".join(f"    {without_names(text, copy.root)}" for text in texts)
        lines.append(f"{name}:\n{found or '    no problem'}\n")
    return "".join(lines)


def test_damage_to_a_finished_run_is_found(expected: RunDirectory, run: PlannedRun, tmp_path: Path) -> None:
    assert_golden("verify_finished", listed(FINISHED, expected, tmp_path, run.dataset))


def test_damage_to_a_paused_run_is_found(run: PlannedRun, tmp_path: Path) -> None:
    train(run, tmp_path / "run", stop_at=4)
    directory, _ = train(run, tmp_path / "run", stop_at=8)
    assert_golden("verify_paused", listed(PAUSED, directory, tmp_path, run.dataset))


def test_damage_to_a_diverged_run_is_found(run: PlannedRun, tmp_path: Path) -> None:
    hot = plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)
    directory, _ = train(hot, tmp_path / "run")
    assert_golden("verify_diverged", listed(DIVERGED, directory, tmp_path, run.dataset))


def claim_original(directory: RunDirectory, *, canonical: bool = True) -> None:
    record = record_of(directory)
    data = replace(record.data, canonical=canonical, unverified=not canonical)
    directory.write_record(replace(record, data=data))


ORIGINAL: dict[str, Damage] = {
    "called canonical": claim_original,
    "called unverified": lambda run: claim_original(run, canonical=False),
    "error of 6.37 %": lambda run: forge(run, test_error=6.37),
    "called canonical, error of 6.37 %": lambda run: (claim_original(run), forge(run, test_error=6.37)),
    "called canonical, error of 6.375 %": lambda run: (claim_original(run), forge(run, test_error=6.375)),
}


def test_what_a_record_says_of_its_data_is_checked(
    expected: RunDirectory, run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original CIFAR-10 has as few training images here as the data of the run."""
    data = cast(ImageDataset, run.dataset)
    original = replace(data, canonical=True, y_test=data.y_test[::-1].copy())
    text = ""
    for at_hand, test_images, *datasets in (
        ("nothing", 10_000),
        ("these data", 10_000, data),
        ("these data", 40, data),
        ("these data, called canonical", 40, replace(data, canonical=True)),
        ("others that are canonical", 10_000, original),
        ("others that are canonical, of other classes", 10_000, replace(original, key="cifar100")),
    ):
        monkeypatch.setitem(SIZES, 10, (100, test_images))
        place = tmp_path / at_hand / str(test_images)
        text += f"# The original has {test_images} test images. At hand: {at_hand}.\n"
        text += listed(ORIGINAL, expected, place, *datasets)
    assert_golden("verify_data", text)


@pytest.mark.parametrize(("left", "rests_on_record"), [("checkpoint", False), ("model", False), ("neither", True)])
def test_finished_run_without_any_net_rests_on_its_record(
    store: Store, directory: RunDirectory, left: str, rests_on_record: bool
) -> None:
    for file in directory.path.glob("*.safetensors"):
        if not file.name.startswith(left):
            file.unlink()
    (found,) = verify(store)
    assert (found.problems, found.rests_on_record) == ([], rests_on_record)


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_run_that_only_other_checkpoints_support_rests_on_its_record(
    run: PlannedRun, tmp_path: Path, status: str
) -> None:
    recipe = run.recipe if status == "finished" else replace(run.recipe, learning_rate=1e30, warm_up=None)
    run = plan_run(recipe, run.dataset)
    earlier = newest(train(run, tmp_path / "earlier", stop_at=1)[0])
    directory, _ = train(run, tmp_path / "all")
    store = Store(tmp_path / "all")
    assert [found.rests_on_record for found in verify(store)] == [False]
    for file in (directory.weights_file, newest(directory)):
        file.unlink(missing_ok=True)
    shutil.copy(earlier, directory.path)
    assert [(found.rests_on_record, found.problems) for found in verify(store)] == [(True, [])]


def test_checkpoint_of_another_run_is_found(store: Store, directory: RunDirectory, run: PlannedRun) -> None:
    other, _ = train(replace(run, seed=1), store.root, stop_at=2)
    copy = Path(shutil.copy(newest(other), directory.path))
    assert f"belongs to run {other.path.name}." in problems(store)[0]
    directory.weights_file.unlink()
    record = record_of(directory)
    assert directory.has_weights_or_checkpoint(record)
    assert not directory.has_weights_or_checkpoint(replace(record, files=replace(record.files, checkpoint=copy.name)))


HEADERS: list[Any] = [
    *(b"", b"[" * 100_000, [], {}, {"a": 1}, {"__metadata__": 3}, {"a": {"data_offsets": [0]}}),
    {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, "4"]}},
    {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 400_000_000]}},
]


def test_other_files_are_no_evidence(directory: RunDirectory) -> None:
    record, file = record_of(directory), directory.weights_file
    assert directory.has_weights_or_checkpoint(record)
    tensors, metadata = read_tensor_file(file.read_bytes())
    tensors["fc.bias"] = tensors["fc.bias"][1:]
    headers = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in HEADERS]
    others = [len(header).to_bytes(8, "little") + header for header in headers]
    for content in (b"", *others, tensor_file_bytes(tensors, metadata)):
        file.write_bytes(content)
        assert not directory.has_weights_or_checkpoint(record), content[:100]
    file.unlink()
    os.mkfifo(file)
    with limit_seconds(5):
        assert not directory.has_weights_or_checkpoint(record)


def test_many_problems_are_cut_short(store: Store, directory: RunDirectory) -> None:
    edit_history(lambda lines: [*lines, *(replace(lines[-1], iteration=at) for at in range(21, 81))])(directory)
    found = problems(store)
    assert len(found) == 51
    assert found[-1] == f"{directory.path} has more problems."


class Meddled(Store):
    """A results directory in which something happens whenever the record of a run is read."""

    def __init__(self, root: Path, meddle: Callable[[RunDirectory], object]) -> None:
        super().__init__(root)
        self._meddle = meddle

    def own_directories(self) -> list[RunDirectory]:
        meddle = self._meddle

        class MeddledDirectory(RunDirectory):
            def read_record(self) -> Record | None:
                meddle(self)
                return super().read_record()

        return [MeddledDirectory(directory.path) for directory in super().own_directories()]


def test_unreadable_run_does_not_hide_others(store: Store, directory: RunDirectory) -> None:
    locked = store.directory("0-s0").path
    locked.mkdir()

    def lock(run: RunDirectory) -> None:
        if run.path == locked:
            raise PermissionError(13, "Permission denied")

    unreadable, sound = verify(Meddled(store.root, lock))
    assert unreadable.problems == [f"{locked} cannot be read: Permission denied. Check its permissions."]
    assert sound.run == directory.path.name


def test_checkpoints_pruned_during_the_check_are_no_problem(run: PlannedRun, tmp_path: Path) -> None:
    """Three times in a row, another process saves and prunes between listing and reading."""
    directory, _ = train(run, tmp_path, stop_at=8)
    checkpoint, data = newest(directory), newest(directory).read_bytes()

    def prune(run: RunDirectory) -> None:
        if next(saves, None) is None:
            checkpoint.write_bytes(data)
        else:
            checkpoint.unlink(missing_ok=True)
            (run.path / "another file").write_text("longer" * next(lengths))

    saves, lengths = iter(range(3)), itertools.count()
    (found,) = verify(Meddled(tmp_path, prune), pause=0)
    assert (found.problems, found.remarks) == ([], [])


def test_run_whose_files_change_during_every_check_is_a_remark(store: Store, directory: RunDirectory) -> None:
    directory.record_file.write_bytes(directory.record_file.read_bytes()[:-7])
    (found,) = verify(Meddled(store.root, append_line), pause=0)
    assert found.problems == []
    assert "is being written: its files changed during every check." in str(found.remarks[-1])


def test_run_that_is_moved_away_during_the_check_is_left_out(store: Store, directory: RunDirectory) -> None:
    assert verify(Meddled(store.root, RunDirectory.supersede)) == []


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
    name = f"checkpoint-9-{sha256(bytes(10**6)).hexdigest()[:16]}.safetensors"
    (other.path / name).touch()
    os.truncate(other.path / name, size)
    with limit_memory():
        odd, sound = verify(store)
    assert [problem.split()[0] for problem in odd.problems] == [f"{other.path / name}"]
    assert sound.run == directory.path.name


def test_checkpoint_that_does_not_fit_the_memory_is_a_problem(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("safetensors.torch.load", exhausted)
    found = problems(store)
    assert [text.rsplit("/", 1)[1][:5] for text in found] == ["check", "model"]
    assert all(text.endswith(".safetensors does not fit into the memory.") for text in found)


def repeated(run: PlannedRun, record: Record, history: list[HistoryLine], seed: int = 0, **bounds: int) -> Rerun:
    return rerun_prefix(record, history, run.dataset, CPU, random.Random(seed), **bounds)


def test_rerun_is_bit_identical(run: PlannedRun, directory: RunDirectory, tmp_path: Path) -> None:
    """Its length is counted in images (16 in an iteration), however often it logged, tested or stopped."""
    often = replace(run.recipe, monitoring=replace(run.recipe.monitoring, log_every=1, test_every=2))
    logged_often, _ = train(plan_run(often, run.dataset), tmp_path, stop_at=3)
    train(plan_run(often, run.dataset), tmp_path)
    for window, possible in ((12_800, {20}), (80, {5, 10, 15})):
        for one in (directory, logged_often):
            found = [repeated(run, record_of(one), one.history(), seed, window=window) for seed in range(8)]
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
    run: PlannedRun, directory: RunDirectory, processors: int, is_same_machine: bool
) -> None:
    threads, before, usable = set[int](), torch.get_num_threads(), sorted(os.sched_getaffinity(0))
    if len(usable) < processors:
        pytest.skip(f"needs {processors} processors")
    os.sched_setaffinity(0, usable[:processors])
    try:
        with before_forward(lambda: threads.add(torch.get_num_threads())):
            rerun = repeated(run, first_session(record_of(directory), threads=2), directory.history())
    finally:
        os.sched_setaffinity(0, usable)
    assert rerun.is_same_machine == is_same_machine
    assert threads == {processors}
    assert torch.get_num_threads() == before


def test_rerun_of_too_many_images_is_refused(run: PlannedRun, directory: RunDirectory) -> None:
    assert repeated(run, record_of(directory), directory.history(), most=320).iterations == 20
    with pytest.raises(RunError, match="its first history lines are after more than 319 images"):
        repeated(run, record_of(directory), directory.history(), most=319)


def test_rerun_that_does_not_fit_the_memory_is_refused(run: PlannedRun, directory: RunDirectory) -> None:
    def exhausted() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with before_forward(exhausted), pytest.raises(RunError, match="memory of cpu is not sufficient"):
        repeated(run, record_of(directory), directory.history())


@pytest.mark.parametrize("net", [{"num_classes": 5}, {"in_chans": 1}])
def test_net_for_other_data_is_not_retrained(run: PlannedRun, directory: RunDirectory, net: dict[str, int]) -> None:
    record = record_of(directory)
    spec = replace(record.spec, net={**record.spec.net, **net})
    with pytest.raises(DisprovedError, match="has a net for other images or classes than those of random pixels"):
        repeated(run, replace(record, spec=spec, run=spec.run_id(0)), directory.history())


SAVED, AGAIN = "its saved net", "its saved net, with BN statistics averaged again,"


def retested(run: PlannedRun, directory: RunDirectory, **machine: Any) -> dict[str, Retest]:
    record = record_of(directory)
    record = first_session(record, **machine) if machine else record
    return {found.what: found for found in retest(record, directory, run.dataset, CPU)}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("at_test", ["reestimated", slow("moving_average")])
def test_saved_net_has_the_recorded_result(run: PlannedRun, tmp_path: Path, precision: Any, at_test: Any) -> None:
    recipe = replace(run.recipe, batch_norm=replace(run.recipe.batch_norm, at_test=at_test))
    run = plan_run(recipe, run.dataset, precision=precision)
    directory, _ = train(run, tmp_path)
    for what, found in retested(run, directory).items():
        assert found == Retest(what, None, 40, True, True, {"test error": 0}, 0.0)


def test_saved_net_of_a_gpu_can_be_tested_on_a_cpu(run: PlannedRun, directory: RunDirectory) -> None:
    record = first_session(record_of(directory), device="a GPU")
    spec = replace(record.spec, precision="tf32")
    record = replace(record, spec=spec, run=spec.run_id(0))
    assert [found.holds for found in retest(record, directory, run.dataset, CPU)] == [True, True]


@pytest.mark.parametrize(
    ("errors", "factor", "holds_elsewhere"), [(-2.5, 1, True), (-5, 1, False), (0, 1.001, True), (0, 1.005, False)]
)
def test_forged_result_is_not_that_of_the_saved_net(
    run: PlannedRun, directory: RunDirectory, store: Store, errors: float, factor: float, holds_elsewhere: bool
) -> None:
    """Another machine may round one image differently."""
    result = record_of(directory).result
    assert result
    forge(directory, test_error=result.test_error + errors, test_loss=result.test_loss * factor)
    assert problems(store, run.dataset) == [], "the files agree"
    for tested in retested(run, directory).values():
        assert (tested.changed, tested.holds) == ({"test error": -errors // 2.5}, False)
    elsewhere = retested(run, directory, device="another CPU")
    assert [tested.holds for tested in elsewhere.values()] == [holds_elsewhere] * 2


def test_net_of_another_run_does_not_have_the_result(run: PlannedRun, directory: RunDirectory, tmp_path: Path) -> None:
    other, _ = train(replace(run, seed=1), tmp_path / "other")
    forge(directory, lambda tensors: tensors.update(read_tensor_file(other.weights_file.read_bytes())[0]))
    assert not retested(run, directory)[SAVED].holds


def test_statistics_averaged_over_other_images_are_found(run: PlannedRun, directory: RunDirectory) -> None:
    """Such as the test images, which lower the test error."""
    trainer = Trainer(run.net, run.recipe, run.dataset, run.seed, "fp32", CPU)
    trainer.load_state_dict(newest_state(directory))
    reestimate_batch_norm(trainer.model, [batch.images for batch in trainer.feed.test(None, 8)], "fp32", CPU)
    tested = trainer.test()
    forge(
        directory,
        lambda tensors: tensors.update(trainer.model.state_dict()),
        test_error=tested.error,
        test_loss=tested.loss,
    )
    found = retested(run, directory)
    assert (found[SAVED].is_identical, found[AGAIN].holds) == (True, False)


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


def test_run_of_another_numerics_version_is_not_rerun(run: PlannedRun, directory: RunDirectory) -> None:
    with pytest.raises(RunError, match="it has numerics version 0"):
        repeated(run, first_session(record_of(directory), numerics=0), directory.history())


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
        assert said[-1].endswith("on 12 photographs in each of 2 ways, twice if BN's statistics can be averaged again.")
    retests = retest(record, tested_twice, photographs.dataset, CPU)
    assert [one.evaluation for one in retests] == [Evaluation(32, 36), Evaluation(40, 40)] * 2
    assert [(one.is_identical, one.changed) for one in retests] == [(True, {"top-1 error": 0, "top-5 error": 0})] * 4


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


def forge_evaluation(**changes: float) -> Damage:
    return lambda run: forge(run, evaluations=changed_result(record_of(run), 1, **changes))


PHOTOGRAPHS: dict[str, Damage] = {
    "nothing": lambda run: None,
    "another loss in the second": edit_record(lambda v: v["result"]["evaluations"][1].update(loss=0.5)),
    "other errors in the second": edit_record(lambda v: v["result"]["evaluations"][1].update(top1=50.0, top5=0.0)),
    "swapped": edit_record(swap),
    "one removed": edit_record(remove_one),
    "all removed": edit_record(remove_all),
    "fraction of a photograph in the top-1 error": forge_evaluation(top1=99.0),
    "fraction of a photograph in the top-5 error": forge_evaluation(top5=0.5),
    "epoch that ignores short batches": edit_line(2, epoch=1.25),
}


def test_damage_to_evaluations_is_found(
    photographs: PlannedRun, trained_on_photographs: RunDirectory, tmp_path: Path
) -> None:
    assert [line.epoch for line in trained_on_photographs.history()] == [0.4167, 0.8333, 1.0, 1.4167, 1.8333, 2.0]
    found = listed(PHOTOGRAPHS, trained_on_photographs, tmp_path, photographs.dataset)
    assert_golden("verify_photographs", found)


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
        assert [one.holds for one in retests] == [i != number for i in (0, 1)] * 2
