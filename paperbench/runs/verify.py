"""Check that the files of a results directory were not edited, truncated or mixed up."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.catalogue import DATASETS, Net
from paperbench.data.dataset import Dataset
from paperbench.errors import PaperbenchError, RunError, listing
from paperbench.files import DAMAGED, MAX_TENSOR_FILE_BYTES, format_read_error, is_leftover, read_at_most
from paperbench.runs.history import History
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import DataFacts, Record
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.weights import recorded_metadata
from paperbench.specs.recipe import Recipe
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file

if TYPE_CHECKING:
    from paperbench.runs.resume import Checkpoint, CheckpointFacts

_ATTEMPTS = 5
_MAX_TEXTS = 50
_PAUSE_SECONDS = 0.5
_SIZES = {
    info.num_classes: (info.train_images, info.test_images)
    for info in (DATASETS[key] for key in ("cifar10", "cifar100", "imagenet"))
}
"""Numbers of training and test images of the paper's data sets, by number of classes."""
_WEIGHTS_REMEDY = (
    "Restore or delete it; if you also move record.json away, `paperbench run` rewrites both from the checkpoint."
)


@dataclass(frozen=True)
class VerifiedRun:
    """The findings about one run.

    Attributes:
        status: The status in the record, or why the record could not be read.
        problems: Signs of edited, truncated or mixed-up files, one sentence each.
        remarks: Findings that are not problems.
        rests_on_record: Whether the run has ended, but neither the trained net nor its last checkpoint is left.
    """

    status: str
    problems: list[str]
    remarks: list[str]
    record: Record | None = None
    rests_on_record: bool = False


def verify(store: Store, datasets: Sequence[Dataset] = ()) -> list[VerifiedRun]:
    """Recompute all hashes in a results directory, and check that the files of each run fit together.

    Writes nothing and takes no lease. Problems of a run count only if its files did not change during the check, since
    a process may be writing there.

    Args:
        datasets: Data sets that runs may have been trained on, to check what records say about data.
    """
    by_fingerprint = {dataset.fingerprint: dataset for dataset in datasets}
    found = ((directory, _verify_at_rest(directory, by_fingerprint)) for directory in store.directories())
    return [run for directory, run in found if directory.path.exists()]  # it may have been moved away meanwhile


def _verify_at_rest(directory: RunDirectory, datasets: Mapping[str, Dataset]) -> VerifiedRun:
    for _ in range(_ATTEMPTS):
        before = _state_of_files(directory)
        try:
            run = _verify_run(directory, datasets)
        except OSError as error:
            run = VerifiedRun("unreadable", [format_read_error(directory.path, error, "Check its permissions.")], [])
        if not run.problems or _state_of_files(directory) == before:
            return run
        time.sleep(_PAUSE_SECONDS)
    remark = f"{directory.path} is being written: its files changed during every check. Verify it again later."
    return replace(run, problems=[], remarks=[*run.remarks, remark])


def _state_of_files(directory: RunDirectory) -> list[tuple[str | int, ...]]:
    """Return what changes whenever a file of the run is created, replaced, deleted or written."""
    try:
        status = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(directory.path)}
    except OSError as error:
        return [(str(error),)]
    return sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in status.items())


def _verify_run(directory: RunDirectory, datasets: Mapping[str, Dataset]) -> VerifiedRun:
    files = sorted(directory.path.iterdir())
    remarks = [
        *(f"{p} is incomplete: a killed process left it. You can delete it." for p in files if is_leftover(p)),
        *(f"{p} was set aside as damaged." for p in files if p.suffix == DAMAGED),
    ]
    remarks = _first(remarks, f"{directory.path} has more such files.")
    try:
        record = directory.read_record()
    except RunError as error:
        return VerifiedRun("unreadable", [str(error), *_checkpoint_problems(directory, None)], remarks)
    if record is None:
        return VerifiedRun("no record yet", list(_checkpoint_problems(directory, None)), remarks)
    data = datasets.get(record.data.fingerprint)
    if data and record.data.is_comparable and not DataFacts.of(data).is_comparable:
        remarks.append(f"{record.run} is said to be trained on the original data. Those at hand may be others.")
    problems = _first(_problems(directory, record, datasets), f"{directory.path} has more problems.")
    rests_on_record = record.status != "partial" and not directory.has_weights_or_checkpoint(record)
    return VerifiedRun(record.status, problems, remarks, record, rests_on_record)


def _first(texts: Iterable[str], further: str) -> list[str]:
    """Return the first texts and, if there are more, another one that says so."""
    found = list(islice(texts, _MAX_TEXTS + 1))
    return [*found[:_MAX_TEXTS], further] if len(found) > _MAX_TEXTS else found


def _problems(directory: RunDirectory, record: Record, datasets: Mapping[str, Dataset]) -> Iterator[str]:
    net = recipe = None
    try:
        net, recipe = net_and_recipe(record.spec, record.evaluations)
    except PaperbenchError as error:
        yield f"{directory.record_file} has an invalid spec: {error}"
    dataset = datasets.get(record.data.fingerprint)
    original = _SIZES.get(net.num_classes) if net and record.data.is_comparable else None
    sizes = (dataset.num_train, dataset.num_test) if dataset else original
    if net and original and (sizes != original or (not dataset and _has_original(datasets, net))):
        claim = "canonical" if record.data.canonical else "unverified"
        yield f"{directory.record_file} calls its data {claim}, but the fingerprint is not that of the original data."
    yield from _history_problems(directory, record, recipe, sizes)
    checkpoint = yield from _checkpoint_problems(directory, record, net)
    reached = max((file.iteration for file in directory.checkpoints.newest_first()), default=-1)
    if record.status == "partial" and reached < record.iteration:
        yield f"{directory.path / record.files.checkpoint} is missing: the run cannot resume."
    if net:
        yield from _weights_problems(directory, record, net, checkpoint)


def _has_original(datasets: Mapping[str, Dataset], net: Net) -> bool:
    """Whether the original data with the net's number of classes are at hand."""
    return any(data.canonical and DATASETS[data.key].num_classes == net.num_classes for data in datasets.values())


def _history_problems(
    directory: RunDirectory, record: Record, recipe: Recipe | None, sizes: tuple[int, int] | None
) -> Iterator[str]:
    """Yield contradictions between the history and its record, recipe or numbers of images, if they are known."""
    try:
        history = History.read(directory.history_file)
        history.check(record)
        lines = history.lines()[: record.files.history_lines]
    except RunError as error:
        yield str(error)
        return
    file, result = directory.history_file, record.result
    for number, line in enumerate(lines, start=1):
        if not 0 < line.iteration <= record.iteration:
            yield f"{file}:{number}: iteration is {line.iteration}, but the record is at {record.iteration}."
        elif recipe and not math.isclose(line.lr, recipe.rate_at(line.iteration - 1), rel_tol=1e-12):
            yield f"{file}:{number}: lr is {line.lr}, but the recipe has {recipe.rate_at(line.iteration - 1)}."
        elif recipe and sizes and line.epoch != (epoch := recipe.epochs_before(line.iteration, sizes[0])):
            yield f"{file}:{number}: epoch is {line.epoch}, but {line.iteration} iterations are {epoch} epochs."
    if record.divergence and not record.broke_in_test and (not lines or lines[-1].train_loss is not None):
        yield f"{file}: its last training loss is finite, so the training did not diverge as the record says."
    tested = [line.test_error for line in lines if line.test_error is not None]
    if result and (
        not tested
        or lines[-1].iteration != record.iteration
        or (lines[-1].test_error, lines[-1].test_loss)
        != (result.moving_average_test_error, result.moving_average_test_loss)
        or min(tested) != result.best_test_error
    ):
        yield f"{file}: its last test error or loss, or its best test error, differs from the record's result."
    if sizes:
        errors = {*tested}
        if result:
            errors.update([result.test_error], *((one.top1, one.top5) for one in result.evaluations))
        if impossible := [f"{e} %" for e in sorted(errors) if e != 100 * round(e / 100 * sizes[1]) / sizes[1]]:
            text = f"{listing(impossible)} is not the error of a whole number of {sizes[1]:,} test images."
            yield f"{directory.record_file} or {file.name} was edited: {text}"


def _checkpoint_problems(
    directory: RunDirectory, record: Record | None, net: Net | None = None
) -> Generator[str, None, Checkpoint | None]:
    """Yield what is wrong with checkpoints; return the one that the record names, compared with record and history."""
    named = None
    for file in directory.checkpoints.newest_first():
        from paperbench.runs.resume import (
            Checkpoint,
            CheckpointError,
            tensors_of,
        )  # imports torch; most published results have no checkpoints

        try:
            checkpoint = Checkpoint.from_bytes(file.read(), directory.path.name)
            if net:
                check_fit(checkpoint.net, tensors_of(net))
        except RunError as error:
            yield f"{str(error).rstrip('.')}."
        except (CheckpointError, MemoryError, ValueError) as error:
            yield _unfit(file.path, error)
        else:
            if checkpoint.iteration != file.iteration:
                yield f"{file.path} contains a different iteration from the one in its name."
            if record and file.path.name == record.files.checkpoint:
                named = checkpoint
                if not _agree(checkpoint.facts, record, directory):
                    yield f"{file.path} contradicts record.json or the history: one of them was edited."
    return named


def _agree(facts: CheckpointFacts, record: Record, directory: RunDirectory) -> bool:
    """Whether a checkpoint holds the history and the sessions that the record was written with."""
    try:
        lines = directory.history()[: record.files.history_lines]
    except RunError:
        return True  # reported elsewhere
    # The final test comes after the last checkpoint.
    is_later = facts.divergence is None and record.iteration == record.spec.recipe.get("iterations")
    return (
        list(facts.history) == lines
        and facts.sessions[:-1] == record.sessions[:-1]
        and facts.sessions[-1].last == record.iteration
        and (facts.divergence == record.divergence or is_later)
    )


def _unfit(file: Path, error: Exception) -> str:
    match error:
        case MemoryError():
            return f"{file} does not fit into the memory."
        case PaperbenchError():  # completes a sentence
            return f"{file} {error}."
    return f"{file} does not hold the net of the record: {error}."


def _weights_problems(
    directory: RunDirectory, record: Record, net: Net, checkpoint: Checkpoint | None
) -> Iterator[str]:
    file = directory.weights_file
    if record.status == "diverged" and file.exists():
        yield f"{file} should not exist: the run diverged. Delete it."
    # Weights may be deleted to save space, since the result does not depend on them. A dead link is a mistake, though.
    if record.result is None or not (file.exists() or file.is_symlink()):
        return
    from paperbench.runs.resume import tensors_of

    try:
        data = read_at_most(file, MAX_TENSOR_FILE_BYTES)
        if sha256(data).hexdigest() != record.files.weights_sha256:
            yield f"{file} was edited or damaged: it is not the net that was tested. {_WEIGHTS_REMEDY}"
            return
        tensors, metadata = read_tensor_file(data)
        check_fit(tensors, tensors_of(net))
    except OSError as error:
        yield format_read_error(file, error, _WEIGHTS_REMEDY)
    except (TensorFileError, MemoryError, ValueError) as error:
        yield _unfit(file, error)
    else:
        expected = recorded_metadata(record.spec, record.seed, record.result)
        if edited := [key for key, text in expected.items() if metadata.get(key) != text]:
            yield f"{file} and {directory.record_file.name} contradict each other ({listing(edited)}): one was edited."
        others = checkpoint.net if checkpoint else {}  # the averages of BN are made anew after it
        parameters = sorted(name for name in others if name.endswith((".weight", ".bias")))
        if changed := [name for name in parameters if not others[name].equal(tensors[name])]:
            yield f"{file} and {record.files.checkpoint} hold different nets ({listing(changed)}): one was swapped."
