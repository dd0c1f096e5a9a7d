"""Check that the files of a results directory were not edited, truncated or mixed up."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Literal

from paperbench.catalogue import DATASETS, AnyNet, OwnNet
from paperbench.data.dataset import Dataset
from paperbench.errors import Finding, PaperbenchError, listing, one_line
from paperbench.files import DAMAGED, MAX_TENSOR_FILE_BYTES, is_leftover, read_at_most
from paperbench.runs.history import History, HistoryLine
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import DataFacts, Record, Result
from paperbench.runs.rerun_record import RerunRecord
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.weights import recorded_metadata
from paperbench.specs.recipe import Recipe
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file
from paperbench.typed import Natural, typed

if TYPE_CHECKING:
    from paperbench.runs.resume import Checkpoint

_ATTEMPTS = 5
_MAX_PROBLEMS = 50
_AVERAGES = ("running_mean", "running_var", "num_batches_tracked")
SIZES = {
    info.num_classes: (info.train_images, info.test_images)
    for info in (DATASETS[key] for key in ("cifar10", "cifar100", "imagenet"))
}
"""Numbers of training and test images of the paper's data sets, by number of classes."""


@typed
class VerifiedRun:
    """What was found in one run.

    Attributes:
        run: Its id, by the name of its directory.
        by: Who handed it in, in contributed/; empty for runs of the results directory itself.
        status: The status in the record, or why the record could not be read.
        problems: Signs of edited, truncated or mixed-up files.
        remarks: What is not a problem.
        rests_on_record: Whether the run has ended, but neither the trained net nor its last checkpoint is left.
    """

    run: str
    by: str
    status: str
    problems: list[str]
    remarks: list[str]
    rests_on_record: bool = False


@typed
class Verification:
    """What `paperbench verify` found in a results directory.

    Attributes:
        external, analyses: Numbers of external results and of files of analyses.
        remarks, problems: Those about several runs or about none; each run has others.
        kept: The reruns that were kept in the directory.
        reruns: Those of this command.
        holds: Whether nothing is wrong.
    """

    schema: Literal[1]
    results: str
    runs: list[VerifiedRun]
    external: Natural
    analyses: Natural
    remarks: list[str]
    problems: list[str]
    kept: list[RerunRecord]
    holds: bool
    reruns: list[RerunRecord] = field(default_factory=list)


def about_reruns(kept: Sequence[RerunRecord], records: Iterable[Record]) -> Iterator[str]:
    """Yield remarks about reruns that were kept: those that do not support the records at hand."""
    histories = {record.files.history_sha256 for record in records}
    for one in kept:
        if one.history_sha256 not in histories:
            yield f"{one.file_name} is of another training: no record here has its history."
        elif not one.holds:
            yield f"{one.file_name} says that its run does not hold."


def verify(store: Store, datasets: Sequence[Dataset] = (), pause: float = 0.5) -> list[VerifiedRun]:
    """Recompute all hashes in a results directory, and check that the files of each run fit together.

    Writes nothing and takes no lease. Problems of a run count only if its files did not change during the check, since
    a process may be writing there.

    Args:
        datasets: Data sets that runs may have been trained on, to check what records say about data.
        pause: Seconds to wait before a run whose files have changed meanwhile is checked again.
    """
    by_fingerprint = {dataset.fingerprint: dataset for dataset in datasets}
    found = [
        (directory, _verify_at_rest(directory, by, by_fingerprint, pause))
        for by, place in store.places.items()
        for directory in place.own_directories()
    ]
    return [run for directory, run in found if directory.path.exists()]  # it may have been moved away meanwhile


def _verify_at_rest(directory: RunDirectory, by: str, datasets: Mapping[str, Dataset], pause: float) -> VerifiedRun:
    for _ in range(_ATTEMPTS):
        before = _state_of_files(directory)
        try:
            status, problems, remarks, rests_on_record = _verify_run(directory, datasets)
        except OSError as error:
            found = Finding.unreadable(directory.path, error, "Check its permissions.")
            status, problems, remarks, rests_on_record = "unreadable", [found], [], False
        if not problems or _state_of_files(directory) == before:
            break
        time.sleep(pause)
    else:
        what = "is being written: its files changed during every check"
        problems, remarks = [], [*remarks, Finding(directory.path, what, "Verify it again later.")]
    wrong, also = ([one_line(str(one)) for one in its] for its in (problems, remarks))
    return VerifiedRun(one_line(directory.path.name), by, status, wrong, also, rests_on_record)


def _state_of_files(directory: RunDirectory) -> list[tuple[str | int, ...]]:
    """Return what changes whenever a file of the run is created, replaced, deleted or written."""
    try:
        status = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(directory.path)}
    except OSError as error:
        return [(str(error),)]
    return sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in status.items())


def _verify_run(
    directory: RunDirectory, datasets: Mapping[str, Dataset]
) -> tuple[str, list[Finding], list[Finding], bool]:
    """Return the values of a `VerifiedRun` but its id."""
    files, left = sorted(directory.path.iterdir()), "is incomplete: a killed process left it"
    remarks = [Finding(path, left, "You can delete it.") for path in files if is_leftover(path)]
    remarks += [Finding(path, "was set aside as damaged") for path in files if path.suffix == DAMAGED]
    try:
        record = directory.read_record()
    except Finding as found:
        return "unreadable", [found, *_in_checkpoints(directory)], remarks, False
    if record is None:
        return "no record yet", [*_in_checkpoints(directory)], remarks, False
    data = datasets.get(record.data.fingerprint)
    if data and record.data.is_comparable and not DataFacts.of(data).is_comparable:
        what = "is said to be trained on the original data. Those at hand may be others"
        remarks.append(Finding(record.run, what))
    problems = [*islice(_problems(directory, record, datasets), _MAX_PROBLEMS + 1)]
    problems[_MAX_PROBLEMS:] = [Finding(directory.path, "has more problems") for _ in problems[_MAX_PROBLEMS:]]
    if function := _code_elsewhere(record):
        what = f"holds a net of {function}. Its tensors were not compared with that net"
        remarks.append(Finding(directory.path, what, "Name the directory of its table with --tables."))
    rests_on_record = record.status != "partial" and not directory.has_weights_or_checkpoint(record)
    return record.status, problems, remarks, rests_on_record


def _code_elsewhere(record: Record) -> str:
    """Return the function that makes a run's net, if no table here names it; else nothing."""
    with suppress(PaperbenchError):
        net, _ = net_and_recipe(record.spec, record.evaluations)
        return net.function if isinstance(net, OwnNet) and not net.is_at_hand else ""
    return ""


def _problems(directory: RunDirectory, record: Record, datasets: Mapping[str, Dataset]) -> Iterator[Finding]:
    """Yield what is wrong with each file, and where the files contradict each other."""
    net, recipe, dataset = None, None, datasets.get(record.data.fingerprint)
    try:
        net, recipe = net_and_recipe(record.spec, record.evaluations)
    except PaperbenchError as error:
        yield Finding(directory.record_file, f"has an invalid spec: {error}")
    original = SIZES.get(net.num_classes) if net and record.data.is_comparable else None
    sizes = (dataset.num_train, dataset.num_test) if dataset else original
    originals_at_hand = {DATASETS[one.key].num_classes for one in datasets.values() if one.canonical}
    if net and original and (sizes != original or (not dataset and net.num_classes in originals_at_hand)):
        claim = "canonical" if record.data.canonical else "unverified"
        what = f"calls its data {claim}, but the fingerprint is not that of the original data"
        yield Finding(directory.record_file, what)
    lines = yield from _in_history(directory, record, recipe, sizes)
    name = record.files.checkpoint
    if named := (yield from _in_checkpoints(directory, name, recipe, sizes and sizes[0], net)):
        facts = named.facts
        # The final test comes after the last checkpoint.
        is_later = facts.divergence is None and record.iteration == record.spec.recipe.get("iterations")
        if (
            (lines is not None and list(facts.history) != lines)
            or facts.sessions[:-1] != record.sessions[:-1]
            or named.iteration != record.iteration
            or facts.facts != record.facts
            or not (facts.divergence == record.divergence or is_later)
        ):
            yield Finding(directory.path / name, "contradicts record.json or the history: one of them was edited")
    reached = max((file.iteration for file in directory.checkpoints.newest_first()), default=-1)
    if record.status == "partial" and reached < record.iteration:
        yield Finding(directory.path / name, "is missing: the run cannot resume")
    if record.status == "diverged" and directory.weights_file.exists():
        yield Finding(directory.weights_file, "should not exist: the run diverged", "Delete it.")
    # Weights may be deleted to save space, since the result does not depend on them. A dead link is a mistake, though.
    if net and record.result and os.path.lexists(directory.weights_file):
        yield from _in_weights(directory, record, record.result, net, named)


def _in_history(
    directory: RunDirectory, record: Record, recipe: Recipe | None, sizes: tuple[int, int] | None
) -> Generator[Finding, None, list[HistoryLine] | None]:
    """Yield what contradicts record, recipe or numbers of images; return the lines that the record was written with."""
    file, result = directory.history_file, record.result
    try:
        history = History.read(file)
        history.check(record)
        lines = history.lines()[: record.files.history_lines]
    except Finding as found:
        yield found
        return None
    for number, line in enumerate(lines, start=1):
        rate = recipe.rate_at(line.iteration - 1) if recipe else line.lr
        epoch = recipe.epochs_before(line.iteration, sizes[0]) if recipe and sizes else line.epoch
        if not 0 < line.iteration <= record.iteration:
            what = f"iteration is {line.iteration}, but the record is at {record.iteration}"
        elif not math.isclose(line.lr, rate, rel_tol=1e-12):
            what = f"lr is {line.lr}, but the recipe has {rate}"
        elif line.epoch != epoch:
            what = f"epoch is {line.epoch}, but {line.iteration} iterations are {epoch} epochs"
        else:
            continue
        yield Finding(f"{file}:{number}:", what)
    if record.divergence and not record.broke_in_test and (not lines or lines[-1].train_loss is not None):
        what = "its last training loss is finite, so the training did not diverge as the record says"
        yield Finding(f"{file}:", what)
    tested = [line.test_error for line in lines if line.test_error is not None]
    if result and (
        not tested
        or lines[-1].iteration != record.iteration
        or (lines[-1].test_error, lines[-1].test_loss)
        != (result.moving_average_test_error, result.moving_average_test_loss)
        or min(tested) != result.best_test_error
    ):
        what = "its last test error or loss, or its best test error, differs from the record's result"
        yield Finding(f"{file}:", what)
    if sizes:
        errors = {*tested}
        if result:
            errors.update([result.test_error], *((one.top1, one.top5) for one in result.evaluations))
        if impossible := [f"{e} %" for e in sorted(errors) if e != 100 * round(e / 100 * sizes[1]) / sizes[1]]:
            what = f"{listing(impossible)} is not the error of a whole number of {sizes[1]:,} test images"
            yield Finding(f"{directory.record_file} or {file.name} was edited:", what)
    return lines


def _in_checkpoints(
    directory: RunDirectory,
    name: str = "",
    recipe: Recipe | None = None,
    images: int | None = None,
    net: AnyNet | None = None,
) -> Generator[Finding, None, Checkpoint | None]:
    """Yield what is wrong with each checkpoint; return the one of this name, if it can be used."""
    named = None
    for file in directory.checkpoints.newest_first():
        from paperbench.runs.resume import Checkpoint  # imports torch; most published results have no checkpoints

        try:
            like = net if net and net.is_at_hand else None
            checkpoint = Checkpoint.load(file, directory.path.name, recipe, images, like)
            named = checkpoint if file.path.name == name else named
        except MemoryError:
            yield Finding(file.path, "does not fit into the memory")
        except Finding as found:
            yield found
    return named


def _in_weights(
    directory: RunDirectory, record: Record, result: Result, net: AnyNet, checkpoint: Checkpoint | None
) -> Iterator[Finding]:
    """Yield what is wrong with the weights of a finished run."""
    from paperbench.models.building import layout

    file, rewrite = directory.weights_file, "move record.json away, `paperbench run` rewrites both from the checkpoint."
    remedy = f"Restore or delete it; if you also {rewrite}"
    try:
        data = read_at_most(file, MAX_TENSOR_FILE_BYTES)
        if sha256(data).hexdigest() != record.files.weights_sha256:
            yield Finding(file, "was edited or damaged: it is not the net that was tested", remedy)
            return
        tensors, metadata = read_tensor_file(data)
        if net.is_at_hand:
            check_fit(tensors, layout(net).state_dict())
    except OSError as error:
        yield Finding.unreadable(file, error, remedy)
    except MemoryError:
        yield Finding(file, "does not fit into the memory")
    except (TensorFileError, ValueError) as error:
        yield Finding(file, f"does not hold the net of the record: {error}")
    else:
        expected = recorded_metadata(record.spec, record.seed, result)
        if edited := [key for key, text in expected.items() if metadata.get(key) != text]:
            yield Finding(file, f"and record.json contradict each other ({listing(edited)}): one was edited")
        others = checkpoint.net if checkpoint else {}  # the averages of BN are made anew after it
        parameters = sorted(name for name in others if not name.endswith(_AVERAGES))
        if changed := [name for name in parameters if not others[name].equal(tensors[name])]:
            what = f"and {record.files.checkpoint} hold different nets ({listing(changed)}): one was swapped"
            yield Finding(file, what)
