"""Images per second of a net, by every engine and precision, beside plain loops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from paperbench.bench.figures import (
    Control,
    NetFigures,
    Status,
    VariantFigures,
    noise_of,
    per_round,
    rates,
    ratio,
    spread,
)
from paperbench.bench.flags import put_back
from paperbench.bench.images import SIDE, random_images
from paperbench.bench.machine import clocks
from paperbench.bench.plain_loop import DeviceFeed, Feed, LoaderFeed, OnDeviceBatches, shipped_precision
from paperbench.bench.rounds import Slot, interleave, steps_for, timed
from paperbench.bench.runners import OurRunner, PlainRunner, free_memory, new_trainer
from paperbench.bench.trajectory import DEEP, Beginning, compared_steps, complaint, drift, first_steps, lameness
from paperbench.bench.variants import Variant, ours, plain_precision, plain_variants
from paperbench.bench.words import in_words
from paperbench.catalogue import FAMILIES, Net, resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError, nearest
from paperbench.models import ResidualNet
from paperbench.specs.locate import spec_root
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import load_table
from paperbench.training.choice import available_engines
from paperbench.training.engine import EngineName
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import PRECISIONS, choose_precision

IMAGES = {"cpu": 5_000, "cuda": 50_000}
"""Distinct training images; on a GPU as many as would not stay in its caches."""

LEAST_STEPS = {"cpu": 2, "cuda": 20}
DEEP_LEAST_STEPS = {"cpu": 2, "cuda": 8}
"""Steps a round, however long they take; of nets of `DEEP` layers a few suffice, as each is long itself."""

RATE = 1e-3
"""Learning rate. At the paper's, rounding alone changes the second loss of ResNet-110 by 1e-4 of it, the third by more
than 1e-3: no engine could be told from a wrong one. What a step costs does not depend on it."""

TRIAL_STEPS = {"cpu": 1, "cuda": 10}
DEEP_TRIAL_STEPS = {"cpu": 1, "cuda": 3}
"""Steps timed beforehand, to find how many fill a round."""


def usable_engines(device: torch.device) -> tuple[EngineName, ...]:
    """The engines that are measured unless others are asked for; compiling costs minutes on a CPU and is left out."""
    usable = (name for name, why in available_engines(device).items() if why is None)
    return tuple(name for name in usable if name != "compile" or device.type == "cuda")


def usable_precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions that the device has."""

    def has(precision: str) -> bool:
        try:
            choose_precision(precision, device)
        except PaperbenchError:
            return False
        return True

    return tuple(precision for precision in PRECISIONS if has(precision))


def checked_engines(wanted: Sequence[str], device: torch.device) -> tuple[EngineName, ...]:
    """The engines of these names in their order, in which they are built too.

    Raises:
        PaperbenchError: There is no such engine, or it does not run here.
    """
    available = available_engines(device)
    for name in wanted:
        if name not in available:
            raise PaperbenchError(f"Unknown engine {name!r}. {nearest(name, available)}")
        if why := available[name]:
            raise PaperbenchError(f"Engine {name}: {why}. Leave it out.")
    return tuple(name for name in dict.fromkeys(wanted) if name in available)


def checked_net(name: str) -> Net:
    """The net of that name, if its training can be measured.

    Raises:
        PaperbenchError: There is no such net, or it is made for large images.
    """
    net = resolve(name)
    if FAMILIES[net.family].size != SIDE:
        raise PaperbenchError(f"{name} is made for large images, which paperbench cannot train on yet. Leave it out.")
    return net


def bench_recipe(batch_size: int) -> Recipe:
    """The paper's recipe at a batch size and at `RATE`: its groups of batch norm if they divide it, else one group.

    Raises:
        PaperbenchError: The batch is too small for batch norm.
    """
    if batch_size < 2:
        raise PaperbenchError(f"Batch norm needs at least 2 images a batch, not {batch_size}.")
    table = load_table("table2", spec_root())
    recipe = table.recipe_in(table.profiles.named("paper"))
    group = recipe.batch_norm.group if batch_size % recipe.batch_norm.group == 0 else batch_size
    settings = replace(recipe.batch_norm, group=group)
    return replace(recipe, batch_size=batch_size, batch_norm=settings, warm_up=None, learning_rate=RATE)


def quietly(_line: str) -> None:
    """What is called with each line of progress where nobody wants to read it."""


def measure_net(
    name: str,
    *,
    engines: Sequence[str],
    precisions: Sequence[str],
    device: torch.device,
    batch_size: int = 128,
    rounds: int = 7,
    seconds: float = 1.5,
    deadline: float | None = None,
    baselines: bool = True,
    depth: int | None = None,
    progress: Callable[[str], None] = quietly,
) -> NetFigures:
    """Measure one net, all variants in this process, taking turns.

    Args:
        name: The net's.
        engines: Ours to measure, available on the device, the most decisive first.
        precisions: In which.
        device: Where.
        batch_size: Images a step.
        rounds: Turns of each variant.
        seconds: Least length of a turn.
        deadline: Moment of `time.monotonic` after which no variant is built and no further round is begun.
        baselines: Whether to measure the plain loops, without which there are no ratios.
        depth: Of the net, if it is not the name's.
        progress: Called with a line of text after each round and each variant that was built.

    Returns:
        Figures, or why there are none, for each variant. torch's switches are as before.

    Raises:
        PaperbenchError: A name is unknown, or the device lacks an engine or precision.
    """
    net = checked_net(name) if depth is None else resolve(name, depth=depth)
    chosen = checked_engines(engines, device)
    arithmetic = tuple(dict.fromkeys(choose_precision(precision, device) for precision in precisions))
    measurement = _Measurement(name, net, chosen, arithmetic, device, batch_size, rounds, seconds, deadline, progress)
    with put_back():
        return measurement.run(baselines)


@dataclass
class _Live:
    """A variant that is ready to be timed."""

    figures: VariantFigures
    runner: OurRunner | PlainRunner
    steps: int = 0
    step_seconds: float = 0.0


class _Measurement:
    """The measurement of one net; see `measure_net`."""

    def __init__(
        self,
        name: str,
        net: Net,
        engines: Sequence[str],
        precisions: Sequence[str],
        device: torch.device,
        batch_size: int,
        rounds: int,
        seconds: float,
        deadline: float | None,
        progress: Callable[[str], None],
    ) -> None:
        self._name, self._net, self._device = name, net, device
        self._engines, self._precisions = engines, precisions
        self._rounds, self._seconds, self._deadline = rounds, seconds, deadline
        self._progress = progress
        self._recipe = bench_recipe(batch_size)
        count = max(IMAGES[device.type], batch_size)
        self._dataset: ImageDataset = random_images(count, net.num_classes)
        self._on_device: OnDeviceBatches | None = None
        self._parameters = sum(p.numel() for p in ResidualNet(net).parameters())
        self._done: list[VariantFigures] = []
        self._controls: list[Control] = []
        self._compared = compared_steps(net.depth)
        self._references: dict[str, Beginning] = {}
        self._no_reference: dict[str, str] = {}
        self._rounding: list[float] = []

    def run(self, with_baselines: bool) -> NetFigures:
        plain = plain_variants(self._precisions, shipped_precision(self._device)) if with_baselines else ()
        pending = list(ours(self._engines, self._precisions))
        self._find_references()
        subset = 0
        while pending:
            pending = self._measure_subset(subset, plain, pending)
            subset += 1
        order = {variant.label: number for number, variant in enumerate((*plain, *ours(self._engines, PRECISIONS)))}
        found = sorted(self._done, key=lambda f: (f.kind == "paperbench", f.subset, order[f.label]))
        noise = noise_of(self._controls)
        return NetFigures(
            net=self._name,
            parameters=self._parameters,
            batch_size=self._recipe.batch_size,
            bn_group=self._recipe.batch_norm.group,
            images=len(self._dataset.x_train),
            rounds=self._rounds,
            seconds=self._seconds,
            compared_steps=self._compared,
            variants=tuple(self._with_ratios(f, found, noise) for f in found),
            controls=tuple(self._controls),
            noise=noise,
            clocks=clocks(self._device),
        )

    # What engines are held to

    def _find_references(self) -> None:
        """Losses of the eager engine, alone in memory: in float32, and where a graph must be equal to the last bit."""
        needed = ["fp32", *(p for p in self._precisions if "graph" in self._engines and p != "fp32")]
        for precision in needed:
            if self._is_late():
                self._no_reference[precision] = "there was no time"
                continue
            try:
                self._references[precision] = self._eager(precision)
                if precision == "fp32":
                    free_memory(self._device)
                    changed = self._eager("fp32", last_bits=True)
                    self._rounding = drift(changed.losses, self._references["fp32"].losses)
            except Exception as error:  # a lack of memory, say; the variants that need it will tell
                self._no_reference[precision] = in_words(error.with_traceback(None))
            free_memory(self._device)
            state = self._no_reference.get(precision, "computed")
            self._progress(f"{self._name}, losses of eager {precision} to compare with: {state}")

    def _eager(self, precision: str, *, last_bits: bool = False) -> Beginning:
        """The first steps of the eager engine; with `last_bits` after its parameters were changed in these."""
        trainer = new_trainer(self._net, self._recipe, self._dataset, "eager", precision, self._device)
        if last_bits:
            signs = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    sign = torch.randint(2, parameter.shape, generator=signs) * 2 - 1
                    parameter.mul_(1 + sign.to(self._device) * torch.finfo(torch.float32).eps)
        return first_steps(trainer, self._compared)

    def _checked(self, figures: VariantFigures, beginning: Beginning) -> VariantFigures:
        """The figures with the first losses, and a status by the first steps."""
        losses = tuple(loss if math.isfinite(loss) else None for loss in beginning.losses)
        figures = replace(figures, losses=losses)
        needed = ("fp32", figures.precision) if figures.engine == "graph" else ("fp32",)
        for precision in needed:
            if precision in self._no_reference:
                why = f"eager {precision}, to compare with: {self._no_reference[precision]}"
                return replace(figures, status="not checked", detail=why)
        fp32 = self._references["fp32"]
        eager = self._references[figures.precision].losses if figures.engine == "graph" else None
        wrong = complaint(beginning.losses, fp32.losses, eager, figures.precision, self._rounding)
        wrong = wrong or lameness(beginning.displacement, fp32.displacement)
        moved = beginning.displacement / fp32.displacement
        figures = replace(figures, displacement=moved if math.isfinite(moved) else None)
        return replace(figures, status="wrong loss", detail=wrong) if wrong else figures

    # Building and timing

    def _measure_subset(self, subset: int, plain: Sequence[Variant], pending: list[Variant]) -> list[Variant]:
        """Measure as many variants as fit into memory together; returns those to be tried without the others."""
        live: list[_Live] = []
        later: list[Variant] = []
        try:
            for variant in (*plain, *pending):
                room = any(item.figures.kind == "paperbench" for item in live)
                if built := self._attempt(variant, subset, later if room and variant.is_ours else None):
                    live.append(built)
            self._try_all(live, later)
            self._take_turns(subset, live)
        finally:
            for item in live:
                item.runner.close()
            live.clear()
            free_memory(self._device)
        return later

    def _attempt(self, variant: Variant, subset: int, later: list[Variant] | None) -> _Live | None:
        """Build and check a variant.

        Args:
            later: Takes up the variant if memory is lacking but others could make room; None if there are no others.
        """
        blank = VariantFigures(
            variant.kind, variant.engine, variant.precision, variant.label, "left out", subset=subset
        )
        if self._is_late():
            self._done.append(replace(blank, detail="the time was over"))
            return None
        try:
            if variant.kind == "plain-on-device" and self._on_device is None:  # is no part of what the variant takes
                self._on_device = OnDeviceBatches(self._dataset, self._recipe.batch_size, self._device)
            free_memory(self._device)
            before = self._memory_now()
            runner = self._build(variant)
        except Exception as raised:
            error = raised.with_traceback(None)  # whose frames would keep what they hold in memory
            free_memory(self._device)
            self._put_off(variant, blank, error, later)
            return None
        allocated, reserved = self._memory_since(before)
        figures = replace(
            blank,
            status="measured",
            construction_seconds=runner.construction_seconds,
            first_step_seconds=runner.first_step_seconds,
            peak_allocated=allocated,
            peak_reserved=reserved,
            flags=runner.flags,
        )
        if runner.beginning is not None:
            figures = self._checked(figures, runner.beginning)
        state = "ready" if figures.status == "measured" else f"{figures.status} ({figures.detail})"
        taken = runner.construction_seconds + runner.first_step_seconds
        self._progress(f"{self._name}, {variant.label}: first step done after {taken:.1f} s, {state}")
        if figures.status != "measured":
            self._done.append(figures)
            runner.close()
            return None
        return _Live(figures, runner)

    def _put_off(
        self, variant: Variant, figures: VariantFigures, error: Exception, later: list[Variant] | None
    ) -> None:
        """Measure a variant later, if others can make room for it, or give it up."""
        if later is None or not is_out_of_memory(error):
            self._give_up(figures, error)
            return
        later.append(variant)
        self._progress(f"{self._name}, {variant.label}: no memory beside the others; measured without them later")

    def _build(self, variant: Variant) -> OurRunner | PlainRunner:
        steps = self._compared
        if variant.is_ours:
            engine, precision = variant.engine, variant.precision
            return OurRunner(self._net, self._recipe, self._dataset, engine, precision, self._device, steps)
        feed = self._feed(variant)
        try:
            return PlainRunner(self._net, self._recipe, feed, variant.precision, self._device, steps)
        except BaseException:
            feed.close()
            raise

    def _feed(self, variant: Variant) -> Feed:
        if variant.kind == "plain":
            return LoaderFeed(self._dataset, self._recipe.batch_size, self._device)
        assert self._on_device is not None  # noqa: S101
        return DeviceFeed(self._on_device)

    def _try_all(self, live: list[_Live], later: list[Variant]) -> None:
        """Find how many steps fill a round, with everything in memory that will be; drops what does not fit."""
        is_deep, kind = self._net.depth >= DEEP, self._device.type
        trial = (DEEP_TRIAL_STEPS if is_deep else TRIAL_STEPS)[kind]
        least = (DEEP_LEAST_STEPS if is_deep else LEAST_STEPS)[kind]
        for item in list(live):
            try:
                step = timed(item.runner, trial) / trial
            except Exception as raised:
                error = raised.with_traceback(None)
                live.remove(item)
                item.runner.close()
                figures = item.figures
                del item
                free_memory(self._device)
                is_ours = figures.kind == "paperbench"
                room = is_ours and any(other.figures.kind == "paperbench" for other in live)
                variant = Variant(figures.kind, figures.engine, figures.precision)
                self._put_off(variant, figures, error, later if room else None)
                continue
            item.steps, item.step_seconds = steps_for(self._seconds, step, least), step

    def _take_turns(self, subset: int, live: list[_Live]) -> None:
        """Time everything in rounds, the controls twice, and note what came out."""
        if not live:
            return
        slots = [Slot(item.runner, item.steps) for item in live]
        controls = [self._control(live, is_ours=is_ours) for is_ours in (False, True)]
        again = {number: Slot(live[number].runner, live[number].steps) for number in controls if number is not None}
        images = self._recipe.batch_size

        def report(number: int) -> None:
            now = "; ".join(
                f"{item.figures.label} {item.steps * images / slot.seconds[-1]:.0f}"
                for item, slot in zip(live, slots, strict=True)
                if slot.error is None
            )
            self._progress(f"{self._name}, round {number} of {self._rounds}, images/s: {now}")

        interleave([*slots, *again.values()], self._rounds, report=report, is_late=self._is_late)
        for item, slot in zip(live, slots, strict=True):
            if slot.error is not None:
                self._give_up(item.figures, slot.error)
                continue
            self._done.append(
                replace(
                    item.figures,
                    steps=slot.steps,
                    seconds=tuple(slot.seconds),
                    images_per_second=spread(rates(images * slot.steps, slot.seconds)),
                )
            )
        for number, slot in again.items():
            if slot.error is None and slots[number].error is None:
                same = per_round(slots[number].seconds, slot.seconds)  # times: the later over the earlier rate
                self._controls.append(Control(live[number].figures.label, subset, same))

    def _control(self, live: Sequence[_Live], *, is_ours: bool) -> int | None:
        """The variant that is timed twice a round: the first; of deep nets the fastest of ours, to save time."""
        numbers = [i for i, item in enumerate(live) if (item.figures.kind == "paperbench") is is_ours]
        if is_ours and self._net.depth >= DEEP:
            return min(numbers, key=lambda number: live[number].step_seconds, default=None)
        return next(iter(numbers), None)

    def _give_up(self, figures: VariantFigures, error: Exception) -> None:
        status: Status = "out of memory" if is_out_of_memory(error) else "failed"
        self._done.append(replace(figures, status=status, detail=in_words(error)))
        self._progress(f"{self._name}, {figures.label}: {status}: {in_words(error)}")

    def _with_ratios(
        self, figures: VariantFigures, found: Sequence[VariantFigures], noise: float | None
    ) -> VariantFigures:
        """The figures with ratios to the plain loops of the same subset."""

        def over(kind: str, precision: str) -> tuple[float, ...]:
            for other in found:
                if (other.kind, other.precision, other.subset) == (kind, precision, figures.subset):
                    return () if other is figures else self._rates(other)
            return ()

        equal, mine = plain_precision(figures.precision), self._rates(figures)
        return replace(
            figures,
            over_plain=ratio(mine, over("plain", shipped_precision(self._device)), noise),
            over_plain_same_precision=ratio(mine, over("plain", equal), noise),
            over_on_device=ratio(mine, over("plain-on-device", equal), noise),
        )

    def _rates(self, figures: VariantFigures) -> tuple[float, ...]:
        return rates(self._recipe.batch_size * (figures.steps or 0), figures.seconds)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _memory_now(self) -> tuple[int, int]:
        """What the allocator has given out and what it holds, from where peaks are counted anew."""
        if self._device.type != "cuda":
            return 0, 0
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device)

    def _memory_since(self, before: tuple[int, int]) -> tuple[int | None, int | None]:
        if self._device.type != "cuda":
            return None, None
        allocated: int = torch.cuda.max_memory_allocated(self._device) - before[0]
        reserved: int = torch.cuda.max_memory_reserved(self._device) - before[1]
        return allocated, reserved
