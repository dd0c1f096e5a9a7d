"""Images per second of a net, by every engine and precision, beside plain loops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from paperbench.architecture import parameters
from paperbench.bench.figures import (
    Control,
    Kind,
    NetFigures,
    Ratio,
    Status,
    Variant,
    VariantFigures,
    noise_of,
    ratio,
    spread,
    summarize_error,
)
from paperbench.bench.machine import nvidia_smi, restore_flags
from paperbench.bench.plain_loop import Batch, on_device_batches
from paperbench.bench.rounds import OurRunner, PlainRunner, Slot, interleave, steps_for, timed
from paperbench.bench.setup import bench_training, checked_engines, free_memory
from paperbench.bench.soundness import FirstSteps, Reference, compared_steps, find_reference
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import choose_precision

TRIAL_STEPS = {"cpu": 1, "cuda": 3}
"""Steps timed beforehand, to find how many fill a round."""

MIN_STEPS = {"cpu": 2, "cuda": 8}
"""Steps per round, however long they take."""


def plain_precision(precision: str) -> str:
    """The precision of a plain loop that is equal to one of ours: a float32 stream within bf16 is ours alone."""
    return "bf16" if precision.startswith("bf16") else precision


def plain_variants(precisions: Sequence[str], as_shipped: str) -> list[Variant]:
    """The plain loops that ratios are taken against: as shipped first, then at each precision, then on-device."""
    equal = list(dict.fromkeys(plain_precision(p) for p in precisions))
    return [
        *(Variant("plain", "eager", precision) for precision in dict.fromkeys([as_shipped, *equal])),
        *(Variant("plain-on-device", "eager", precision) for precision in equal),
    ]


@dataclass
class Measurement:
    """The measurement of one net, all variants in this process, taking turns.

    Args:
        name: The net's.
        engines: Ours to measure, the most decisive first.
        precisions: In which.
        device: Where.
        batch_size: Images per step.
        rounds: Turns of each variant.
        seconds: Least length of a turn.
        baselines: Whether to measure the plain loops, without which there are no ratios.
        progress: Called with a line of text after each round and each variant that was built.

    Raises:
        PaperbenchError: A name is unknown, or the device lacks an engine or precision.
    """

    name: str
    engines: tuple[str, ...]
    precisions: tuple[str, ...]
    device: torch.device
    batch_size: int = 128
    rounds: int = 7
    seconds: float = 1.5
    baselines: bool = True
    progress: Callable[[str], None] = lambda _: None
    _found: dict[Variant, VariantFigures] = field(default_factory=dict, init=False)
    _batches: list[Batch] = field(default_factory=list, init=False)
    _reference: Reference | None = field(default=None, init=False)
    _deadline: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.engines = checked_engines(self.engines, self.device)
        self.precisions = tuple(dict.fromkeys(choose_precision(p, self.device) for p in self.precisions))
        self._shipped = choose_precision(None, self.device)
        plain = plain_variants(self.precisions, self._shipped) if self.baselines else []
        ours = [Variant("paperbench", engine, precision) for precision in self.precisions for engine in self.engines]
        self._variants = [*plain, *ours]
        self._training = bench_training(self.name, self.batch_size, self.device)
        self._compared = compared_steps(self._training.net.depth)

    def run(self, deadline: float | None = None) -> NetFigures:
        """Figures, or why there are none, for each variant. torch's switches are as before.

        Args:
            deadline: Moment of `time.monotonic` after which no variant is built and no further round is begun.
        """
        self._deadline = deadline
        slots: dict[Variant, Slot] = {}
        with restore_flags():
            try:
                no_reference = self._find_reference()
                for variant in self._variants:
                    if slot := self._build_and_check(variant, no_reference):
                        slots[variant] = slot
                controls = self._take_turns(slots)
            finally:
                for slot in slots.values():
                    slot.runner.close()
                slots.clear()
                free_memory(self.device)
        noise = noise_of(controls)
        return NetFigures(
            net=self.name,
            parameters=parameters(self._training.net),
            bn_group=self._training.recipe.batch_norm.group,
            images=len(self._training.dataset.x_train),
            compared_steps=self._compared,
            variants=tuple(self._with_ratios(variant, noise) for variant in self._variants),
            controls=tuple(controls),
            noise=noise,
            clocks=nvidia_smi(self.device, "clocks.sm", "clocks.mem"),
        )

    def _find_reference(self) -> str | None:
        """First steps of the eager engine in float32; returns why there are none."""
        why_not = "the time was over" if self._is_late() else None
        try:
            if why_not is None:
                self._reference = find_reference(lambda: self._training.trainer("eager", "fp32"), self._compared)
        except Exception as error:  # a lack of memory, say
            why_not = summarize_error(error.with_traceback(None))
        free_memory(self.device)
        self.progress(f"{self.name}, losses of eager fp32 to compare with: {why_not or 'computed'}")
        return why_not

    def _build_and_check(self, variant: Variant, no_reference: str | None) -> Slot | None:
        """Build a variant, check its first steps, and find how many steps fill a round; None if it gets no figure."""
        figures = self._found[variant] = VariantFigures(variant, "skipped", "the time was over")
        if self._is_late():
            return None
        runner = None
        try:
            runner, peak_memory = self._runner(variant)
            figures = replace(
                figures,
                detail=None,
                construction_seconds=runner.construction_seconds,
                first_step_seconds=runner.first_step_seconds,
                peak_memory=peak_memory,
                flags=runner.flags,
            )
            if runner.first_steps is not None:
                figures = self._checked(figures, runner.first_steps, no_reference)
            self._found[variant] = figures
            if figures.detail is None:
                kind = self.device.type
                seconds = timed(runner, TRIAL_STEPS[kind]) / TRIAL_STEPS[kind]
                taken = runner.construction_seconds + runner.first_step_seconds
                self.progress(f"{self.name}, {variant.label}: ready, first step done after {taken:.1f} s")
                return Slot(runner, steps_for(self.seconds, seconds, MIN_STEPS[kind]))
            self.progress(f"{self.name}, {variant.label}: {figures.status}: {figures.detail}")
        except Exception as error:
            self._give_up(variant, error)
        if runner is not None:
            runner.close()
        runner = None
        free_memory(self.device)
        return None

    def _runner(self, variant: Variant) -> tuple[OurRunner | PlainRunner, int | None]:
        """A runner after its warm-up, and the memory that it took at most."""
        if variant.kind == "plain-on-device" and not self._batches:  # before its memory and time are counted
            self._batches = on_device_batches(self._training.dataset, self.batch_size, self.device)
        free_memory(self.device)
        on_gpu = self.device.type == "cuda"
        before = 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        runner: OurRunner | PlainRunner
        if variant.kind == "paperbench":
            runner = OurRunner(self._training, variant.engine, variant.precision, self._compared)
        else:
            batches = self._batches if variant.kind == "plain-on-device" else None
            warm_up = self._compared if on_gpu else 1  # cuDNN must have chosen
            runner = PlainRunner(self._training, variant.precision, batches, warm_up)
        return runner, torch.cuda.max_memory_allocated(self.device) - before if on_gpu else None

    def _checked(self, figures: VariantFigures, first: FirstSteps, no_reference: str | None) -> VariantFigures:
        """The figures with the first losses, and another status if these steps are wrong or cannot be checked."""
        figures = replace(figures, losses=tuple(loss if math.isfinite(loss) else None for loss in first.losses))
        if self._reference is None:
            return replace(figures, status="not checked", detail=f"eager fp32, to compare with: {no_reference}")
        norm = self._reference.relative_update_norm(first)
        figures = replace(figures, update_norm=norm if math.isfinite(norm) else None)
        wrong = self._reference.error(first, figures.variant.precision)
        return replace(figures, status="wrong step", detail=wrong) if wrong else figures

    def _give_up(self, variant: Variant, error: Exception) -> None:
        status: Status = "out of memory" if is_out_of_memory(error) else "failed"
        detail = summarize_error(error.with_traceback(None))  # whose frames would keep what they hold in memory
        if status == "out of memory":
            detail += " Name fewer --engines or --precisions."
        self._found[variant] = replace(self._found[variant], status=status, detail=detail)
        self.progress(f"{self.name}, {variant.label}: {status}: {detail}")

    def _take_turns(self, slots: Mapping[Variant, Slot]) -> list[Control]:
        """Time everything in rounds, the first plain loop and the first of ours twice, and note what came out."""
        again: dict[Variant, Slot] = {}
        for is_ours in (False, True):
            first = next((variant for variant in slots if (variant.kind == "paperbench") is is_ours), None)
            if first is not None:
                again[first] = Slot(slots[first].runner, slots[first].steps)

        def report(number: int) -> None:
            speeds = "; ".join(
                f"{variant.label} {slot.steps * self.batch_size / slot.seconds[-1]:.0f}"
                for variant, slot in slots.items()
                if slot.error is None
            )
            self.progress(f"{self.name}, round {number} of {self.rounds}, images/s: {speeds}")

        if slots:
            interleave([*slots.values(), *again.values()], self.rounds, report=report, is_late=self._is_late)
        for variant, slot in slots.items():
            if slot.error is not None:
                self._give_up(variant, slot.error)
                continue
            self._found[variant] = replace(
                self._found[variant],
                status="measured",
                steps=slot.steps,
                seconds=tuple(slot.seconds),
                images_per_second=spread([self.batch_size * slot.steps / seconds for seconds in slot.seconds]),
            )
        return [
            Control(variant, tuple(a / b for a, b in zip(slots[variant].seconds, slot.seconds, strict=True)))
            for variant, slot in again.items()
            if slot.error is None and slots[variant].error is None
        ]

    def _with_ratios(self, variant: Variant, noise: float | None) -> VariantFigures:
        """A variant's figures with its ratios to the plain loops."""

        def rates(of: Variant) -> list[float]:
            figures = self._found.get(of)
            return [self.batch_size * (figures.steps or 0) / s for s in figures.seconds] if figures else []

        def over(kind: Kind, precision: str) -> Ratio | None:
            plain = Variant(kind, "eager", precision)
            return None if plain == variant else ratio(rates(variant), rates(plain), noise)

        equal = plain_precision(variant.precision)
        return replace(
            self._found[variant],
            over_plain=over("plain", self._shipped),
            over_plain_same_precision=over("plain", equal),
            over_on_device=over("plain-on-device", equal),
        )

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline
