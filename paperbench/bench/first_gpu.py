"""The first measurement on a GPU: what the defaults depend on, most important first, in under two minutes.

`ci/first_gpu.sh` uses it: python -m paperbench.bench.first_gpu
    measure FILE DEVICE SECONDS    measure; on a CPU with tiny sizes, as a rehearsal
    choose FILE SECONDS            print how many runs in bf16 to train at once, and how many end in this time
    summary FILE RESULTS           print what the figures decide, and the runs in a results directory
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from paperbench.bench.setup import TrainerLoop, bench_training, equal_parameters
from paperbench.bench.timing import Rounds, stopwatch
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.files import UNGUARDED, read_at_most
from paperbench.runs.environment import environment_facts
from paperbench.runs.store import RunDirectory
from paperbench.specs.recipe import Drops
from paperbench.training.device import choose_device
from paperbench.training.engines import engine_candidates
from paperbench.training.memory import release_memory
from paperbench.training.precision import PRECISIONS, set_arithmetic

AT_ONCE = (1, 2, 3, 5)
"""Numbers of trainings. The last two trainings are equally long, and so must be equal."""
RUN_STEPS = 64_000 * 1.03
"""Steps of a run of the paper, and as many as its tests take."""
PAYS = 1.2
"""From how many times as fast on several trainings should share a GPU."""

Found = Mapping[str, float | str | None]
"""By name, milliseconds or what the name says; why a part failed; and facts of the machine."""


Sizes = tuple[str, int, float]
"""A net, a batch size, and how many seconds of steps are measured."""
SIZES: Mapping[str, Sizes] = {"cuda": ("preact_resnet110", 128, 0.5), "cpu": ("preact_resnet20", 8, 0.0)}
"""By type of device; on a CPU as a rehearsal."""


class Measurement:
    """Measures one part after the other until the time is up. An error ends one part only.

    Args:
        file: Written after every part. If it has figures of the same device, only what is missing is measured.
        seconds: After these no part begins.
    """

    def __init__(self, file: Path, device: torch.device, seconds: float, sizes: Sizes) -> None:
        self._file, self._device = file, device
        self._net, self._batch, self._step_seconds = sizes
        self._on_gpu, self._began, self._seconds = device.type == "cuda", time.monotonic(), seconds
        self.found: dict[str, float | str | None] = {**vars(environment_facts(device)), "batch": self._batch}
        earlier = read(file)
        if self.found.items() <= earlier.items():
            self.found |= {name: value for name, value in earlier.items() if isinstance(value, float)}

    def run(self, engine: str) -> None:
        """Measure all parts."""
        gc.freeze()  # every capture collects garbage, half a second each among all that is imported
        for precision in ("bf16", "tf32", "fp32") if self._on_gpu else ("bf16", "fp32"):
            self._steps(engine, precision)
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

    def _steps(self, engine: str, precision: str) -> None:
        """Measure the steps of one training, and of several in turn."""
        training = bench_training(self._net, self._batch, self._device)
        # some thousand steps are enough, and the choices of images for all take a second
        recipe = replace(training.recipe, iterations=10_000, drops=Drops((), 0.1))
        new = partial(replace(training, recipe=recipe).trainer, engine, precision)
        with closing(TrainerLoop(self._device, new)) as loop:
            works = self._put(f"first step, {precision}", partial(self._step_new, loop, 1))
            for number in AT_ONCE if works else ():
                if not self._put(f"step, {precision}, {number} at once", partial(self._step_all, loop, number)):
                    break
        gc.unfreeze()
        release_memory(self._device)
        gc.freeze()

    def _step_new(self, loop: TrainerLoop, number: int) -> float:
        """Measure the first step after there are so many trainings."""
        loop.grow(number)
        return 1000 * stopwatch(loop.step, self._device)(1)

    def _step_all(self, loop: TrainerLoop, number: int) -> float:
        """Measure a step of each of several trainings, which take turns on the host."""
        self._step_new(loop, number)
        (seconds,) = Rounds(3, self._step_seconds).race({"": stopwatch(loop.step, self._device)}).values()
        if not equal_parameters(loop.trainers.values()):
            raise PaperbenchError("WRONG: equal trainings differ after they ran at once.")
        return 1000 * statistics.median(seconds) / number


def read(file: Path) -> Found:
    """Return what was found; nothing if there is no file."""
    found: Found = json.loads(read_at_most(file, 2**20)) if file.exists() else {}
    return found


def _step(found: Found, precision: str, number: int = 1) -> float:
    """Return the milliseconds of a step of one training, infinite if they were not measured."""
    value = found.get(f"step, {precision}, {number} at once")
    return value if isinstance(value, float) else math.inf


def choose(found: Found, seconds: float) -> tuple[int, int]:
    """Return how many runs in bf16 to train at once so that most end in this time (or a step is short), and those."""
    steps = {number: _step(found, "bf16", number) for number in AT_ONCE}
    ends = {number: number * int(1000 * seconds / RUN_STEPS / number / step) for number, step in steps.items()}
    best = max(AT_ONCE, key=lambda number: (ends[number], -steps[number]))
    return best, ends[best]


def decide(found: Found) -> Iterator[str]:
    """Yield the device, speeds, whether several trainings should share a GPU, and what failed."""
    yield ", ".join(f"{name} {found.get(name)}" for name in ("device", "torch", "cuda", "cudnn"))
    if found.get("cuda") is None:
        yield "A rehearsal with tiny sizes: it decides nothing. On a GPU:"
    for precision in PRECISIONS:
        alone, most = _step(found, precision), min(AT_ONCE[1:], key=partial(_step, found, precision))
        if alone < math.inf:
            yield f"{precision}: {1000 * float(found['batch'] or 0) / alone:,.0f} images/s"
        if (together := _step(found, precision, most)) < math.inf:
            verdict = f"use `--at-once {most}`" if alone / together >= PAYS else "train one at a time"
            times = f"{alone / together:.2f} times as fast (from {PAYS})"
            yield f"{most} trainings at once: {alone:.2f} -> {together:.2f} ms a step, {times}: {verdict}"
    yield from (f"{name}: {value}" for name, value in found.items() if " " in name and isinstance(value, str))


def runs_in(results: Path) -> Iterator[str]:
    """Yield a line for each run."""
    for path in sorted(results.glob("runs/*")):
        if record := RunDirectory(path).read_record():
            whole = record.spec.recipe["iterations"]
            seconds = sum(session.seconds / (session.at_once or 1) for session in record.sessions)
            hours = seconds / max(1, record.iteration) * whole / 3600
            error = f", test error {record.result.test_error:.2f} %" if record.result else ""
            yield (
                f"{record.net} in {record.spec.precision}, seed {record.seed}: {record.status}, {record.iteration:,} "
                f"of {whole:,} iterations{error}, {hours:.2f} hours a run"
            )


def main(command: str, file: str, *more: str) -> None:
    """Run a command; see the module."""
    path = Path(file)
    if command == "measure":
        device = choose_device(more[0], print)
        Measurement(path, device, float(more[1]), SIZES[device.type]).run(engine_candidates("auto", device)[0])
    elif command == "choose":
        print(*choose(read(path), float(more[0])))
    else:
        print("\n".join([*decide(read(path)), *runs_in(Path(more[0]))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
