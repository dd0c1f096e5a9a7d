"""Images per second of a net, by every engine and precision, beside plain loops.

All variants are built in this process and take turns in rounds, so that what slows the machine down slows all of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import torch

from paperbench.architecture import parameters
from paperbench.bench.figures import Kind, NetFigures, Ratio, Variant, VariantFigures, noise_of, ratio, summarize_error
from paperbench.bench.plain_loop import Batch, PlainLoop, endless, loader, on_device_batches, set_plain_arithmetic
from paperbench.bench.setup import Training, free_memory, wait_for
from paperbench.bench.soundness import STEPS, Reference, find_reference, first_steps, inequality, step_error
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.training.engine import BIT_EQUAL, available_engines, choose_engine
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import PRECISIONS, choose_precision, set_arithmetic

T = TypeVar("T")

MIN_STEPS = 2
"""Steps per turn, however long they take; as many show beforehand how many fill a turn."""


def bench_variants(engines: Sequence[str], precisions: Sequence[str], device: torch.device) -> list[Variant]:
    """What is measured: plain loops, as shipped first, then at each precision; ours by precision and engine.

    Args:
        engines: None of them stands for all that run here, on a CPU for eager alone, as compiling takes minutes there.
        precisions: None of them stands for all that the device has.

    Raises:
        PaperbenchError: A name is unknown, or the device lacks an engine or precision.
    """
    as_shipped = choose_precision(None, device)
    if not engines:
        usable = [name for name, why in available_engines(device).items() if why is None]
        engines = usable if device.type == "cuda" else ["eager"]
    else:
        engines = [choose_engine(name, device, iterations=64_000).name for name in engines]
    precisions = precisions or [name for name in PRECISIONS if name != "tf32" or as_shipped == "tf32"]
    precisions = [choose_precision(name, device) for name in dict.fromkeys(precisions)]
    equal = list(dict.fromkeys(_plain_precision(precision) for precision in precisions))
    return [
        *(Variant("plain", "eager", precision) for precision in dict.fromkeys([as_shipped, *equal])),
        *(Variant("plain-on-device", "eager", precision) for precision in equal),
        *(Variant("paperbench", engine, precision) for precision in precisions for engine in dict.fromkeys(engines)),
    ]


def _plain_precision(precision: str) -> str:
    """The precision of a plain loop that is equal to one of ours: a float32 stream within bf16 is ours alone."""
    return "bf16" if precision.startswith("bf16") else precision


class OurLoop:
    """Our trainer, stepped as a run steps it: nothing is read back."""

    def __init__(self, training: Training, engine: str, precision: str) -> None:
        self._precision = precision
        self.trainer = training.trainer(engine, precision)

    def prepare(self) -> None:
        """Set torch's switches, and bring back into caches what a step reads."""
        set_arithmetic(self._precision)
        self.step()

    def step(self) -> None:
        """One step; it may still be under way on the device on return."""
        if self.trainer.iteration == self.trainer.recipe.iterations:
            self.trainer.iteration = 0  # a captured step knows no more batches, so they come again
        self.trainer.step()

    def rest(self) -> None:
        """Nothing goes on in the background."""


class Contender:
    """A variant that is built, checked and timed. What goes wrong ends it, and no other.

    Args:
        variant: Which.
        training: Of which net.
        batches: Returns the plain loop's batches on the device.
        reference: Returns what our first steps are compared with.
        eager_losses: Returns the losses of eager's first steps in a precision, for engines that promise the same ones.

    Attributes:
        figures: What is known of it so far.
        loop: What is timed; None before it was built and checked, and after an error.
        steps: Number per turn.
    """

    def __init__(
        self,
        variant: Variant,
        training: Training,
        batches: Callable[[], list[Batch]],
        reference: Callable[[], Reference],
        eager_losses: Callable[[str], list[float]],
    ) -> None:
        self.figures = VariantFigures(variant, "skipped", "the time was over")
        self.loop: OurLoop | PlainLoop | None = None
        self.steps = MIN_STEPS
        self._variant, self._training, self._batches = variant, training, batches
        self._reference, self._eager_losses = reference, eager_losses

    def build(self, seconds: float) -> None:
        """Build it, check its first steps, and find how many fill a turn of so many seconds."""
        variant, training, device = self._variant, self._training, self._training.device
        on_gpu = device.type == "cuda"
        with self._ended_by_errors():
            reference = self._reference() if variant.kind == "paperbench" else None
            is_equal = variant.engine in BIT_EQUAL - {"eager"}
            equal = self._eager_losses(variant.precision) if is_equal else None
            batches = self._batches() if variant.kind == "plain-on-device" else None
            free_memory(device)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device) if on_gpu else 0
            start = time.perf_counter()
            if reference:
                ours = OurLoop(training, variant.engine, variant.precision)
                wait_for(device)
                built = time.perf_counter() - start
                first = first_steps(ours.trainer, STEPS)
                self._note(first_step_seconds=built + first.seconds)
                if all(map(math.isfinite, [*first.losses, first.update_norm])):
                    self._note(losses=tuple(first.losses), update_norm=first.update_norm / reference.update_norm)
                problem = step_error(first, reference, variant.precision)
                if equal and not problem:
                    problem = inequality(first.losses, equal, variant.precision)
                if problem:
                    self._note(status="wrong step", detail=problem)
                    return
                self.loop = ours
            else:
                set_plain_arithmetic(variant.precision)
                feed = endless(batches or loader(training.dataset, training.recipe.batch_size, device), device)
                model = ResidualNet(training.net).to(device)
                self.loop = PlainLoop(model, feed, variant.precision, rate=training.recipe.rate_at(0))
                self.loop.step()
                self._note(first_step_seconds=time.perf_counter() - start)
            self.steps = max(MIN_STEPS, math.ceil(seconds / self._step_seconds()))
            if on_gpu:
                self._note(peak_memory=torch.cuda.max_memory_allocated(device) - before)

    def take_turn(self, *, is_control: bool) -> None:
        """Time a turn, unless an error has ended this; a control is the second in its round."""
        name = "control" if is_control else "step_seconds"
        if self.loop:
            with self._ended_by_errors():
                self._note(**{name: (*getattr(self.figures, name), self._step_seconds())})

    def finish(self) -> None:
        """Say what came out of the rounds."""
        if self.loop:
            rate = self._training.recipe.batch_size / statistics.median(self.figures.step_seconds)
            self._note(status="measured", detail=None, images_per_second=rate)
        self.loop = None

    def _step_seconds(self) -> float:
        """Seconds of a step, by those of a turn, the device's work included."""
        loop, device = self.loop, self._training.device
        assert loop  # noqa: S101
        loop.prepare()
        wait_for(device)
        start = time.perf_counter()
        for _ in range(self.steps):
            loop.step()
        wait_for(device)
        seconds = time.perf_counter() - start
        loop.rest()
        return seconds / self.steps

    def _note(self, **values: Any) -> None:
        self.figures = replace(self.figures, **values)

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a lack of memory, or an engine that breaks
            is_memory, detail = is_out_of_memory(error), summarize_error(error)
            if is_memory:
                detail += " Name fewer --engines or --precisions."
            self._note(status="out of memory" if is_memory else "failed", detail=detail, step_seconds=(), control=())
            self.loop = None
        free_memory(self._training.device)


def _once(make: Callable[[str], T]) -> Callable[[str], T]:
    """What makes something of eager in a precision, but only once for each, even if that fails."""

    @cache
    def attempt(precision: str) -> tuple[T | None, str]:
        try:
            return make(precision), ""
        except Exception as error:  # as in a variant; kept as text, since an error keeps alive what it came from
            return None, f"eager {precision}, to compare with: {summarize_error(error)}"

    def made(precision: str) -> T:
        found, problem = attempt(precision)
        if found is None:
            raise PaperbenchError(problem)
        return found

    return made


def measure_net(
    training: Training,
    variants: Sequence[Variant],
    rounds: int,
    seconds: float,
    deadline: float,
    say: Callable[[str], None],
) -> NetFigures:
    """Figures, or why there are none, for each variant.

    Args:
        training: Of which net.
        variants: What is measured, the most decisive first.
        rounds: Turns of each variant.
        seconds: Least length of a turn.
        deadline: Moment of `time.monotonic` after which no variant is built and no further round is begun.
        say: Called with a line of text after each round and each variant that was built.
    """
    recipe, device = training.recipe, training.device
    batches = cache(lambda: on_device_batches(training.dataset, recipe.batch_size, device))
    reference = _once(lambda precision: find_reference(lambda: training.trainer("eager", precision), STEPS))
    eager_losses = _once(lambda precision: first_steps(training.trainer("eager", precision), STEPS).losses)
    contenders = [Contender(v, training, batches, lambda: reference("fp32"), eager_losses) for v in variants]
    for contender in contenders:
        if time.monotonic() > deadline:
            break
        contender.build(seconds)
        found = contender.figures
        problem = None if contender.loop else f"{found.status}: {found.detail}"
        say(
            f"{training.name}, {found.variant.label}: {problem or f'first step after {found.first_step_seconds:.1f} s'}"
        )
    ready = [contender for contender in contenders if contender.loop]
    # The first plain loop and the first of ours are timed twice, which shows the noise.
    controls = {contender.figures.variant.kind == "paperbench": contender for contender in reversed(ready)}.values()
    turns = [*((contender, False) for contender in ready), *((contender, True) for contender in controls)]
    for number in range(rounds if ready else 0):
        first = number % len(turns)
        for contender, is_control in turns[first:] + turns[:first]:
            contender.take_turn(is_control=is_control)
        say(f"{training.name}, round {number + 1} of {rounds}")
        if time.monotonic() > deadline:
            break
    for contender in contenders:
        contender.finish()
    free_memory(device)
    found_all = [contender.figures for contender in contenders]
    noise = noise_of(found_all)
    return NetFigures(
        net=training.name,
        parameters=parameters(training.net),
        batch_size=recipe.batch_size,
        bn_group=recipe.batch_norm.group,
        images=len(training.dataset.x_train),
        variants=tuple(with_ratios(figures, found_all, noise) for figures in found_all),
        noise=noise,
    )


def with_ratios(figures: VariantFigures, others: Sequence[VariantFigures], noise: float | None) -> VariantFigures:
    """A variant's figures with its ratios to the plain loops among the others, the first of which is as shipped."""

    def over(kind: Kind, precision: str) -> Ratio | None:
        plain = Variant(kind, "eager", precision)
        seconds = next((o.step_seconds for o in others if o.variant == plain != figures.variant), ())
        return ratio(figures.step_seconds, seconds, noise)

    equal = _plain_precision(figures.variant.precision)
    shipped = others[0].variant.precision
    return replace(
        figures,
        over_plain=over("plain", shipped),
        over_plain_same_precision=over("plain", equal),
        over_on_device=over("plain-on-device", equal),
    )
