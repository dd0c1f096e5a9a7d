"""The first measurement on a GPU: what the defaults depend on, most important first, in under two minutes.

`ci/first_gpu.sh` uses it: python -m paperbench.bench.first_gpu
    measure FILE DEVICE SECONDS    measure; on a CPU with tiny sizes, as a rehearsal
    choose FILE SECONDS            print the engine that gets farthest in bf16, and how many complete runs that makes
    summary FILE RESULTS           print what the figures decide, and the runs in a results directory
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from paperbench.bench.setup import bench_training, equal_parameters
from paperbench.bench.timing import race, stopwatch
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.files import UNGUARDED, read_at_most
from paperbench.runs.environment import environment_facts
from paperbench.runs.store import RunDirectory
from paperbench.specs.recipe import Drops
from paperbench.training.engine import ENGINES, available_engines
from paperbench.training.graph import CudaCapture
from paperbench.training.memory import release_memory
from paperbench.training.precision import set_arithmetic
from paperbench.training.trainer import Trainer

LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
CONVOLUTIONS = ("convolution forward", "convolution by data", "convolution by weights")
ALL_LAYERS = ("batch norm", *CONVOLUTIONS)
TRAINED = "as trained"
WAYS = {
    TRAINED: (True, False, ALL_LAYERS),
    "by cuDNN": (True, False, ALL_LAYERS[:1]),
    "not deterministic": (False, False, CONVOLUTIONS),
    "timed": (False, True, CONVOLUTIONS),
}
"""cuDNN's switches `deterministic` and `benchmark`, and the layers that are measured so."""
AT_ONCE = (1, 2, 3, 5)
"""Numbers of trainings. The last two trainings are equally long, and so must be equal."""
RUN_STEPS = 64_000 * 1.03
"""Steps of a run of the paper, and as many as its tests take."""

LAYERS = 2 * 36
"""Convolutions, and batch norms, of a step in each stage of ResNet-110: two groups pass 36 layers."""

DECISIONS = {
    "streams for compile (training/engine.py)": (0.9, "take out compile", "take out streams"),
    "{most} trainings at once by {best} (executors/local.py)": (1.2, "train several on a GPU", "train one on a GPU"),
    "channels_last for contiguous in fp32 (training/trainer.py)": (1.0, "channels_last", "contiguous"),
    "weight gradients that are not deterministic (training/precision.py)": (1.25, "look for faster ones", "keep"),
    "convolutions chosen by timing (training/precision.py)": (1.25, "look for faster ones", "keep"),
    "cuDNN's batch norm (training/batch_norm.py)": (1.1, "compare it with float64 up to 1e12", "keep torch's"),
}
"""What would change, from how many times as fast, and what to do then or else."""

Found = Mapping[str, float | str | None]
"""By name, milliseconds or what the name says; why a part failed; and facts of the machine."""


class Sizes(NamedTuple):
    """How large the measured things are."""

    net: str = "preact_resnet110"
    batch: int = 128
    stages: Sequence[tuple[int, int]] = ((16, 32), (32, 16), (64, 8))  # channels and side of the images in a net
    copied: int = 2**28  # float32 values
    chain: int = 1_000  # kernels of a graph
    calls: int = 10  # of an operation in a graph
    seconds: float = 0.5  # for steps


REHEARSAL = Sizes("preact_resnet20", 8, ((16, 8), (32, 4), (64, 2)), 2**16, 8, 1, 0.0)


class Measurement:
    """Measures one part after the other until the time is up. An error ends one part only.

    Args:
        file: Written after every part. If it has figures of the same device, only what is missing is measured.
        seconds: After these no part begins.
    """

    def __init__(self, file: Path, device: torch.device, seconds: float, sizes: Sizes) -> None:
        self._file, self._device, self._sizes = file, device, sizes
        self._on_gpu, self._began, self._seconds = device.type == "cuda", time.monotonic(), seconds
        # always the same: torch has 32 streams in all, and captures take more of them
        self._streams = [torch.cuda.Stream(device) if self._on_gpu else None for _ in range(AT_ONCE[-1])]
        self._trainers: defaultdict[str, list[Trainer]] = defaultdict(list)
        self.found: dict[str, float | str | None] = {**vars(environment_facts(device)), "batch": sizes.batch}
        earlier = read(file)
        if self.found.items() <= earlier.items():
            self.found |= {name: value for name, value in earlier.items() if isinstance(value, float)}

    def run(self, engines: Sequence[str]) -> None:
        """Measure all parts: each engine alone, the slowest to compile after the layers that decide; then the rest."""
        gc.freeze()  # every capture collects garbage, half a second each among all that is imported or compiled
        self._put("copy, GB/s", self._copy)
        for branches in (1, 4):
            self._put(f"kernel in a graph of branches: {branches}", partial(self._chain, branches))
        self._steps(engines[:-1], "bf16", AT_ONCE[:1])
        self._layers(decisive=True)
        self._steps(engines[-1:], "bf16", AT_ONCE[:1])
        self._steps(sorted(engines, key=partial(_step, self.found)), "bf16")
        self._layers(decisive=False)
        self._steps(engines, "tf32" if self._on_gpu else "fp32")
        set_arithmetic("fp32")
        gc.unfreeze()

    def _put(self, name: str, measure: Callable[[], float]) -> bool:
        """Measure one part, unless it was or no time is left; return whether it has a figure."""
        if name not in self.found and time.monotonic() <= self._began + self._seconds:
            try:
                self.found[name] = float(f"{measure():.5g}")
            except Exception as error:  # whatever it is, other parts may work
                self.found[name] = summarize_error(error)
            print(f"{time.monotonic() - self._began:6.1f} s  {name}: {self.found[name]}", flush=True)
            UNGUARDED.write(self._file, json.dumps(self.found, indent=1).encode() + b"\n")
        return isinstance(self.found.get(name), float)

    def _milliseconds(self, work: Callable[[], object], calls: int) -> float:
        """Return the time of a call; on a GPU of calls in a graph, as launching takes longer than small kernels do."""

        def run() -> object:
            return [work() for _ in range(calls)]

        timed: Callable[[], object] = run
        if self._on_gpu:
            capture = CudaCapture(self._device)
            capture.warm_up(run)
            timed = capture.record(run)
            timed()  # the first launch takes longer
        (seconds,) = race({"": stopwatch(timed, self._device)}, 5, self._sizes.seconds / 100).values()
        return 1000 * statistics.median(seconds) / calls

    def _copy(self) -> float:
        source = torch.randn(self._sizes.copied, device=self._device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / 1e6 / self._milliseconds(lambda: target.copy_(source), 3)

    def _chain(self, branches: int) -> float:
        """Measure the smallest kernel, in branches of which each is a chain."""
        beside = CudaCapture(self._device).side_by_side if self._on_gpu else lambda calls: [call() for call in calls]

        def add(number: torch.Tensor) -> None:
            for _ in range(self._sizes.chain // branches):
                number.add_(1)

        calls = [partial(add, torch.zeros(1, device=self._device)) for _ in range(branches)]
        return self._milliseconds(lambda: beside(calls), 1) / self._sizes.chain

    def _steps(self, engines: Sequence[str], precision: str, numbers: Sequence[int] = AT_ONCE) -> None:
        """Measure the steps of one training, and of several in turn."""
        for engine in engines:
            if self._put(f"first step, {engine} {precision}", partial(self._step_new, engine, precision)):
                for number in numbers:
                    name = f"step, {engine} {precision}, {number} at once"
                    if not self._put(name, partial(self._step_all, engine, precision, number)):
                        break
            if numbers == AT_ONCE:
                self._trainers.pop(engine, None)
                gc.unfreeze()
                release_memory(self._device)
            gc.freeze()

    def _step_new(self, engine: str, precision: str) -> float:
        """Measure the first step of another training, built and stepped on a stream of its own."""
        training, trainers = bench_training(self._sizes.net, self._sizes.batch, self._device), self._trainers[engine]
        # some thousand steps are enough, and the choices of images for all take a second
        recipe = replace(training.recipe, iterations=10_000, drops=Drops((), 0.1))
        with torch.cuda.stream(self._streams[len(trainers)]):
            trainers.append(replace(training, recipe=recipe).trainer(engine, precision))
            return 1000 * stopwatch(trainers[-1].step, self._device)(1)

    def _step_all(self, engine: str, precision: str, number: int) -> float:
        """Measure a step of each of several trainings, which take turns on the host."""
        trainers = self._trainers[engine]
        while len(trainers) < number:
            self._step_new(engine, precision)

        def work() -> None:
            for stream, trainer in zip(self._streams, trainers, strict=False):
                with torch.cuda.stream(stream):
                    trainer.step()

        (seconds,) = race({"": stopwatch(work, self._device)}, 3, self._sizes.seconds).values()
        for one, other in pairwise(trainers):
            if one.iteration == other.iteration and not equal_parameters(one, other):
                raise PaperbenchError("WRONG: equal trainings differ after they ran at once.")
        return 1000 * statistics.median(seconds) / number

    def _layers(self, *, decisive: bool) -> None:
        """Measure layers: only those that `decide` compares, or all."""
        for (how, (*_, layers)), precision, layout in product(WAYS.items(), ("bf16", "fp32", "tf32"), LAYOUTS):
            if decisive and (precision, layout) != ("bf16", "channels_last") and (precision, how) != ("fp32", TRAINED):
                continue
            for what, (channels, side) in product(layers, self._sizes.stages):
                measure = partial(in_thread, self._layer, what, how, precision, layout, channels, side)
                self._put(f"{what}, {precision} {layout}, {how}, {channels} channels", measure)

    def _layer(self, what: str, how: str, precision: str, layout: str, channels: int, side: int) -> float:
        """Measure an operation on one group of images: half a batch."""
        set_arithmetic(precision)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, _ = WAYS[how]

        def tensor(count: int, width: int) -> torch.Tensor:
            values = torch.randn(count, channels, width, width, device=self._device)
            return values.to(torch.bfloat16 if precision == "bf16" else torch.float32, memory_format=LAYOUTS[layout])

        x, gradient = (tensor(self._sizes.batch // 2, side) for _ in range(2))
        weight, ones = tensor(channels, 3), [1, 1]
        own = torch.ones(4, channels, device=self._device).unbind()  # scale, shift, mean, variance
        inputs = [one.detach().requires_grad_(what == "batch norm") for one in (x, *own[:2])]
        settings: Any = [*inputs, *own[2:], True, 1.0, 1e-5, True]
        wanted = [what.endswith(one) for one in ("by data", "by weights", "by bias")]

        def work() -> object:
            if what == "convolution forward":
                return F.conv2d(x, weight, padding=1)
            if what in CONVOLUTIONS:
                backward = torch.ops.aten.convolution_backward
                return backward(gradient, x, weight, None, ones, ones, ones, False, [0, 0], 1, wanted)
            y = torch.batch_norm(*settings) if how == "by cuDNN" else torch.native_batch_norm(*settings[:-1])[0]
            return torch.autograd.grad(y, inputs, gradient)

        return self._milliseconds(work, self._sizes.calls)


def in_thread(measure: Callable[..., float], *arguments: object) -> float:
    """Measure in a thread of its own: torch caches cuDNN's choices by thread, and takes timed ones for others."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(measure, *arguments).result()


def read(file: Path) -> Found:
    """Return what was found; nothing if there is no file."""
    found: Found = json.loads(read_at_most(file, 2**20)) if file.exists() else {}
    return found


def _figure(found: Found, name: str) -> float:
    """Return a figure, infinite if it was not measured."""
    value = found.get(name)
    return value if isinstance(value, float) else math.inf


def _step(found: Found, engine: str, number: int = 1) -> float:
    """Return the milliseconds of a step in bf16."""
    return _figure(found, f"step, {engine} bf16, {number} at once")


def _layers(found: Found, layers: Sequence[str], how: str) -> float:
    """Return the milliseconds of the layers of a step."""
    parts = product(layers, Sizes().stages)
    return LAYERS * sum(_figure(found, f"{what}, {how}, {channels} channels") for what, (channels, _) in parts)


def choose(found: Found, seconds: float) -> tuple[str, int]:
    """Return the engine that gets farthest in bf16 in this time, and how many complete runs it makes one by one."""
    runs = {"auto": 0.0}
    for engine in ENGINES:
        if (step := _step(found, engine)) < math.inf:
            runs[engine] = (1000 * seconds - _figure(found, f"first step, {engine} bf16")) / step / RUN_STEPS
    best = max(runs, key=runs.__getitem__)
    return best, int(runs[best])


def decide(found: Found) -> Iterator[str]:
    """Yield the device, speeds, a line for each decision, and what failed."""
    step, layers = partial(_step, found), partial(_layers, found)
    best, other = (min(engines, key=step) for engines in (ENGINES, ENGINES[:-1]))
    most = min(AT_ONCE[1:], key=partial(step, best))
    yield ", ".join(f"{name} {found.get(name)}" for name in ("device", "torch", "cuda", "cudnn"))
    if found.get("cuda") is None:
        yield "A rehearsal with tiny sizes: it decides nothing. On a GPU:"
    for engine in ENGINES:
        if step(engine) < math.inf:
            yield f"{engine} in bf16: {1000 * float(found['batch'] or 0) / step(engine):,.0f} images/s"
    compiling, capturing = (_figure(found, f"first step, {engine} bf16") for engine in ("compile", other))
    gain = step(other) - step("compile")
    pays = f"from {max(0.0, compiling - capturing) / gain:,.0f} iterations on" if gain > 0 else "never"
    yield f"compile pays off (COMPILE_MIN_ITERATIONS): {pays if abs(gain) < math.inf else 'not measured'}"
    figures: list[tuple[float, ...]] = [
        (step("compile"), step("streams")),
        (step(best), step(best, most)),
        tuple(layers(ALL_LAYERS, f"fp32 {layout}, {TRAINED}") for layout in ("contiguous", "channels_last")),
        tuple(layers(CONVOLUTIONS[2:], f"bf16 channels_last, {how}") for how in (TRAINED, "not deterministic")),
        tuple(layers(CONVOLUTIONS, f"bf16 channels_last, {how}") for how in (TRAINED, "timed")),
        tuple(layers(ALL_LAYERS[:1], f"bf16 channels_last, {how}") for how in (TRAINED, "by cuDNN")),
    ]
    for (what, (threshold, yes, no)), (old, new) in zip(DECISIONS.items(), figures, strict=True):
        line, ratio = what.format(best=best, most=most), old / new
        if old + new < math.inf:
            verdict = yes if ratio >= threshold else no
            yield f"{line}: {old:.2f} -> {new:.2f} ms a step, {ratio:.2f} times as fast (from {threshold}): {verdict}"
        else:
            yield f"{line}: not measured"
    yield from (f"{name}: {value}" for name, value in found.items() if " " in name and isinstance(value, str))


def runs_in(results: Path) -> Iterator[str]:
    """Yield a line for each run."""
    for path in sorted(results.glob("runs/*")):
        if record := RunDirectory(path).read_record():
            whole = record.spec.recipe["iterations"]
            hours = record.seconds / max(1, record.iteration) * whole / 3600
            error = f", test error {record.result.test_error:.2f} %" if record.result else ""
            yield (
                f"{record.net} in {record.spec.precision}, seed {record.seed}: {record.status}, {record.iteration:,} "
                f"of {whole:,} iterations{error}, {hours:.2f} hours a run"
            )


def main(command: str, file: str, *more: str) -> None:
    """Run a command; see the module."""
    path = Path(file)
    if command == "measure":
        device = torch.device(more[0])
        _eager, *others = [name for name, why in available_engines(device).items() if why is None]
        sizes, engines = (Sizes(), others) if device.type == "cuda" else (REHEARSAL, ["eager"])
        Measurement(path, device, float(more[1]), sizes).run(engines)
    elif command == "choose":
        print(*choose(read(path), float(more[0])))
    else:
        print("\n".join([*decide(read(path)), *runs_in(Path(more[0]))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
