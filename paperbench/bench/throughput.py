"""Images per second of one net with every engine and precision, and with plain loops.

All variants are built in one process and timed in interleaved rounds, so that a slowdown of the machine affects all.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import torch

from paperbench.architecture import parameters
from paperbench.bench.figures import Kind, NetFigures, Ratio, Variant, VariantFigures, measured_noise, median_ratio
from paperbench.bench.plain_loop import (
    Batch,
    PlainLoop,
    cycle_batches,
    make_loader,
    on_device_batches,
    set_plain_arithmetic,
)
from paperbench.bench.setup import TrainerLoop, Training, equal_parameters
from paperbench.bench.timing import Rounds, stopwatch, synchronize
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.models import ResidualNet
from paperbench.training.engines import ENGINES, REFERENCE, engine_candidates
from paperbench.training.memory import is_out_of_memory, release_memory
from paperbench.training.precision import PRECISIONS, choose_precision
from paperbench.training.soundness import STEPS, FirstSteps, bitwise_error, first_steps

MIN_STEPS = 2
"""Minimum number of steps per measurement; a trial with this many steps determines the number."""


def bench_variants(
    engines: Sequence[str], precisions: Sequence[str], device: torch.device, at_once: Sequence[int] = ()
) -> list[Variant]:
    """Return the variants to measure: plain loops, default precision first, then on-device loops, then ours.

    Args:
        engines: If empty, all that the device supports.
        precisions: If empty, all that the device supports.
        at_once: Numbers of trainings that are measured beside one.
    """
    shipped = choose_precision(None, device)
    if not engines:
        engines = [name for name, kind in ENGINES.items() if kind.why_not(device) is None]
    engines = [engine_candidates(name, device)[0] for name in engines]
    precisions = precisions or [name for name in PRECISIONS if name != "tf32" or shipped == "tf32"]
    precisions = [choose_precision(name, device) for name in dict.fromkeys(precisions)]
    return [
        *(Variant("plain", REFERENCE, precision) for precision in dict.fromkeys([shipped, *precisions])),
        *(Variant("plain-on-device", REFERENCE, precision) for precision in precisions),
        *(
            Variant("paperbench", engine, precision, number)
            for precision, engine, number in product(precisions, dict.fromkeys(engines), sorted({1, *at_once}))
        ),
    ]


class VariantRunner:
    """Builds, checks and times one variant. An error is recorded in its figures and does not affect other variants.

    Args:
        batches: Returns the on-device loop's batches.
        eager: Returns the first steps of eager in a precision, or how they failed: as text, since an exception would
            keep its net in memory.

    Attributes:
        figures: Results so far.
        loop: The loop to time; None before `build` and after an error.
    """

    def __init__(
        self,
        variant: Variant,
        training: Training,
        batches: Callable[[], list[Batch]],
        eager: Callable[[str], FirstSteps | str],
    ) -> None:
        self.figures = VariantFigures(variant, "skipped", "no time left")
        self.loop: TrainerLoop | PlainLoop | None = None
        self._variant, self._training, self._batches, self._eager = variant, training, batches, eager

    def build(self) -> None:
        """Build and check the variant."""
        variant, device = self._variant, self._training.device
        on_gpu = device.type == "cuda"
        with self._record_errors():
            eager = self._eager(variant.precision) if variant.engine != REFERENCE else None
            if isinstance(eager, str):
                raise PaperbenchError(eager)
            batches = self._batches() if variant.kind == "plain-on-device" else None
            release_memory(device)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_reserved(device) if on_gpu else 0
            self.loop = self._build_trainer(eager) if variant.kind == "paperbench" else self._build_plain_loop(batches)
            if self.loop and on_gpu:
                self._record(peak_memory=torch.cuda.max_memory_reserved(device) - before)

    def _build_trainer(self, eager: FirstSteps | None) -> TrainerLoop | None:
        """Return our loop, or None if its first losses are not finite, or differ from eager's at all."""
        variant, device = self._variant, self._training.device
        start = time.perf_counter()
        loop = TrainerLoop(device, lambda: self._training.trainer(variant.engine, variant.precision))
        loop.grow(variant.at_once)
        synchronize(device)
        built = time.perf_counter() - start
        every = loop.each(lambda trainer: first_steps(trainer, STEPS))
        self._record(first_step_seconds=built + sum(one.seconds for one in every))
        first = every[0]  # the others must be equal in the end
        if not all(map(math.isfinite, first.losses)):
            problem: str | None = "a loss of the first steps is not finite"
        else:
            self._record(losses=tuple(first.losses))
            problem = bitwise_error(first.losses, eager.losses, variant.precision) if eager else None
        if problem:
            self._record(status="wrong step", detail=problem)
        return None if problem else loop

    def _build_plain_loop(self, on_device: list[Batch] | None) -> PlainLoop:
        training, device = self._training, self._training.device
        start = time.perf_counter()
        set_plain_arithmetic(self._variant.precision)
        batches = on_device or make_loader(training.dataset, training.recipe.batch_size, device)
        model, rate = ResidualNet(training.net).to(device), training.recipe.rate_at(0)
        loop = PlainLoop(model, cycle_batches(batches, device), self._variant.precision, learning_rate=rate)
        loop.step()
        self._record(first_step_seconds=time.perf_counter() - start)
        return loop

    def time(self, steps: int) -> float:
        """Return the seconds that some steps take; infinity if the variant fails, or failed before."""
        seconds = math.inf
        if self.loop:
            with self._record_errors():
                self.loop.prepare()
                seconds = stopwatch(self.loop.step, self._training.device)(steps)
                self.loop.pause()
        return seconds

    def finish(self, step_seconds: tuple[float, ...], control: tuple[float, ...]) -> None:
        """Compute the results from the rounds of all trainings, and free the loop."""
        if isinstance(self.loop, TrainerLoop) and not equal_parameters(self.loop.trainers.values()):
            self._record(status="wrong step", detail="equal trainings differ after they ran at once")
        elif self.loop:
            number = self._variant.at_once
            step_seconds, control = (tuple(s / number for s in rounds) for rounds in (step_seconds, control))
            rate = self._training.recipe.batch_size / statistics.median(step_seconds)
            self._record(status="measured", detail=None, images_per_second=rate)
            self._record(step_seconds=step_seconds, control=control)
        self.loop = None

    def _record(self, **values: Any) -> None:
        self.figures = replace(self.figures, **values)

    @contextmanager
    def _record_errors(self) -> Iterator[None]:
        try:
            yield
            return
        except Exception as error:  # out of memory, or an engine fails
            is_memory, detail = is_out_of_memory(error), summarize_error(error)
            if is_memory:
                detail += " Name fewer --engines, --precisions or --at-once."
            self._record(status="out of memory" if is_memory else "failed", detail=detail)
            self.loop = None
        release_memory(self._training.device)  # not before the error and its frames are gone


def measure_net(training: Training, variants: Sequence[Variant], rounds: Rounds) -> NetFigures:
    """Measure all variants of a net, which are built in this order until the deadline."""
    recipe, device, rounds = training.recipe, training.device, rounds.of(training.name)
    batches = cache(lambda: on_device_batches(training.dataset, recipe.batch_size, device))

    @cache
    def eager(precision: str) -> FirstSteps | str:
        try:
            return first_steps(training.trainer(REFERENCE, precision), STEPS)
        except Exception as error:  # whatever it is, the variants that need them report it
            return f"the first steps of eager {precision} failed: {summarize_error(error)}"

    runners = [VariantRunner(variant, training, batches, eager) for variant in variants]
    for runner in runners:
        if time.monotonic() > rounds.deadline:
            break
        runner.build()
        found = runner.figures
        result = (
            f"first step after {found.first_step_seconds:.1f} s" if runner.loop else f"{found.status}: {found.detail}"
        )
        rounds.log(f"{found.variant.label}: {result}")
    ready = [runner for runner in runners if runner.loop]
    # The first plain loop and our first variant are timed twice per round: that gives the noise.
    controls = {runner.figures.variant.kind == "paperbench": runner for runner in reversed(ready)}.values()
    ways = {(runner, False): runner.time for runner in ready} | {(runner, True): runner.time for runner in controls}
    times = rounds.race(ways, least=MIN_STEPS)
    for runner in runners:
        runner.finish(times.get((runner, False), ()), times.get((runner, True), ()))
    release_memory(device)
    found_all = [runner.figures for runner in runners]
    noise = measured_noise(found_all)
    return NetFigures(
        net=training.name,
        parameters=parameters(training.net),
        batch_size=recipe.batch_size,
        bn_group=recipe.batch_norm.group,
        images=len(training.dataset.x_train),
        variants=tuple(_with_ratios(found, found_all, noise) for found in found_all),
        noise=noise,
    )


def _with_ratios(found: VariantFigures, others: Sequence[VariantFigures], noise: float | None) -> VariantFigures:
    """Add the ratios to the plain loops among the others, the first of which is as shipped."""

    def over(kind: Kind, precision: str) -> Ratio | None:
        plain = Variant(kind, REFERENCE, precision)
        seconds = next((o.step_seconds for o in others if o.variant == plain != found.variant), ())
        return median_ratio(found.step_seconds, seconds, noise)

    same = found.variant.precision
    return replace(
        found,
        over_plain=over("plain", others[0].variant.precision),
        over_plain_same_precision=over("plain", same),
        over_on_device=over("plain-on-device", same),
    )
