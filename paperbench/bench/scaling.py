"""Measures what several processes gain by training one run together, and what they spend on each other.

A step by process 0 alone, a step by all, and the parts of the latter take turns in one job, so that a slowdown of the
machine affects all. Process 0 measures, and tells the others what it does with them, and how often.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import torch
import torch.distributed as dist

from paperbench.architecture import parameters
from paperbench.bench.cost import on_sample
from paperbench.bench.figures import ScalingFigures
from paperbench.bench.loader import sample_photographs
from paperbench.bench.setup import IMAGE_SIZE, Training, bench_training, equal_parameters, step_endlessly
from paperbench.bench.throughput import MIN_STEPS
from paperbench.bench.timing import Rounds, Way, stopwatch
from paperbench.catalogue import FAMILIES, resolve
from paperbench.specs.table import find_spec_root, read_table
from paperbench.training.memory import release_memory
from paperbench.training.processes import Processes
from paperbench.training.trainer import Trainer


def scaling_training(name: str, batch_size: int | None, device: torch.device) -> Training:
    """Return the training of a net on random small images, or on scikit-learn's photographs with Table 5's recipe.

    Args:
        batch_size: By default 128 small images, or 256 photographs. Photographs keep groups of 32 if they divide it.
    """
    net = resolve(name)
    if FAMILIES[net.family].size == IMAGE_SIZE:
        return bench_training(name, batch_size or 128, device)
    table = read_table("table5", find_spec_root())
    recipe = table.recipe_in(table.profiles.named("paper"))
    size, group = batch_size or recipe.batch_size, recipe.batch_norm.group
    files, _ = sample_photographs()
    recipe, sample = on_sample(recipe, files, size, group if size % group == 0 else size)
    return Training(name, net, recipe, sample, device)  # type: ignore[arg-type]  # only plain loops want an array


def shared_steps(
    training: Training, engine: str, precision: str, processes: Processes
) -> tuple[Trainer, dict[str, Way]]:
    """Return this process's trainer, and what the processes do together: steps, and their parts alone."""
    trainer = training.trainer(engine, precision, processes=processes)
    gradients = [torch.zeros_like(parameter) for parameter in trainer.model.parameters()]
    flat = gradients[0].new_zeros(sum(gradient.numel() for gradient in gradients))
    averages = sum(buffer.numel() for buffer in trainer.model.buffers() if buffer.is_floating_point())
    rows = flat.new_zeros(training.recipe.groups // processes.count, averages + 2)

    def step() -> None:
        processes.any_of(False, False)  # as a session does
        step_endlessly(trainer)

    def agree() -> None:
        processes.any_of(False, False)
        processes.agreed(lambda: None)

    parts: dict[str, Callable[[], object]] = {
        "together": step,
        "gradients": lambda: processes.summed(gradients),
        "all_reduce": lambda: dist.all_reduce(flat),
        "statistics": lambda: processes.gathered(rows),
        "agreement": agree,
    }
    return trainer, {name: stopwatch(part, training.device) for name, part in parts.items()}


def measure_scaling(
    training: Training, engine: str, precision: str, processes: Processes, rounds: Rounds
) -> ScalingFigures | None:
    """Measure one net, in all processes; return the figures in process 0."""
    device, threads = training.device, torch.get_num_threads()
    release_memory(device)
    trainer, parts = processes.agreed(lambda: shared_steps(training, engine, precision, processes))
    if processes.rank:
        with closing(trainer):
            while text := processes.first_text():
                part, times = text.split()
                parts[part](int(times))
        return None
    with processes.in_step(), closing(trainer), closing(training.trainer(engine, precision)) as alone:

        def time_part(part: str, times: int) -> float:
            processes.first_text(f"{part} {times}")
            return parts[part](times)

        def time_alone(number: int, times: int) -> float:
            torch.set_num_threads(number)
            elapsed = stopwatch(partial(step_endlessly, alone), device)(times)
            torch.set_num_threads(threads)
            return elapsed

        ways: dict[str, Way] = {"alone": partial(time_alone, threads)}
        ways |= {part: partial(time_part, part) for part in parts}
        for name in ("alone", "together"):
            ways[name](MIN_STEPS)  # capture, warm the caches
        is_equal = equal_parameters([alone, trainer])
        if device.type == "cpu":
            ways["alone_all_threads"] = partial(time_alone, threads * processes.count)
        found: dict[str, tuple[float, ...]] = {"alone_all_threads": ()}
        found |= rounds.of(training.name).race(ways, least=MIN_STEPS)
        processes.first_text("")  # the others stop
    return ScalingFigures(
        net=training.name,
        parameters=parameters(training.net),
        batch_size=training.recipe.batch_size,
        bn_group=training.recipe.batch_norm.group,
        engine=engine,
        precision=precision,
        processes=processes.count,
        threads=threads,
        is_equal=is_equal,
        **found,
    )
