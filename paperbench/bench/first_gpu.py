"""The first measurement on a GPU: what the defaults depend on, most important first, in under two minutes.

`ci/first_gpu.sh` uses it: python -m paperbench.bench.first_gpu
    measure FILE DEVICE SECONDS    measure; on a CPU with tiny sizes, as a rehearsal
    choose FILE SECONDS            print the engine that gets farthest in bf16, and how many complete runs that makes
    summary FILE RESULTS           print what the figures decide, and the runs in a results directory
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
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
from paperbench.training.engine import ENGINES, available_engines
from paperbench.training.graph import CudaCapture
from paperbench.training.memory import release_memory
from paperbench.training.precision import set_arithmetic
from paperbench.training.trainer import Trainer

LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
CONVOLUTIONS = ("convolution forward", "convolution by data", "convolution by weights")
WAYS = {
    "as trained": (True, False, ("batch norm", *CONVOLUTIONS)),
    "by cuDNN": (True, False, ("batch norm",)),
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

DECISIONS = """
streams for compile (training/engine.py) | 0.9 | take out compile | take out streams
step, compile bf16, 1 * | step, streams bf16, 1 *
{most} trainings at once by {best} (executors/local.py) | 1.2 | train several on a GPU | train one on a GPU
step, {best} bf16, 1 * | step, {best} bf16, {most} *
channels_last for contiguous in fp32 (training/trainer.py) | 1.0 | channels_last | contiguous
*, fp32 contiguous, as trained, * | *, fp32 channels_last, as trained, *
weight gradients that are not deterministic (training/precision.py) | 1.25 | look for faster algorithms | keep
* by weights, bf16 channels_last, as trained, * | * by weights, bf16 channels_last, not deterministic, *
convolutions chosen by timing (training/precision.py) | 1.25 | look for faster algorithms | keep
convolution *, bf16 channels_last, as trained, * | convolution *, bf16 channels_last, timed, *
cuDNN's batch norm (training/batch_norm.py) | 1.1 | compare it with float64 on inputs up to 1e12 | keep torch's
batch norm, bf16 channels_last, as trained, * | batch norm, bf16 channels_last, by cuDNN, *
"""
"""What would change, from how many times as fast, what to do then or else; and the figures before and after."""

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


REHEARSAL = Sizes("preact_resnet20", 8, ((4, 8), (8, 4)), 2**16, 8, 1, 0.0)


class Measurement:
    """Measures one part after the other until the time is up. An error ends one part only.

    Args:
        file: Written after every part.
        seconds: After these no part begins.
    """

    def __init__(self, file: Path, device: torch.device, seconds: float, sizes: Sizes) -> None:
        self._file, self._device, self._sizes = file, device, sizes
        self._on_gpu, self._began, self._seconds = device.type == "cuda", time.monotonic(), seconds
        # always the same: torch has 32 streams in all, and captures take more of them
        self._streams = [torch.cuda.Stream(device) if self._on_gpu else None for _ in range(AT_ONCE[-1])]
        self.found: dict[str, float | str | None] = {**vars(environment_facts(device)), "batch": sizes.batch}

    def run(self, engines: Sequence[str]) -> None:
        self._put("copy, GB/s", self._copy)
        for branches in (1, 4):
            self._put(f"kernel in a graph of branches: {branches}", partial(self._chain, branches))
        self._steps(engines, "bf16")
        for how, (*_, layers) in WAYS.items():
            for precision, layout, what in product(("bf16", "fp32", "tf32"), LAYOUTS, layers):
                for channels, side in self._sizes.stages:
                    measure = partial(self._layer, what, how, precision, layout, channels, side)
                    self._put(f"{what}, {precision} {layout}, {how}, {channels} channels", measure)
        self._steps(engines, "tf32" if self._on_gpu else "fp32")
        set_arithmetic("fp32")

    def _put(self, name: str, measure: Callable[[], float]) -> bool:
        """Measure one part, if time is left; return whether that worked."""
        if time.monotonic() > self._began + self._seconds:
            return False
        try:
            self.found[name] = float(f"{measure():.5g}")
        except Exception as error:  # whatever it is, other parts may work
            self.found[name] = summarize_error(error)
        print(f"{time.monotonic() - self._began:6.1f} s  {name}: {self.found[name]}", flush=True)
        UNGUARDED.write(self._file, json.dumps(self.found, indent=1).encode() + b"\n")
        return isinstance(self.found[name], float)

    def _milliseconds(self, work: Callable[[], object], calls: int) -> float:
        """Return the time of a call; on a GPU of calls in a graph, as launching takes longer than small kernels do."""

        def run() -> object:
            return [work() for _ in range(calls)]

        timed: Callable[[], object] = run
        if self._on_gpu:
            capture = CudaCapture(self._device)
            capture.warm_up(run)
            timed = capture.record(run)
        (seconds,) = race({"": stopwatch(timed, self._device)}, 5, self._sizes.seconds / 100).values()
        return 1000 * statistics.median(seconds) / calls

    def _copy(self) -> float:
        source = torch.randn(self._sizes.copied, device=self._device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / 1e6 / self._milliseconds(lambda: target.copy_(source), 3)

    def _chain(self, branches: int) -> float:
        """Measure the smallest kernel, in branches of which each is a chain."""
        sides = [(side, torch.zeros(1, device=self._device)) for side in self._streams[:branches]]

        def work() -> None:
            for side, number in sides:
                if side:
                    side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(self._sizes.chain // branches):
                        number.add_(1)
            for side, _ in sides:
                if side:
                    torch.cuda.current_stream().wait_stream(side)

        return self._milliseconds(work, 1) / self._sizes.chain

    def _steps(self, engines: Sequence[str], precision: str) -> None:
        """Measure the steps of one training, and of several in turn, each built and stepped on a stream of its own."""
        training = bench_training(self._sizes.net, self._sizes.batch, self._device)
        trainers: list[tuple[torch.cuda.Stream | None, Trainer]] = []

        def step_new(engine: str) -> float:
            stream = self._streams[len(trainers)]
            with torch.cuda.stream(stream):
                trainers.append((stream, training.trainer(engine, precision)))
                return 1000 * stopwatch(trainers[-1][1].step, self._device)(1)

        def step_all() -> None:
            for stream, trainer in trainers:
                with torch.cuda.stream(stream):
                    trainer.step()

        def measure(engine: str, number: int) -> float:
            while len(trainers) < number:
                step_new(engine)
            (seconds,) = race({"": stopwatch(step_all, self._device)}, 3, self._sizes.seconds).values()
            for (_, one), (_, other) in pairwise(trainers):
                if one.iteration == other.iteration and not equal_parameters(one, other):
                    raise PaperbenchError("WRONG: equal trainings differ after they ran at once.")
            return 1000 * statistics.median(seconds) / number

        for engine in engines:
            if self._put(f"first step, {engine} {precision}", partial(step_new, engine)):
                for number in AT_ONCE:
                    name = f"step, {engine} {precision}, {number} at once"
                    if not self._put(name, partial(measure, engine, number)):
                        break
            trainers.clear()
            release_memory(self._device)

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


def _step(found: Found, engine: str, number: int = 1) -> float:
    """Return the milliseconds of a step in bf16, infinite if they were not measured."""
    milliseconds = found.get(f"step, {engine} bf16, {number} at once")
    return milliseconds if isinstance(milliseconds, float) else float("inf")


def choose(found: Found, seconds: float) -> tuple[str, int]:
    """Return the engine that gets farthest in bf16 in this time, and how many complete runs it makes one by one."""
    runs = {"auto": 0.0}
    for engine in ENGINES:
        first = found.get(f"first step, {engine} bf16")
        if isinstance(first, float):
            runs[engine] = (1000 * seconds - first) / _step(found, engine) / RUN_STEPS
    best = max(runs, key=runs.__getitem__)
    return best, int(runs[best])


def decide(found: Found) -> Iterator[str]:
    """Yield the speeds, and a line for each decision."""
    best = min(ENGINES, key=partial(_step, found))
    most = min(AT_ONCE[1:], key=partial(_step, found, best))
    if found.get("cuda") is None:
        yield "A rehearsal with tiny sizes: it decides nothing. On a GPU:"
    for engine in ENGINES:
        if (step := _step(found, engine)) < float("inf"):
            yield f"{engine} in bf16: {1000 * float(found['batch'] or 0) / step:,.0f} images/s"
    lines = DECISIONS.format(best=best, most=most).strip().splitlines()
    for decision, patterns in zip(lines[::2], lines[1::2], strict=True):
        what, threshold, yes, no = decision.split(" | ")
        before, after = (
            [value for name, value in found.items() if fnmatchcase(name, pattern) and isinstance(value, float)]
            for pattern in patterns.split(" | ")
        )
        if not before or len(before) != len(after):
            yield f"{what}: not measured"
            continue
        old, new = (sum(values) * (1 if patterns.startswith("step") else LAYERS) for values in (before, after))
        verdict = yes if old / new >= float(threshold) else no
        yield f"{what}: {old:.2f} -> {new:.2f} ms a step, {old / new:.2f} times as fast (from {threshold}): {verdict}"


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
        gc.freeze()  # every capture collects garbage, half a second each among all that is imported
        Measurement(path, device, float(more[1]), sizes).run(engines)
        gc.unfreeze()
        return
    found: Found = json.loads(read_at_most(path, 2**20)) if path.exists() else {}
    if command == "choose":
        print(*choose(found, float(more[0])))
    else:
        print("\n".join([*decide(found), *runs_in(Path(more[0]))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
