"""Retrain the first iterations of a recorded run, test its saved net again, and compare with the record."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby, takewhile
from pathlib import Path

import torch

from paperbench.catalogue import DATASETS, AnyNet
from paperbench.data.dataset import Dataset
from paperbench.errors import PaperbenchError, RunError, count, one_line, shorten
from paperbench.files import MAX_TENSOR_FILE_BYTES, format_read_error, read_at_most
from paperbench.models.building import draws_noise
from paperbench.options import is_bit_equal
from paperbench.processors import processors
from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.history import HistoryLine, history_line
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Environment, Record
from paperbench.runs.rerun_record import MAX_DEVIATION, Rerun, RerunRecord, Retest, all_hold
from paperbench.runs.resume import Checkpoint, CheckpointError
from paperbench.runs.store import RunDirectory
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import choose_precision
from paperbench.training.trainer import NUMERICS_VERSION, Trainer

WINDOW = 12_800
"""Images of which one training loss is compared: 100 iterations of CIFAR, however many history lines they have."""

MAX_WINDOWS = 3
"""Maximum number of windows that a rerun covers, to keep it short."""

MAX_IMAGES = 1_000_000
"""Maximum number of images that a rerun trains on: twenty epochs of CIFAR."""


class DisprovedError(RunError):
    """A record whose net cannot have been trained or saved as it says."""


def verify_run(
    record: Record,
    directory: RunDirectory,
    dataset: Dataset,
    device: torch.device,
    random_state: random.Random,
    announce: Callable[[str], None] = lambda _: None,
) -> RerunRecord:
    """Retrain the start of a run and test its saved net; see `rerun_prefix` and `retest`."""
    rerun, not_retrained, not_tested, retests, failures = None, None, None, list[Retest](), list[str]()
    try:
        rerun = rerun_prefix(record, directory.history(), dataset, device, random_state, announce)
    except DisprovedError as error:
        failures.append(str(error))
    except PaperbenchError as error:
        not_retrained = _line(error)
    try:
        retests = [] if failures else retest(record, directory, dataset, device)
    except DisprovedError as error:
        failures.append(str(error))
    except PaperbenchError as error:
        not_tested = _line(error)
    with _computing_like(record.sessions[0].environment, device):
        environment = environment_facts(device)
    return RerunRecord(
        schema=1,
        kind="rerun",
        run=record.run,
        history_sha256=record.files.history_sha256,
        holds=all_hold(rerun, retests, failures),
        device=str(device),
        code=code_facts(),
        environment=environment,
        rerun=rerun,
        not_retrained=not_retrained,
        not_tested=not_tested,
        retests=tuple(retests),
        failures=tuple(map(_line, failures)),
    )


def _line(text: object) -> str:
    return one_line(shorten(str(text), 2_000))


def rerun_prefix(
    record: Record,
    history: Sequence[HistoryLine],
    dataset: Dataset,
    device: torch.device,
    random_state: random.Random,
    announce: Callable[[str], None] = lambda _: None,
    window: int = WINDOW,
    most: int = MAX_IMAGES,
) -> Rerun:
    """Retrain a run for a random number of windows, or to the end of a shorter one, and compare.

    Args:
        random_state: Chooses their number.
        announce: Called with a sentence about the work before it starts, if it is on photographs.
        window, most: `WINDOW` and `MAX_IMAGES`, for tests.
    """
    first, recorded = record.sessions[0], record.sessions[0].environment
    if first.code.numerics != NUMERICS_VERSION:
        raise RunError(f"it has numerics version {first.code.numerics}, and this is {NUMERICS_VERSION}.")
    net, recipe = _net_and_recipe(record, dataset)
    images = dataset.num_train
    ends = {line.iteration: recipe.images_before(line.iteration, images) for line in history}
    same = [*takewhile(lambda one: one.code.numerics == NUMERICS_VERSION, record.sessions)]
    lines = [line for line in history if line.iteration <= same[-1].last]
    goal = window * random_state.randint(1, MAX_WINDOWS)
    del lines[1 + sum(ends[line.iteration] < goal for line in lines) :]
    if not lines or ends[lines[-1].iteration] > most:
        raise RunError(f"its first history lines are after more than {most:,} images or of another version.")
    if recipe.photographs:
        work = f"{ends[lines[-1].iteration]:,} photographs"
        tests = f"{count(dataset.num_test, 'photograph')} in each of {count(len(recipe.evaluations), 'way')}"
        announce(
            f"{record.run}: training on {work} again, then testing its saved net on {tests}, twice if BN's statistics "
            "can be averaged again."
        )
    precision = choose_precision(record.spec.precision, device)
    with _computing_like(recorded, device):
        current = environment_facts(device)
        is_same = all(
            is_bit_equal(session.engine) and current.is_same_machine(session.environment)
            for session in record.sessions[: 1 + sum(one.last < lines[-1].iteration for one in record.sessions)]
        )
        trainer = Trainer(net, recipe, dataset, record.seed, precision, device)
        with closing(trainer):
            pairs = list(zip(lines, _retrain(trainer, lines, images), strict=True))
    windows = (
        [sum(line.train_loss or 0.0 for line in lines) for lines in zip(*part, strict=True)]
        for _, part in groupby(pairs, lambda pair: (ends[pair[0].iteration] - 1) // window)
    )
    if not is_same and any((line.train_loss is None) != (again.train_loss is None) for line, again in pairs):
        raise RunError("it diverges in these iterations, which on other hardware may happen elsewhere.")
    return Rerun(
        iterations=lines[-1].iteration,
        is_same_machine=is_same,
        is_identical=all(line == again for line, again in pairs),
        deviation=max(_deviation(*losses) for losses in windows),
    )


def retest(record: Record, directory: RunDirectory, dataset: Dataset, device: torch.device) -> list[Retest]:
    """Test the saved net of a run, or that of its last checkpoint, in all its ways, as it was tested.

    The net of the weights is tested again after averaging BN's statistics again, as they follow from the parameters;
    not if too many images, dropout or another numerics version stand against that.

    Returns:
        Nothing for diverged runs.
    """
    result, environment = record.result, record.sessions[-1].environment
    file = directory.weights_file
    saved = file if result and file.exists() else directory.named_checkpoint(record)
    if not saved:
        raise RunError("it kept neither weights nor a last checkpoint, so its result rests on its record.")
    if record.divergence and not record.broke_in_test:
        return []
    tested = {"its saved net": evaluate_saved_net(record, saved, dataset, device)}
    net, recipe = _net_and_recipe(record, dataset)
    is_averaged = recipe.batch_norm.at_test == "reestimated" and not draws_noise(net)
    is_ours = record.sessions[-1].code.numerics == NUMERICS_VERSION
    if saved is file and is_averaged and is_ours and dataset.num_train <= MAX_IMAGES:
        averaged = evaluate_saved_net(record, saved, dataset, device, average=True)
        tested["its saved net, with BN statistics averaged again,"] = averaged
    with _computing_like(environment, device):
        is_same_machine = environment_facts(device).is_same_machine(environment)
    if result is None:
        if is_same_machine and all(math.isfinite(one.loss) for metrics in tested.values() for one in metrics):
            raise DisprovedError(f"{record.run} did not diverge in its last test: the net of its checkpoint passes it.")
        return []
    recorded: list[tuple[Evaluation | None, dict[str, float], float]] = [
        (one.evaluation, {"top-1 error": one.top1, "top-5 error": one.top5}, one.loss) for one in result.evaluations
    ] or [(None, {"test error": result.test_error}, result.test_loss)]
    found = []
    for what, metrics in tested.items():
        for (evaluation, errors, loss), again in zip(recorded, metrics, strict=True):
            new = dict(zip(errors, (again.error, again.top5_error), strict=False))
            found.append(
                Retest(
                    what=what,
                    evaluation=evaluation,
                    images=dataset.num_test,
                    is_same_machine=is_same_machine,
                    is_identical=(new, again.loss) == (errors, loss),
                    changed={name: round(abs(new[name] - errors[name]) * dataset.num_test / 100) for name in errors},
                    deviation=_deviation(loss, again.loss),
                )
            )
    return found


def evaluate_saved_net(
    record: Record,
    saved: Path | CheckpointFile,
    dataset: Dataset,
    device: torch.device,
    precision: str | None = None,
    evaluations: Sequence[Evaluation] = (),
    *,
    average: bool = False,
) -> list[EvaluationMetrics]:
    """Test the saved net of a finished run as it was tested after training.

    Args:
        saved: The file of its weights; or its last checkpoint, to finish it again from there, in all its ways.
        precision: By default the run's.
        evaluations: By default the record's. For small images, the only result is that of whole images.
        average: Whether to average BN's statistics again, and test in all ways.
    """
    path = saved.path if isinstance(saved, CheckpointFile) else saved
    net, recipe = _net_and_recipe(record, dataset)
    chosen = choose_precision(precision or testing_precision(record.spec.precision, device), device)
    with _computing_like(record.sessions[-1].environment, device):
        trainer = Trainer(net, recipe, dataset, record.seed, chosen, device)
        try:
            if isinstance(saved, CheckpointFile):
                trainer.load_state_dict(Checkpoint.from_bytes(saved.read(), record.run).state)
                return trainer.finish()
            tensors, _ = read_tensor_file(read_at_most(saved, MAX_TENSOR_FILE_BYTES))
            check_fit(tensors, trainer.model.state_dict())
        except OSError as error:
            raise RunError(format_read_error(path, error, "Fix that, then repeat it.")) from error
        except (TensorFileError, CheckpointError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise DisprovedError(f"{path} does not hold the net of the record: {error}.") from error
        trainer.model.load_state_dict(tensors)
        if average:
            return trainer.finish()
        return [trainer.test(evaluation=one) for one in evaluations or record.evaluations or (None,)]


def testing_precision(trained: str, device: torch.device) -> str:
    """Return the precision of a test: a CPU has no tf32, but can contradict a result that was measured with it."""
    return "fp32" if (trained, device.type) == ("tf32", "cpu") else trained


def _net_and_recipe(record: Record, dataset: Dataset) -> tuple[AnyNet, Recipe]:
    net, recipe = net_and_recipe(record.spec, record.evaluations)
    if (net.num_classes, net.in_chans) != (DATASETS[dataset.key].num_classes, 3):
        raise DisprovedError(f"{record.run} has a net for other images or classes than those of {dataset.name}.")
    return net, recipe


def _retrain(trainer: Trainer, lines: Sequence[HistoryLine], images: int) -> Iterator[HistoryLine]:
    """Train, and yield the same lines with new numbers, but the recorded times and, except for the last, tests."""
    last_test = max((line.iteration for line in lines if line.test_error is not None), default=0)
    for line in lines:
        while trainer.iteration < line.iteration:
            trainer.step()
        window = trainer.metrics.compute()
        tested = trainer.test() if line.iteration == last_test else None
        trainer.metrics.reset()
        again = history_line(trainer.recipe, images, line.iteration, window, tested, line.seconds)
        yield again if tested else replace(again, test_loss=line.test_loss, test_error=line.test_error)


def _deviation(recorded: float, repeated: float) -> float:
    found = abs(repeated - recorded) / abs(recorded) if recorded else abs(repeated)
    return found if found < MAX_DEVIATION else MAX_DEVIATION  # also if it is not a number


@contextmanager
def _computing_like(recorded: Environment, device: torch.device) -> Iterator[None]:
    """Use as many CPU threads as the recorded run, as the rounding of sums depends on it, if there are as many CPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(recorded.threads, max(before, processors())) if device.type == "cpu" else before)
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"the memory of {device} is not sufficient.") from error
    finally:
        torch.set_num_threads(before)
