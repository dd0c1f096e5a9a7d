"""The graph engine compared with the eager one, bit for bit.

On a CPU, a tape replaces the CUDA graph (`tests/training/tape.py`). `python -m pytest -m gpu` runs the tests on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError, RunError
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe
from paperbench.training.graph import CudaCapture
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.trainer import Trainer
from tests.training.tape import Tape
from tests.training.trainings import MORE, Runs, advance, differences, recipe_of, state_of, take_metrics, through_a_file

CPU = torch.device("cpu")
STEPS = 24
NOISY = "resnet110_dropout_shortcut"


@pytest.fixture
def recipe(paper_recipe: Recipe) -> Recipe:
    return recipe_of(paper_recipe, STEPS)


@pytest.fixture(params=["tape", pytest.param("cuda", marks=pytest.mark.gpu)])
def runs(recipe: Recipe, tiny_dataset: ImageDataset, request: pytest.FixtureRequest) -> Runs:
    return Runs(recipe, tiny_dataset, CPU if request.param == "tape" else torch.device("cuda"))


@pytest.fixture
def noisy(runs: Runs) -> Runs:
    """Trainings of a net that draws random numbers in every step."""
    return replace(runs, net=NOISY, residual_dropout=0.3)


def metrics_and_states(trainer: Trainer) -> tuple[list[TrainingMetrics], list[dict[str, Tensor]]]:
    """Metrics over 1, 8, 8, ... iterations; the states after each of them, before the first and after the last."""
    metrics, states = [], [state_of(trainer)]
    while trainer.iteration < trainer.recipe.iterations:
        trainer.step()
        if trainer.iteration % 8 == 1:
            metrics.append(take_metrics(trainer))
            states.append(state_of(trainer))
    return metrics, [*states, state_of(trainer)]


def assert_graph_equals_eager(runs: Runs) -> None:
    metrics, states = metrics_and_states(runs.new("eager"))
    graph_metrics, graph_states = metrics_and_states(runs.new("graph"))
    assert graph_metrics == metrics
    for eager_state, graph_state in zip(states, graph_states, strict=True):
        assert differences(graph_state, eager_state) == [], eager_state["iteration"]
    assert all(value.isfinite().all() for value in states[-1].values() if isinstance(value, Tensor))
    assert bool(runs.recipe.momentum) == any(key.startswith("momentum.") for key in states[-1])


@pytest.mark.full
def test_200_steps_equal_eager_ones(runs: Runs, paper_recipe: Recipe) -> None:
    precision = "fp32" if runs.device == CPU else "tf32"
    assert_graph_equals_eager(replace(runs, recipe=recipe_of(paper_recipe, 200), precision=precision))


@pytest.mark.parametrize(
    ("net", "precision", "changes"),
    [
        ("preact_resnet20", "fp32", {}),
        ("original_resnet20", "bf16", {"momentum_form": "pytorch"}),
        ("preact_resnet20", "bf16", MORE),
        (NOISY, "fp32", {"momentum_form": "nesterov"}),
        ("preact_resnet164", "bf16", {**MORE, "batch_size": 12, "iterations": 8}),  # four groups
        pytest.param("preact_resnet164", "fp32", {}, marks=pytest.mark.full),
        ("resnet110_exclusive_gating", "bf16", {}),
        ("resnet110_conv_shortcut", "bf16", {"momentum_form": "pytorch"}),
        ("resnet110_bn_after_addition", "fp32", {"momentum": 0.0}),
        ("preact_resnet20", "fp32", {"batch_norm": BatchNormSettings(6, 1e-5, 0.1, "reestimated")}),  # one group
        ("own_nets.py:mixed", "fp32", {}),
        ("own_nets.py:mixed", "bf16", MORE),
        ("own_nets.py:without_batch_norm", "fp32", {}),
        ("own_nets.py:residual", "fp32", {}),
    ],
)
def test_steps_equal_eager_ones(runs: Runs, net: str, precision: str, changes: dict[str, Any]) -> None:
    depth, recipe = 11 if "164" in net else 8, replace(runs.recipe, **changes)
    assert_graph_equals_eager(replace(runs, net=net, depth=depth, precision=precision, recipe=recipe))


@pytest.mark.parametrize(("group", "branches"), [(6, {None}), (3, {None, 0, 1})])
def test_groups_are_side_by_side(
    recipe: Recipe, tiny_dataset: ImageDataset, group: int, branches: set[int | None]
) -> None:
    tape, batch_norm = Tape(), replace(recipe.batch_norm, group=group)
    Runs(replace(recipe, batch_norm=batch_norm), tiny_dataset, CPU, capture=lambda _: tape).new("graph").step()
    assert tape.branches == branches


@pytest.mark.parametrize(
    ("precision", "first", "second"),
    [("fp32", "graph", "graph"), ("bf16", "eager", "graph"), ("fp32", "graph", "eager")],
)
def test_any_engine_resumes_another(noisy: Runs, precision: str, first: str, second: str, full: bool) -> None:
    """Stops before and at changes of the rate, and inside a batch that spans two epochs (17)."""
    noisy = replace(noisy, precision=precision)
    states = noisy.eager_states()
    for stop in (1, 17, 18) if full or noisy.device.type == "cuda" else (17,):
        saved = through_a_file(advance(noisy.new(first), stop))
        torch.manual_seed(99)  # another process would start from other generators
        resumed = noisy.new(second)
        resumed.load_state_dict(saved)
        assert differences(state_of(advance(resumed, stop + 5)), states[stop + 5]) == [], stop


def test_captured_training_can_load_any_state(noisy: Runs) -> None:
    """Earlier, later and current states. Training does not write to the loaded tensors."""
    expected = noisy.eager_states()
    trainer = noisy.new("graph")
    saved = {}
    for iteration in (0, 5, 17, 20):
        saved[iteration] = state_of(advance(trainer, iteration))
    for start in (5, 20, 0, 17, 0):
        loaded = {name: tensor.clone() for name, tensor in saved[start].items()}
        trainer.load_state_dict(loaded)
        assert differences(state_of(advance(trainer, start + 3)), expected[start + 3]) == [], start
        assert differences(loaded, saved[start]) == []
    trainer.load_state_dict(trainer.state_dict())
    assert differences(state_of(advance(trainer, 5)), expected[5]) == []


def test_testing_between_replays_changes_nothing(noisy: Runs) -> None:
    eager, trainer = noisy.new("eager"), noisy.new("graph")
    for iteration in range(1, 7):
        torch.manual_seed(iteration)  # both trainers use the same generator
        eager.step()
        torch.manual_seed(iteration)
        trainer.step()
        assert trainer.test() == eager.test()
        assert trainer.metrics.compute() == eager.metrics.compute()
    assert differences(state_of(trainer), state_of(eager)) == []


def test_finish_equals_eager_and_training_can_go_back(runs: Runs) -> None:
    expected = runs.eager_states()[9]
    eager, trainer = (advance(runs.new(engine), 6) for engine in ("eager", "graph"))
    state = state_of(trainer)
    assert trainer.finish() == eager.finish()
    assert differences(trainer.model.state_dict(), eager.model.state_dict()) == []
    trainer.load_state_dict(state)
    assert differences(state_of(advance(trainer, 9)), expected) == []


def test_eager_steps_between_replays(noisy: Runs) -> None:
    """As in the search for the origin of a divergence."""
    expected = noisy.eager_states()
    trainer = advance(noisy.new("graph"), 3)
    with trainer.stepping_eagerly():
        assert differences(state_of(advance(trainer, 6)), expected[6]) == []
    assert differences(state_of(advance(trainer, 9)), expected[9]) == []


def test_two_trainings_side_by_side(runs: Runs) -> None:
    """On a GPU at the same time."""
    narrow = replace(runs, net="original_resnet20", precision="bf16")
    expected = runs.eager_states()[8], narrow.eager_states()[8]
    own = [nullcontext() if runs.device == CPU else torch.cuda.stream(torch.cuda.Stream()) for _ in expected]
    trainers: list[Trainer] = []
    for stream, made in zip(own, (runs, narrow), strict=True):
        with stream:
            trainers.append(made.new("graph"))
    for _ in range(8):
        for stream, trainer in zip(own, trainers, strict=True):
            with stream:
                trainer.step()
    for stream, trainer, state in zip(own, trainers, expected, strict=True):
        with stream:
            assert differences(state_of(trainer), state) == []


def watched(runs: Runs, record: Callable[[Callable[[], None], Callable[[], None]], Callable[[], None]]) -> Runs:
    """Trainings whose capture is done by `record`, given the usual way and the work, of which it returns the replay."""

    def capture(device: torch.device) -> Any:
        made: Any = CudaCapture(device) if device.type == "cuda" else Tape()
        made.record = partial(record, made.record)
        return made

    return replace(runs, capture=capture)


def idle(runs: Runs) -> Runs:
    """Trainings that are captured as usual, with replays that do nothing."""
    return watched(runs, lambda usual, work: usual(work) and (lambda: None))


@pytest.mark.parametrize("start", [0, 5])
def test_capture_does_not_train(noisy: Runs, start: int) -> None:
    saved = state_of(advance(noisy.new("eager"), start))
    trainer = idle(noisy).new("graph")
    trainer.load_state_dict(saved)
    before = state_of(trainer)
    trainer.step()
    changed = differences(state_of(trainer), before)
    assert {key for key in changed if "num_batches_tracked" not in key} == {"iteration", "window.images"}


class FailingCapture(Tape):
    """Fails like CUDA: after the work, in the warm-up or at the end of the capture."""

    BROKEN = "CUDA error: operation failed due to a previous error during capture\nSearch for it."

    def __init__(self, *, warming_up: bool, error: Exception | None) -> None:
        super().__init__()
        self._warming_up, self._error = warming_up, error

    def warm_up(self, body: Callable[[], None]) -> None:
        super().warm_up(body)
        if self._warming_up and self._error:
            raise self._error

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        super().record(body)
        try:
            if self._error:
                raise self._error
        finally:
            raise RuntimeError(self.BROKEN)


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
NOT_PERMITTED = RuntimeError("CUDA error: operation not permitted when stream is capturing\nSearch for it.")


@pytest.mark.parametrize(
    ("warming_up", "error", "expected", "message"),
    [
        (True, NO_MEMORY, torch.OutOfMemoryError, "Tried to allocate"),
        (True, NOT_PERMITTED, RunError, "not permitted"),
        (False, NO_MEMORY, torch.OutOfMemoryError, "Tried to allocate"),
        (False, None, torch.OutOfMemoryError, "previous error during capture"),
        (False, NOT_PERMITTED, RunError, r"not permitted when stream is capturing\)\. .* `--engine auto`\.$"),
    ],
)
def test_failed_capture_says_why_and_does_not_train(
    recipe: Recipe,
    tiny_dataset: ImageDataset,
    warming_up: bool,
    error: Exception | None,
    expected: type[Exception],
    message: str,
) -> None:
    """The next engine continues on the same tensors, and equals an eager training."""
    capture = FailingCapture(warming_up=warming_up, error=error)
    runs = Runs(recipe, tiny_dataset, CPU, NOISY, capture=lambda _: capture)
    expected_state = state_of(advance(runs.new("eager"), 6))
    trainer = advance(runs.new("eager"), 4)
    before = state_of(trainer)
    trainer.use("graph")
    with pytest.raises(expected, match=message):
        trainer.step()
    assert differences(state_of(trainer), before) == []
    trainer.use("eager")
    assert differences(state_of(advance(trainer, 6)), expected_state) == []


def test_warm_up_leaves_no_gradients_to_the_capture(runs: Runs) -> None:
    """They would take memory that the graph needs."""
    gradients: list[Tensor | None] = []

    def record(usual: Callable[[Any], Callable[[], None]], work: Callable[[], None]) -> Callable[[], None]:
        engine: Any = trainer._engine
        gradients.extend([*(parameter.grad for parameter in trainer.model.parameters()), *engine._step._gradients])
        return usual(work)

    trainer = watched(runs, record).new("graph")
    trainer.step()
    assert gradients == [None] * len(list(trainer.model.parameters()))


def test_streams_are_those_of_their_caller_and_both_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a call fails. Trainings on streams of their own share none, and so no workspace of cuBLAS."""
    log: list[Any] = []

    class Stream:
        device = "cuda"

        def __init__(self, *_: Any) -> None:
            self.wait_stream = lambda other: log.append((self, other))

    callers = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: nullcontext(log.append(one)))
    for caller in (*callers, callers[0]):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, caller=caller: caller)
        with pytest.raises(ValueError, match="invalid literal"):
            CudaCapture(torch.device("cuda")).side_by_side([lambda: None, lambda: int("a failure")])
    seen = log[:6], log[6:12]
    for caller, waits in zip(callers, seen, strict=True):
        one, other = waits[1], waits[3]
        assert waits == [(one, caller), one, (other, caller), other, (caller, one), (caller, other)]
    assert len({*callers, *(waits[i] for waits in seen for i in (1, 3))}) == 6
    assert log[12:] == log[:6]


@pytest.mark.gpu
def test_gpu_trains_on_after_a_failed_capture(recipe: Recipe, tiny_dataset: ImageDataset) -> None:
    """The net draws random numbers, and torch's generator takes part in captures."""
    runs = Runs(recipe, tiny_dataset, torch.device("cuda"), NOISY)
    states = runs.eager_states()
    trainer = advance(runs.new("eager"), 5)

    def wait(*_: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()

    handle = trainer.model.stem.register_forward_hook(wait)
    trainer.use("graph")
    with pytest.raises(RunError, match="not permitted"):
        trainer.step()
    handle.remove()
    for engine in ("eager", "graph"):
        trainer.use(engine)
        advance(trainer, trainer.iteration + 2)
        assert differences(state_of(trainer), states[trainer.iteration]) == []


class _Operations(TorchDispatchMode):
    """Records the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_host_launches_only_the_replay_unless_the_rate_changes(runs: Runs) -> None:
    """The rate rises after iteration 2 and drops after 18."""
    trainer = idle(runs).new("graph")
    trainer.step()
    operations = {}
    for iteration in range(1, STEPS):
        with _Operations() as seen:
            trainer.step()
        if seen.names:
            operations[iteration] = seen.names
    assert operations == {2: ["fill_", "_foreach_mul_"], 18: ["fill_", "_foreach_mul_"]}


def test_training_of_one_iteration(runs: Runs) -> None:
    """Shorter than the warm-up of the capture."""
    single = replace(runs, recipe=replace(runs.recipe, iterations=1, warm_up=None, drops=Drops((), 0.1)))
    assert differences(state_of(advance(single.new("graph"), 1)), single.eager_states()[1]) == []


def test_step_after_the_last_iteration_is_refused(runs: Runs) -> None:
    trainer = advance(runs.new("graph"), STEPS)
    before = state_of(trainer)
    with pytest.raises(PaperbenchError, match=f"the training has {STEPS}"):
        trainer.step()
    assert differences(state_of(trainer), before) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_tensors_are_never_replaced(recipe: Recipe, tiny_dataset: ImageDataset, precision: str) -> None:
    """A graph stores addresses, so it would no longer train a tensor that was replaced."""
    tape = Tape()
    runs = Runs(recipe, tiny_dataset, CPU, precision=precision, capture=lambda _: tape)
    trainer = advance(runs.new("graph"), 2)

    def moved() -> list[str]:
        named = [*trainer.model.named_parameters(), *trainer.model.named_buffers()]
        named += [(n, t) for n, t in trainer.state_dict().items() if n.startswith(("momentum", "window."))]
        return [
            name
            for name, tensor in named
            if not name.endswith(("num_batches_tracked", "images")) and not tape.uses(tensor)
        ]

    assert moved() == []
    state = state_of(trainer)
    trainer.test()
    assert moved() == []
    trainer.finish()
    assert moved() == []
    trainer.metrics.reset()
    trainer.load_state_dict(state)
    assert moved() == []
    with trainer.stepping_eagerly():
        trainer.step()
    assert moved() == []


def test_host_counters_are_not_captured(recipe: Recipe, tiny_dataset: ImageDataset) -> None:
    """A graph would count them only once, at the capture."""
    tape = Tape()
    trainer = advance(Runs(recipe, tiny_dataset, CPU, capture=lambda _: tape).new("graph"), 2)
    layers = [m for m in trainer.model.modules() if isinstance(m, _BatchNorm)]
    assert layers
    assert not any(tape.uses(layer.num_batches_tracked) for layer in layers)
    trainer.state_dict()
    assert {layer.num_batches_tracked.item() for layer in layers} == {4}  # two steps of two groups


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_step_waits_for_the_gpu(paper_recipe: Recipe, tiny_dataset: ImageDataset, precision: str) -> None:
    """Includes both changes of the rate and the end of an epoch."""
    runs = Runs(recipe_of(paper_recipe, STEPS), tiny_dataset, torch.device("cuda"), precision=precision)
    trainer = advance(runs.new("graph"), 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(STEPS - 1):
            trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.iteration == STEPS
