"""Checks that an engine computes the right step, by comparing its first steps with those of the eager engine.

A benchmark times no variant whose first steps differ, and `run` trains on no engine whose first steps differ. Engines
must agree bit for bit. Several machines may round differently; then losses alone would not show that a net learns
nothing, or that its moving averages stand still, so the norms of the first changes of parameters and BN statistics are
compared, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from paperbench.errors import DataError, EngineError, Interrupted, RunError, summarize_error, without_paths
from paperbench.training.engines import REFERENCE
from paperbench.training.memory import release_memory
from paperbench.training.processes import Processes, common
from paperbench.training.trainer import Trainer

STEPS = 20
"""Number of steps whose losses a benchmark compares."""

STEPS_OF_A_RUN = 5
"""Number of steps that are compared before a run."""

UPDATES = 3
"""Number of first updates whose norm is compared."""

LEARNING_RATE = 1e-3
"""Lower than the paper's, at which rounding alone changes the third loss of ResNet-110 by more than 0.1 %. The time of
a step does not depend on it."""

NORM_TOLERANCE = {"fp32": 0.15, "tf32": 0.15, "bf16": 0.3}
"""Maximum relative difference of the norm of the first changes. That of the parameters is 0.49 of the right one with
halved gradients, and at most 0.66 without momentum; in bfloat16, rounding changed it by up to 0.17 in ResNet-110.
Directions are not compared, as rounding alone rotates them in deep nets."""

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}
"""Maximum relative difference of the first loss where machines round differently."""


@dataclass(frozen=True)
class FirstSteps:
    """Results of the first steps of a training.

    Attributes:
        norms: Norms of the total change of all parameters, and of all BN statistics, in the first `UPDATES` steps;
            empty after fewer.
        seconds: Time of the first step.
    """

    losses: list[float]
    norms: dict[str, float]
    seconds: float


def first_steps(trainer: Trainer, steps: int, rate: float | None = None) -> FirstSteps:
    """Make the first steps of a training, with this learning rate in place of the recipe's if one is given."""
    before = _vectors(trainer)
    losses: list[float] = []
    norms: dict[str, float] = {}
    start, seconds = time.perf_counter(), 0.0
    for number in range(1, steps + 1):
        trainer.processes.agreed(trainer.between_batches)
        losses.append(next_loss(trainer, rate))
        if number == 1:
            seconds = time.perf_counter() - start
        if number == UPDATES:
            norms = {name: float((after - before[name]).norm()) for name, after in _vectors(trainer).items()}
    return FirstSteps(losses, norms, seconds)


def rounding_error(found: FirstSteps, eager: FirstSteps, precision: str) -> str | None:
    """Describe the first difference that rounding does not explain; None if there is none.

    Of the losses only the first is compared: deep nets amplify rounding a thousandfold within a few steps.
    """
    bounds = {"first loss": TOLERANCE[precision]}
    bounds |= {f"change of the {name} in the first {UPDATES} steps": NORM_TOLERANCE[precision] for name in eager.norms}
    pairs = zip([found.losses[0], *found.norms.values()], [eager.losses[0], *eager.norms.values()], strict=True)
    for (what, bound), (number, expected) in zip(bounds.items(), pairs, strict=True):
        if math.isfinite(expected) and not abs(number - expected) <= bound * abs(expected):  # as it is for NaN, too
            return f"{what}: {number:.6g}, eager {precision} {expected:.6g}; allowed difference {bound:.2g} of it"
    return None


def bitwise_error(losses: Sequence[float], eager: Sequence[float], precision: str) -> str | None:
    """Describe the first loss that is not bitwise equal to eager's in the same precision; None if all are equal."""
    for number, (loss, expected) in enumerate(zip(losses, eager, strict=True), start=1):
        if loss != expected and not (math.isnan(loss) and math.isnan(expected)):
            return f"step {number}: loss {loss!r}, eager {precision} {expected!r}; they must be bitwise equal"
    return None


def engine_error(trainer: Trainer, *, is_exact: bool = True) -> str | None:
    """Compare the first steps of a new trainer with those of the reference engine in one process.

    Both train the same net, one after the other, at `LEARNING_RATE`. Afterwards the trainer is as before; its engine
    is built. If several processes share the run, each compares, and all return the same.

    Args:
        is_exact: Whether losses and state must be equal bit for bit; else rounding may differ.

    Returns:
        The first difference, or None.
    """
    initial, processes = _copy_of(trainer.state_dict()), trainer.processes

    def begin() -> Trainer:
        trainer.load_state_dict(initial)
        return trainer

    def make_reference() -> tuple[FirstSteps, dict[str, Tensor]]:
        with trainer.stepping_eagerly():
            return first_steps(begin(), steps, LEARNING_RATE), _copy_of(trainer.state_dict())

    steps = min(STEPS_OF_A_RUN, trainer.recipe.iterations)
    try:
        expected, state = processes.agreed(make_reference)
        found = first_steps(begin(), steps, LEARNING_RATE)
        if not is_exact:
            return processes.first_text(rounding_error(found, expected, trainer.precision) or "") or None
        error = processes.first_text(bitwise_error(found.losses, expected.losses, trainer.precision) or "")
        return error or processes.first_text(_state_error(trainer.state_dict(), state) or "") or None
    finally:
        begin()


def _state_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> str | None:
    """Describe the first tensor of a trainer's state that is not bitwise equal; None if all are equal.

    The generators' states are not compared: where they matter, the losses show a difference.
    """
    for name, tensor in found.items():
        other = tensor if name.startswith("noise.") else expected[name]
        if not torch.equal(tensor.nan_to_num(), other.nan_to_num()) or not torch.equal(tensor.isnan(), other.isnan()):
            return f"{name} differs from eager's after the first steps; it must be bitwise equal"
    return None


def sound_trainer(
    candidates: Sequence[str],
    fitting: str,
    build: Callable[[str], Trainer],
    device: torch.device,
    processes: Processes,
    *,
    machines_differ: bool,
    announce: Callable[[str], None],
    warn: Callable[[str], None],
) -> tuple[str, Trainer, list[str]]:
    """Return the first engine that can be built and makes the reference's first steps, and a new trainer with it.

    Args:
        candidates: The engines to try, the fastest first; an error of the last one is raised.
        fitting: The first of them for which the memory suffices.
        build: Makes an untrained trainer on the device, given the name of an engine.
        machines_differ: Whether they are on different machines, which may round differently.
        announce: Called with the engine whose first steps will be compared.
        warn: Called with how processes on different machines differ.

    Returns:
        As the last, why faster engines are not used, and how processes differ.
    """
    skipped = [*takewhile(lambda engine: engine != fitting, candidates)]
    problems = [f"engine {engine} was not used: the memory is too short for it" for engine in skipped]
    *others, last = candidates[len(skipped) :]

    def attempt(engine: str) -> Trainer:
        trainer = processes.agreed(lambda: build(engine))
        if processes.count > 1 or engine != REFERENCE:
            announce(engine)
            problem = engine_error(trainer)
            if problem and engine != REFERENCE:
                what = f"The first steps of engine {engine} are not those of {REFERENCE} on this machine ({problem})"
                raise common(EngineError(what))
            if problem:
                what = f"the first steps in {processes.count} processes are not those of one ({problem})"
                if not machines_differ or engine_error(trainer, is_exact=False):
                    advice = "Use the same packages, variables and machines for all, or one process."
                    raise common(RunError(f"{what}. {advice}"))
                warn(what)
                problems.append(what)
        return trainer

    for engine in others:
        try:
            return engine, attempt(engine), problems
        except (Interrupted, DataError):
            raise
        except Exception as error:  # the failures of captures and drivers have no common type
            if not processes.all_have(error):
                raise
            why = without_paths(error.reason) if isinstance(error, EngineError) else summarize_error(error)
        problems.append(f"engine {engine} was not used: {why}")
        release_memory(device)  # not before the error and its frames are gone
    return last, attempt(last), problems


def _copy_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def _vectors(trainer: Trainer) -> dict[str, Tensor]:
    """Return all parameters, and all BN statistics, as a float64 vector each, on the CPU."""
    parts = {"parameters": trainer.model.parameters(), "BN statistics": trainer.model.buffers()}
    vectors = {
        name: [tensor.detach().flatten().cpu().double() for tensor in tensors if tensor.is_floating_point()]
        for name, tensors in parts.items()
    }
    return {name: torch.cat(tensors) for name, tensors in vectors.items() if tensors}


def next_loss(trainer: Trainer, rate: float | None = None) -> float:
    """Make a step and return its mean loss, which waits for the device."""
    trainer.metrics.reset()
    trainer.step(rate)
    return trainer.metrics.compute().loss
