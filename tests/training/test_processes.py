"""Several processes that share a run must make the numbers of one, bit for bit."""

from __future__ import annotations

import multiprocessing
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from paperbench.catalogue import NETS, resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.errors import DataError, EngineError, Interrupted, PaperbenchError, RunError
from paperbench.launch import Launch
from paperbench.specs.recipe import BatchNormSettings, Drops, Evaluation, Recipe
from paperbench.training.evaluation import EvaluationMetrics, as_memory_allows
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.processes import ALONE, Processes, ProcessLostError, refusal
from paperbench.training.soundness import engine_error
from paperbench.training.trainer import Trainer
from paperbench.training.tree_sum import TreeSum
from tests.training.tape import Tape
from tests.training.together import CPU, together
from tests.training.trainings import MORE, advance, differences, state_of

STEPS = 3


@pytest.fixture(scope="module")
def base(paper_recipe: Recipe) -> Recipe:
    """Batches of 16 images in four groups; the rate drops twice. 25 groups are re-estimated."""
    return replace(
        paper_recipe,
        batch_size=16,
        iterations=STEPS,
        warm_up=None,
        drops=Drops((1, STEPS - 1), 0.1),
        batch_norm=BatchNormSettings(4, 1e-5, 0.1, "reestimated"),
    )


@dataclass(frozen=True)
class Training:
    """A training on random images of 16 pixels, or on the embedded photographs.

    Attributes:
        at_once: Test images that go through the net at once.
    """

    net: str = "preact_resnet20"
    depth: int = 8
    precision: str = "fp32"
    engine: str = "eager"
    group: int = 4
    changes: Mapping[str, Any] = field(default_factory=dict)
    photographs: bool = False
    recompute: bool = False
    at_once: int = 7

    def trainer(self, data: Data, processes: Processes) -> Trainer:
        recipe, dataset = (data.photo_recipe, data.photos) if self.photographs else (data.recipe, data.images)
        batch_norm = replace(recipe.batch_norm, group=self.group)
        changes = {"batch_norm": batch_norm, **self.changes}
        if recipe.photographs and changes.get("input") == "per_pixel_mean":
            changes["photographs"] = replace(recipe.photographs, mean_image_scale=20)
        recipe = replace(recipe, **changes)
        what = resolve(self.net, depth=self.depth), recipe, dataset, 3, self.precision, CPU, self.engine
        trainer = Trainer(*what, recompute=self.recompute, processes=processes, capture=lambda _: Tape())
        trainer.feed.test_batch = self.at_once
        return trainer


@dataclass(frozen=True)
class Data:
    recipe: Recipe
    images: ImageDataset
    photo_recipe: Recipe
    photos: PhotoDataset


@pytest.fixture(scope="module")
def data(base: Recipe, tiny_dataset: ImageDataset, photo_recipe: Recipe, photos: PhotoDataset) -> Data:
    """47 photographs, of which epochs end with unequal groups."""
    return Data(base, tiny_dataset, photo_recipe, replace(photos, train=photos.train.select(np.arange(47))))


@dataclass(frozen=True)
class Outcome:
    """State and metrics after the last iteration; results of tests before and after the end; the last state."""

    trained: dict[str, Tensor]
    metrics: TrainingMetrics
    tests: list[EvaluationMetrics]
    finished: dict[str, Tensor]


def to_the_end(trainer: Trainer) -> Outcome:
    advance(trainer, trainer.recipe.iterations)
    trained, metrics = state_of(trainer), trainer.metrics.compute()
    evaluations = list(trainer.recipe.evaluations.values()) or [None]
    tests = [*(trainer.test(evaluation=one) for one in evaluations), *trainer.finish()]
    return Outcome(trained, metrics, tests, state_of(trainer))


def assert_equal(found: Outcome, expected: Outcome) -> None:
    assert differences(found.trained, expected.trained) == []
    assert differences(found.finished, expected.finished) == []
    assert (found.metrics, found.tests) == (expected.metrics, expected.tests)
    assert all(value.isfinite().all() for value in expected.finished.values())


# 47 photographs in batches of 16, the last of an epoch with groups of 4 + 4 + 4 + 3
DAGGER = {"batch_size": 16, "iterations": 4, "momentum_form": "caffe", "drops": Drops((3,), 0.1)}
MEANS = {
    "input": "per_pixel_mean",
    "evaluations": {"first": Evaluation(crop=16, scale=18), "second": Evaluation(crop=24, scale=24)},
}
SMALLEST = {"basic": 8, "bottleneck": 11, "one_layer": 5}
UNITS = {
    (net.family, net.placement, net.shortcut): Training(name, SMALLEST[net.family], ("fp32", "bf16")[index % 2])
    for index, (name, net) in enumerate((name, resolve(name)) for name in NETS)
    if net.family in SMALLEST and not net.has_dropout
}
"""A training per kind of unit."""

TRAININGS = {
    "two groups": (Training(group=8, changes={"momentum_form": "nesterov"}), (2,)),
    "four groups": (Training("resnet110_exclusive_gating", precision="bf16"), (2, 4)),
    "eight groups": (
        Training("original_resnet110_1layer", 5, group=2, changes={"weight_decay_on": "convolutions"}, recompute=True),
        (2, 4, 8),
    ),
    "six groups": (Training(group=3, changes={"batch_size": 18, "momentum_form": "pytorch"}), (3, 6)),
    "one test batch": (Training(at_once=100, changes={"momentum": 0.0}), (2,)),
    "photographs": (Training(photographs=True, changes=DAGGER, at_once=5), (2, 4)),
    "mean images": (Training(photographs=True, precision="bf16", changes={**DAGGER, **MEANS}, at_once=5), (2,)),
    "captured": (Training(engine="graph"), (2, 4)),
    "smooth": (Training(engine="graph", changes=MORE), (2, 4)),
    "smooth photographs": (Training(photographs=True, changes={**DAGGER, **MORE}, at_once=5), (2,)),
    "captured in bf16": (Training("resnet110_conv_shortcut", precision="bf16", engine="graph"), (2,)),
    "captured photographs": (Training(photographs=True, engine="graph", changes=DAGGER), (2,)),
}
DEFAULT = {"two groups", "four groups", "photographs", "captured", "smooth"}


@pytest.fixture(scope="module")
def alone(data: Data) -> Callable[[Training], Outcome]:
    """What a single process makes of a training."""
    found: dict[str, Outcome] = {}

    def outcome(training: Training) -> Outcome:
        eager = replace(training, engine="eager")
        if str(eager) not in found:
            found[str(eager)] = to_the_end(eager.trainer(data, ALONE))
        return found[str(eager)]

    return outcome


def outcomes(count: int, trainings: list[Training], data: Data) -> list[Outcome]:
    """What each of several processes makes of one training after the other: the same in all."""

    def work(processes: Processes) -> list[Any]:
        return [to_the_end(training.trainer(data, processes)) for training in trainings]

    first, *others = together(count, work)
    for other in others:
        for one, expected in zip(other, first, strict=True):
            assert_equal(one, expected)
    return first


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(name, count, marks=() if name in DEFAULT and count < 5 else pytest.mark.full)
        for name, (_, counts) in TRAININGS.items()
        for count in counts
    ],
)
def test_processes_make_the_numbers_of_one(
    name: str, count: int, data: Data, alone: Callable[[Training], Outcome]
) -> None:
    training, _ = TRAININGS[name]
    (found,) = outcomes(count, [training], data)
    assert_equal(found, alone(training))


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 4])
def test_processes_make_the_numbers_of_one_with_every_kind_of_unit(
    count: int, data: Data, alone: Callable[[Training], Outcome]
) -> None:
    for unit, found in zip(UNITS, outcomes(count, list(UNITS.values()), data), strict=True):
        print(*unit)
        assert_equal(found, alone(UNITS[unit]))


def test_every_test_image_counts_once(data: Data) -> None:
    """Six batches of at most 7 images for four processes, against all images at once."""

    def lead(trainer: Trainer) -> Any:
        advance(trainer, STEPS)
        tested = trainer.test()
        mean = data.images.x_train.mean(0, dtype=np.float64) / 255
        images = torch.from_numpy(data.images.x_test / 255 - mean).permute(0, 3, 1, 2)
        with torch.no_grad():
            return tested, trainer.model.double()(images)

    tested, logits = together(4, lambda processes: lead(Training().trainer(data, processes)))[0]
    labels = torch.from_numpy(data.images.y_test)
    assert tested.error == pytest.approx(100 * (logits.argmax(1) != labels).double().mean().item())
    assert tested.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("before", "after"), [(4, 1), (1, 2), *(pytest.param(*p, marks=pytest.mark.full) for p in ((4, 2), (2, 4)))]
)
def test_training_continues_in_another_number_of_processes(
    before: int, after: int, data: Data, alone: Callable[[Training], Outcome]
) -> None:
    """The rate has dropped, and drops again right after."""
    training = Training("preact_resnet110_1layer", 5)

    def begin(trainer: Trainer) -> dict[str, Tensor]:
        return state_of(advance(trainer, STEPS - 1))

    def end(trainer: Trainer) -> Outcome:
        if not trainer.processes.rank:
            trainer.load_state_dict(state)
        trainer.take_over_state()
        return to_the_end(trainer)

    state = together(before, lambda processes: begin(training.trainer(data, processes)))[0]
    for outcome in together(after, lambda processes: end(training.trainer(data, processes))):
        assert_equal(outcome, alone(training))


def test_first_steps_of_an_engine_are_compared_and_leave_no_trace(
    data: Data, alone: Callable[[Training], Outcome]
) -> None:
    training = Training("preact_resnet110_1layer", 5, engine="graph")

    def lead(trainer: Trainer) -> Any:
        before = state_of(trainer)
        return engine_error(trainer), differences(state_of(trainer), before), to_the_end(trainer)

    for error, changed, outcome in together(2, lambda processes: lead(training.trainer(data, processes))):
        assert (error, changed) == (None, [])
        assert_equal(outcome, alone(training))


@pytest.mark.parametrize("is_store", [pytest.param(False, marks=pytest.mark.full), True])
def test_taken_port_is_told_at_once_in_all_processes(is_store: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """By a program that never answers, or by another launch."""
    with socket.create_server(("", 0)) as silent:
        store = TCPStore("127.0.0.1", 0, is_master=True)
        store.set("7.1", "")
        port = store.port if is_store else silent.getsockname()[1]
        with pytest.raises(PaperbenchError, match=r"Process 0 of 2 cannot reach.*already in use"):
            Processes(Launch(0, 2, 0, "127.0.0.1", port, "7.0"), CPU)
        launch = Launch(1, 2, 1, "127.0.0.1", port, "7.0")
        process = multiprocessing.get_context("fork").Process(target=Processes, args=(launch, CPU, 1.0))
        process.start()
        process.join(60)
    assert process.exitcode == 1
    assert f"127.0.0.1:{port} is not process 0. Set MASTER_PORT" in capfd.readouterr().err


def test_process_0_may_start_long_after_what_forwards_to_it() -> None:
    """A proxy accepts and closes; torch would ask ever less often, and take longer than process 0 may to answer."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        launch = Launch(1, 2, 1, *proxy.getsockname())
        process = multiprocessing.get_context("fork").Process(target=Processes, args=(launch, CPU, 0.2))
        process.start()
        for _ in range(2):
            proxy.accept()[0].close()
    process.join(0.5)
    assert process.is_alive()
    process.kill()


class Faulty:
    """A function that raises an error at some calls."""

    def __init__(self, function: Callable[..., Any], error: Exception, fails: Callable[..., bool]) -> None:
        self._function, self._error, self._fails = function, error, fails

    def __call__(self, *arguments: Any) -> Any:
        if self._fails(*arguments):
            raise self._error
        return self._function(*arguments)


def limited(
    passes: Callable[..., Iterator[Any]], most: int, size: Callable[[Any], int]
) -> Callable[..., Iterator[Any]]:
    """A feed's pass over images that runs out of memory at a batch of more than `most` images."""

    def limited_pass(*arguments: Any) -> Iterator[Any]:
        for batch in passes(*arguments):
            if size(batch) > most:
                raise torch.OutOfMemoryError("out of memory")
            yield batch

    return limited_pass


@pytest.mark.parametrize(
    ("failing", "iteration"),
    [(1, 3), *(pytest.param(*one, marks=pytest.mark.full) for one in ((0, 1), (0, 3), (1, 1)))],
)
def test_unreadable_image_of_one_process_stops_all_before_the_step(
    failing: int, iteration: int, data: Data, alone: Callable[[Training], Outcome]
) -> None:
    """At iteration 3, the rate drops."""
    training = Training(photographs=True, changes=DAGGER, at_once=5)

    def go_on(trainer: Trainer) -> Outcome:
        before = state_of(advance(trainer, iteration))
        is_own = trainer.processes.rank == failing
        with pytest.raises(DataError, match="^lost$" if is_own else f"^Process {failing}: lost$"):
            trainer.step()
        assert differences(state_of(trainer), before) == []
        return to_the_end(trainer)

    def work(processes: Processes) -> Any:
        trainer = training.trainer(data, processes)
        if processes.rank == failing:
            calls = iter([True, False])
            fails = lambda number: number == iteration and next(calls, False)  # noqa: E731
            trainer.feed.choices = Faulty(trainer.feed.choices, DataError("lost"), fails)  # type: ignore[method-assign]
        return go_on(trainer)

    for outcome in together(2, work):
        assert_equal(outcome, alone(training))


def test_lack_of_memory_in_one_process_stops_all_before_the_step(
    data: Data, alone: Callable[[Training], Outcome]
) -> None:
    training = Training(changes={"drops": Drops((2,), 0.1)})  # a drop would scale the momentum before the step

    def go_on(trainer: Trainer) -> Outcome:
        before = state_of(advance(trainer, 1))
        with pytest.raises(torch.OutOfMemoryError, match="Process 1: can't allocate memory"):
            trainer.step()
        assert differences(state_of(trainer), before) == []
        return to_the_end(trainer)

    def work(processes: Processes) -> Any:
        trainer = training.trainer(data, processes)
        if processes.rank:
            calls = iter([False, False, False, True])  # the second group of the second step
            error = RuntimeError("can't allocate memory")
            trainer.model.fc.forward = Faulty(trainer.model.fc.forward, error, lambda _: next(calls, False))
        return go_on(trainer)

    for outcome in together(2, work):
        assert_equal(outcome, alone(training))


def test_lack_of_memory_in_one_process_ends_the_comparison_in_all(data: Data) -> None:
    """Each makes the steps of the reference alone, without an exchange in between."""

    def work(processes: Processes) -> None:
        trainer = Training().trainer(data, processes)
        if processes.rank:
            error = RuntimeError("can't allocate memory")
            trainer.model.fc.forward = Faulty(trainer.model.fc.forward, error, lambda _: True)
        with pytest.raises(torch.OutOfMemoryError if not processes.rank else RuntimeError, match="can't allocate"):
            engine_error(trainer)
        assert processes.numbers(processes.rank) == [0, 1], "they are in step"

    together(2, work)


@pytest.mark.full
def test_lack_of_memory_in_one_process_halves_the_batches_of_all(
    data: Data, alone: Callable[[Training], Outcome]
) -> None:
    """Tests of 28 images at once become tests of 7."""

    def work(processes: Processes) -> Any:
        trainer = replace(Training(), at_once=28).trainer(data, processes)
        if processes.rank:
            feed = trainer.feed
            feed.test = limited(feed.test, 7, lambda batch: len(batch.labels))  # type: ignore[method-assign]
        return to_the_end(trainer), trainer.feed.test_batch

    (outcome, first), (_, second) = together(2, work)
    assert_equal(outcome, alone(Training()))
    assert first == second == 7


def test_flipped_bit_in_one_process_is_found_before_a_state_is_saved(data: Data) -> None:
    """In a parameter, an average and a momentum."""

    def work(processes: Processes) -> None:
        for pick in range(3):
            trainer = Training().trainer(data, processes)
            if processes.rank:
                tensors = trainer.model.fc.bias, trainer.model.tail.bn.running_var, trainer._optimiser.momentum[0]
                tensors[pick].data.flatten(0, 0).view(torch.int32)[3] ^= 1
            with pytest.raises(RunError, match="hold different parameters"):
                trainer.state_dict()

    together(2, work)


def random_gradients(group: int) -> list[Tensor]:
    """Of odd sizes and in several layouts, with sums that round."""
    generator = torch.Generator().manual_seed(group)
    shapes = (3, 5, 3, 3), (1,), (7,), (2, 3, 1, 1), (11, 13), ()
    gradients = [torch.randn(shape, generator=generator) * 3**group for shape in shapes]
    gradients[0] = gradients[0].to(memory_format=torch.channels_last)
    gradients[4] = gradients[4].T
    return gradients


def total_of(groups: range) -> list[Tensor]:
    """Their sum, in plain words: halves are summed first; of three processes' groups, the first two's."""
    if len(groups) == 1:
        return random_gradients(groups[0])
    half = 2 ** ((len(groups) - 1).bit_length() - 1)
    return [a + b for a, b in zip(total_of(groups[:half]), total_of(groups[half:]), strict=True)]


@pytest.mark.parametrize("count", [2, 3])
def test_sums_and_rows_are_in_the_order_of_groups(count: int) -> None:
    groups = 4 * count

    def work(processes: Processes) -> Any:
        rank, sums = processes.rank, TreeSum()
        for group in range(4 * rank, 4 * rank + 4):
            sums.add(random_gradients(group))
        processes.reserve(random_gradients(0))
        summed = processes.summed(sums.total())
        gathered = processes.gathered(torch.arange(6.0).view(2, 3) + 10 * rank)
        # part 1 has no rows, part 4 one row, and the others two; the sums round in float32
        parts = [torch.full((n, 2), 10.0**p) for p, n in enumerate((2, 0, 2, 2, 1, 2, 2, 2))]
        total = torch.zeros(2, dtype=torch.float64)
        rows = processes.add_rows(range(rank, 8, count), lambda part: parts[part], total)
        values = [torch.full((2, 3), float(rank)), torch.full((4, 1), -float(rank))]
        processes.broadcast(values)
        return summed, gathered, (rows, total), values

    for summed, gathered, (rows, total), values in together(count, work):
        for found, expected in zip(summed, total_of(range(groups)), strict=True):
            assert torch.equal(found, expected)
        assert gathered.tolist() == [[10 * r + 3 * k + i for i in range(3)] for r in range(count) for k in range(2)]
        assert (rows, total.tolist()) == (13, [2 + 2e2 + 2e3 + 1e4 + 2e5 + 2e6 + 2e7] * 2)
        assert not any(value.any() for value in values)


def test_rows_are_added_one_by_one_in_the_order_of_parts() -> None:
    """In another order, the small ones would not be lost."""

    def work(processes: Processes) -> list[float]:
        total = torch.zeros(1)
        values = (1.0, 2.0**24, 1.0, 1.0, -(2.0**24), 5.0, 7.0)
        processes.add_rows(values[processes.rank :: 2], lambda value: torch.tensor([[value]]), total)
        return total.tolist()

    assert together(2, work) == [[12.0], [12.0]]


FAILURES: list[tuple[tuple[Exception | None, Exception | None], type[Exception], str]] = [
    ((None, DataError("gone")), DataError, "gone"),
    ((KeyError("name"), None), RuntimeError, "'name'"),
    ((OSError("no space"), None), OSError, "no space"),
    ((None, MemoryError("full")), torch.OutOfMemoryError, "full"),
    ((Interrupted(), None), Interrupted, ""),
    ((None, EngineError("no graph")), EngineError, "no graph. A run takes the fastest"),
    ((torch.OutOfMemoryError("full"), DataError("gone")), torch.OutOfMemoryError, "full"),
    ((DataError("é" * 3000), RunError("other")), DataError, "é" * 1000),
]
"""Errors of two processes, and what both then raise."""


def test_errors_of_some_processes_are_errors_of_one_kind_in_all() -> None:
    """So all try again with less memory, or none does. The next agreement works."""

    def agreed(processes: Processes, error: Exception | None) -> Any:
        def fail() -> None:
            if error:
                raise error

        try:
            processes.agreed(fail)
        except Exception as caught:
            return type(caught), str(caught), processes.all_have(caught), processes.agreed(lambda: 2)

    def work(processes: Processes) -> Any:
        return [agreed(processes, errors[processes.rank]) for errors, _, _ in FAILURES]

    for rank, caught in enumerate(together(2, work)):
        for (errors, kind, text), (found, says, *rest) in zip(FAILURES, caught, strict=True):
            assert (found, *rest) == (kind, True, 2)
            assert text in says
            assert isinstance(errors[rank], Exception) or says.startswith(f"Process {1 - rank}: ")


def test_interrupted_process_leaves_the_others_at_once() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def work(processes: Processes) -> None:
        processes.numbers(0)  # all have joined
        if processes.rank == 0:
            with pytest.raises(KeyboardInterrupt):
                processes.agreed(interrupt)
        with pytest.raises(ProcessLostError):
            processes.agreed(lambda: None)

    together(2, work)


def test_agreed_error_keeps_no_memory() -> None:
    """Its traceback refers to tensors, which the next attempt has no room for."""

    def work(processes: Processes) -> bool:
        tensor = torch.zeros(3)
        alive = weakref.ref(tensor)

        def fail(kept: Tensor) -> None:
            raise torch.OutOfMemoryError("out of memory")

        def attempt(at_once: int) -> bool:
            nonlocal tensor
            if at_once == 1:
                return alive() is None
            kept, tensor = tensor, torch.zeros(0)
            processes.agreed(lambda: fail(kept))
            return False

        return as_memory_allows(attempt, 2, CPU)

    assert together(2, work) == [True, True]


@pytest.mark.parametrize(
    ("groups", "illegal", "advice"),
    [
        (8, (3, 5, 16), "Use 1, 2, 4 or 8"),
        (6, (2, 4), "they have 6 batch-norm groups of 4 images. Use 1, 3 or 6"),
        (1, (2,), "1 batch-norm group of 4 images. Use 1"),
        (12, (2, 4), "Use 1, 3, 6 or 12"),
    ],
)
def test_other_numbers_of_processes_are_refused(
    groups: int, illegal: tuple[int, ...], advice: str, base: Recipe
) -> None:
    recipe, net = replace(base, batch_size=4 * groups), resolve("preact_resnet20", depth=8)
    for count in range(1, 17):
        problem = refusal(count, net, recipe, 100)
        parts = groups / count
        assert (problem is None) == (count == 1 or parts in {1, 2, 4, 8, 16}), count
        assert problem is None or problem.startswith(f"{count} processes cannot share its batches")
        assert count not in illegal or advice in (problem or "")


def test_noise_and_tiny_last_batches_take_one_process(data: Data) -> None:
    recipe = replace(data.photo_recipe, batch_size=16, batch_norm=replace(data.photo_recipe.batch_norm, group=4))
    quiet = resolve("preact_resnet20", depth=8)
    for noisy in resolve("resnet110_dropout_shortcut", depth=8), replace(quiet, residual_dropout=0.3):
        assert refusal(1, noisy, recipe, 51) is None
        assert "single process" in (refusal(2, noisy, recipe, 47) or "")
    assert refusal(2, quiet, recipe, 47) is None
    assert refusal(2, quiet, recipe, 48) is None
    assert refusal(2, quiet, recipe, 52) is None
    assert "only 3 images" in (refusal(2, quiet, recipe, 51) or "")
