"""Retrain the first iterations of a recorded run, test its saved net again, and compare with the record."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from paperbench.catalogue import DATASETS, Net
from paperbench.data.dataset import Dataset
from paperbench.errors import RunError, count
from paperbench.files import MAX_TENSOR_FILE_BYTES, format_read_error, read_at_most
from paperbench.processors import processors
from paperbench.runs.environment import environment_facts
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Environment, Record
from paperbench.runs.session import history_line
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file
from paperbench.training.engine import BIT_EQUAL, EngineName, available_engines
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import choose_precision
from paperbench.training.trainer import NUMERICS_VERSION, Trainer

MAX_LINES = 3
"""Maximum number of history lines that a rerun covers, to keep it short."""

MAX_IMAGES = 1_000_000
"""Maximum number of images that a rerun trains on: twenty epochs of CIFAR."""

TOLERANCE = 0.02
"""Allowed relative difference of a training loss (mean over a history line) on other hardware or libraries."""

IMAGES_TOLERANCE = 0.001
"""Allowed difference of the test error of the saved net on other hardware or libraries, as a share of the test images.

The net is the same, so only images whose two best classes have almost equal scores can change sides. Of 1,797 noisy
images, most of them misclassified, bfloat16 moved 8 and the number of errors by 1 against float64, and float32 none.
"""

LOSS_TOLERANCE = 0.002
"""Allowed relative difference of the test loss of the saved net on other hardware or libraries.

In the same test bfloat16 changed the loss by 0.00012 of it.
"""


@dataclass(frozen=True)
class Rerun:
    """The outcome of retraining the first iterations of a run.

    Attributes:
        iterations: Number of retrained iterations.
        is_same_machine: Whether CPU, threads and torch are as recorded, and both engines are eager or graph, so that
            the numbers must be bit-identical.
        is_identical: Whether every loss and error is bit-identical to the record.
        deviation: Largest relative difference of a training loss.
    """

    run: str
    iterations: int
    is_same_machine: bool
    is_identical: bool
    deviation: float

    @property
    def holds(self) -> bool:
        """Whether the rerun agrees with the record."""
        return self.is_identical or (not self.is_same_machine and self.deviation <= TOLERANCE)


@dataclass(frozen=True)
class Retest:
    """The outcome of testing the saved net of a run again in one way.

    Attributes:
        evaluation: None for whole images.
        images: Size of the test set.
        is_same_machine: As for `Rerun`, with the machine of the last session.
        is_identical: Whether errors and loss are bit-identical to the record.
        changed: Differences of the numbers of misclassified images, by the name of the error.
        deviation: Relative difference of the test loss.
    """

    run: str
    evaluation: Evaluation | None
    images: int
    is_same_machine: bool
    is_identical: bool
    changed: Mapping[str, int]
    deviation: float

    @property
    def allowed(self) -> int:
        """Number of images by which another machine may differ; at least one."""
        return math.ceil(self.images * IMAGES_TOLERANCE)

    @property
    def holds(self) -> bool:
        """Whether the saved net has the recorded errors and loss."""
        is_near = max(self.changed.values()) <= self.allowed and self.deviation <= LOSS_TOLERANCE
        return self.is_identical or (not self.is_same_machine and is_near)


class DisprovedError(RunError):
    """A record whose net cannot have been trained or saved as it says."""


def rerun_prefix(
    record: Record,
    history: Sequence[HistoryLine],
    dataset: Dataset,
    device: torch.device,
    random_state: random.Random,
    announce: Callable[[str], None] = lambda _: None,
) -> Rerun:
    """Retrain a run up to a random one of its first history lines, and compare.

    Args:
        random_state: Chooses the line.
        announce: Called with a sentence about the work before it starts, if it is on photographs.

    Raises:
        RunError: The first session logged no line, or one after too many images; this code has another
            numerics version; the memory is not sufficient; or only here, or only there, the run diverged.
        DisprovedError: The net does not fit the data.
        PaperbenchError: The device does not support the run's precision.
    """
    first, recorded = record.sessions[0], record.sessions[0].environment
    if first.code.numerics != NUMERICS_VERSION:
        raise RunError(f"it has numerics version {first.code.numerics}, and this is {NUMERICS_VERSION}.")
    lines = [line for line in history[:MAX_LINES] if line.iteration <= first.last]
    if not lines:
        raise RunError("its first session logged no history line.")
    net, recipe = _net_and_recipe(record, dataset)
    images = dataset.num_train
    lines = [line for line in lines if recipe.images_before(line.iteration, images) <= MAX_IMAGES]
    if not lines:
        raise RunError(f"its first history line is after more than {MAX_IMAGES:,} images.")
    del lines[random_state.randint(1, len(lines)) :]
    if recipe.photographs:
        work = f"{recipe.images_before(lines[-1].iteration, images):,} photographs"
        tests = f"{count(dataset.num_test, 'photograph')} in each of {count(len(recipe.evaluations), 'way')}"
        announce(f"{record.run}: training on {work} again, then testing its saved net on {tests}.")
    precision = choose_precision(record.spec.precision, device)
    with _computing_like(recorded, device):
        current = environment_facts(device)
        engine = _engine_like(first.engine, device)
        is_same = {first.engine, engine} <= BIT_EQUAL and _is_same_machine(current, recorded, device)
        trainer = Trainer(net, recipe, dataset, record.seed, precision, device, engine=engine)
        with closing(trainer):
            pairs = list(zip(lines, _retrain(trainer, lines, images), strict=True))
    if not is_same and any((line.train_loss is None) != (again.train_loss is None) for line, again in pairs):
        raise RunError("it diverges in these iterations, which on other hardware may happen elsewhere.")
    return Rerun(
        run=record.run,
        iterations=lines[-1].iteration,
        is_same_machine=is_same,
        is_identical=all(line == again for line, again in pairs),
        deviation=max(_deviation(line.train_loss, again.train_loss) for line, again in pairs),
    )


def retest(record: Record, weights_file: Path, dataset: Dataset, device: torch.device) -> list[Retest]:
    """Test the saved net of a finished run in all its ways, with the BN statistics that it was tested with.

    Raises:
        RunError: The file cannot be read, or the memory is not sufficient.
        DisprovedError: The tensors do not fit the net, or the net does not fit the data.
        PaperbenchError: The device does not support the run's precision, or an image cannot be read.
    """
    result, environment = record.result, record.sessions[-1].environment
    if result is None:
        raise RunError("it has no result.")
    recorded: list[tuple[Evaluation | None, dict[str, float], float]] = [
        (one.evaluation, {"top-1 error": one.top1, "top-5 error": one.top5}, one.loss) for one in result.evaluations
    ] or [(None, {"test error": result.test_error}, result.test_loss)]
    tested = evaluate_saved_net(record, weights_file, dataset, device)
    with _computing_like(environment, device):
        is_same_machine = _is_same_machine(environment_facts(device), environment, device)
    found = []
    for (evaluation, errors, loss), again in zip(recorded, tested, strict=True):
        new = dict(zip(errors, (again.error, again.top5_error), strict=False))
        found.append(
            Retest(
                run=record.run,
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
    weights_file: Path,
    dataset: Dataset,
    device: torch.device,
    precision: str | None = None,
    evaluations: Sequence[Evaluation] = (),
) -> list[EvaluationMetrics]:
    """Test the saved net of a finished run as it was tested after training.

    Args:
        precision: By default the run's.
        evaluations: By default the record's. For small images, the only result is that of whole images.

    Raises:
        PaperbenchError: As for `retest`.
    """
    net, recipe = _net_and_recipe(record, dataset)
    chosen = choose_precision(precision or testing_precision(record.spec.precision, device), device)
    with _computing_like(record.sessions[-1].environment, device):
        trainer = Trainer(net, recipe, dataset, record.seed, chosen, device)
        try:
            tensors, _ = read_tensor_file(read_at_most(weights_file, MAX_TENSOR_FILE_BYTES))
            check_fit(tensors, trainer.model.state_dict())
        except OSError as error:
            raise RunError(format_read_error(weights_file, error, "Fix that, then repeat it.")) from error
        except (TensorFileError, ValueError) as error:
            raise DisprovedError(f"{weights_file} does not hold the net of the record: {error}.") from error
        trainer.model.load_state_dict(tensors)
        return [trainer.test(evaluation=one) for one in evaluations or record.evaluations or (None,)]


def testing_precision(trained: str, device: torch.device) -> str:
    """Return the precision of a test: a CPU has no tf32, but can contradict a result that was measured with it."""
    return "fp32" if (trained, device.type) == ("tf32", "cpu") else trained


def _net_and_recipe(record: Record, dataset: Dataset) -> tuple[Net, Recipe]:
    net, recipe = net_and_recipe(record.spec, record.evaluations)
    if (net.num_classes, net.in_chans) != (DATASETS[dataset.key].num_classes, 3):
        raise DisprovedError(f"{record.run} has a net for other images or classes than those of {dataset.name}.")
    return net, recipe


def _engine_like(recorded: str, device: torch.device) -> EngineName:
    """Return the recorded engine if it is available on the device, otherwise "eager"."""
    for name, why_not in available_engines(device).items():
        if name == recorded and why_not is None:
            return name
    return "eager"


def _retrain(trainer: Trainer, lines: Sequence[HistoryLine], images: int) -> Iterator[HistoryLine]:
    """Train, and yield the same lines with new numbers but the recorded times."""
    for line in lines:
        while trainer.iteration < line.iteration:
            trainer.step()
        window = trainer.training_metrics()
        tested = trainer.test() if line.test_error is not None else None
        trainer.reset_training_metrics()
        yield history_line(trainer.recipe, images, line.iteration, window, tested, line.seconds)


def _deviation(recorded: float | None, repeated: float | None) -> float:
    if recorded is None or repeated is None:
        return 0.0 if recorded == repeated else math.inf
    return abs(repeated - recorded) / abs(recorded) if recorded else abs(repeated)


def _is_same_machine(current: Environment, recorded: Environment, device: torch.device) -> bool:
    """Whether equal training on both gives equal bits."""
    facts = [(of.torch, of.device, of.threads) for of in (current, recorded)]
    return device.type == "cpu" and facts[0] == facts[1]


@contextmanager
def _computing_like(recorded: Environment, device: torch.device) -> Iterator[None]:
    """Use as many CPU threads as the recorded run, since the rounding of sums depends on it, if there are as many CPUs.

    Raises:
        RunError: The memory is not sufficient.
    """
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
