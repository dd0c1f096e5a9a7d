"""What the processes of a run do that do not lead it: they train as process 0 orders, and open no results directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from paperbench.data.dataset import Dataset
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.limits import Limits
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Code, Environment
from paperbench.specs.recipe import Evaluation
from paperbench.specs.run_spec import RunSpec
from paperbench.training.engine import EngineName
from paperbench.training.memory import release_memory
from paperbench.training.processes import Order, Processes, ProcessLostError, is_agreed
from paperbench.training.trainer import Trainer
from paperbench.typed import Id, Natural, from_json, typed


@typed
class SharedRun:
    """What a process needs to know of a run, beside its data.

    Attributes:
        dataset: Key of the data set.
        evaluations: How the net is tested.
        code, environment: Those of process 0.
    """

    spec: RunSpec
    seed: Natural
    dataset: Id
    evaluations: tuple[Evaluation, ...]
    engine: EngineName
    recompute: bool
    code: Code
    environment: Environment


_MUST_AGREE = ("source", "numerics", "torch", "torchvision", "timm", "numpy", "cuda")
"""Facts in which no process may differ from process 0."""
_MAY_DIFFER = ("cudnn", "system", "device", "threads")
"""Facts that change no more than the rounding."""


def _differences(names: Sequence[str], run: SharedRun, device: torch.device) -> str:
    """Say in which facts of these names this process differs from process 0; "" if in none."""
    own = vars(code_facts()) | vars(environment_facts(device))
    first = vars(run.code) | vars(run.environment)
    return ", ".join(f"{name} {own[name]} (process 0: {first[name]})" for name in names if own[name] != first[name])


def follow(processes: Processes, device: torch.device, data: Path, limits: Limits) -> int:
    """Follow the orders of process 0 until the last one; return the exit status that it gives.

    Args:
        data: The data directory.

    Raises:
        ProcessLostError: Another process has ended, or does not answer.
    """
    trainer: Trainer | None = None
    datasets: dict[str, Dataset] = {}

    def build(order: Order) -> tuple[Trainer, str]:
        run = from_json(SharedRun, order.text)
        if different := _differences(_MUST_AGREE, run, device):
            raise PaperbenchError(f"it has {different}. Start the same code, with the same packages, everywhere.")
        if run.dataset not in datasets:
            datasets[run.dataset] = load_dataset(run.dataset, data)
        if datasets[run.dataset].fingerprint != run.spec.data:
            raise PaperbenchError(f"the images of {run.dataset} in {data} are not those of process 0.")
        what = *net_and_recipe(run.spec, run.evaluations), datasets[run.dataset], run.seed, run.spec.precision, device
        between = limits.raise_if_signalled
        made = Trainer(*what, run.engine, recompute=run.recompute, processes=processes, between_batches=between)
        return made, _differences(_MAY_DIFFER, run, device)

    while (order := processes.receive()).name != "end":
        try:
            if order.name == "build":
                trainer = None
                release_memory(device)
                trainer, different = processes.agreed(lambda order=order: build(order))  # type: ignore[misc]
                processes.texts(different)
            elif trainer:
                trainer.obey(order, limits.raise_if_signalled)
        except ProcessLostError:
            raise
        except Exception as error:
            if not is_agreed(error):
                raise  # process 0 has not, and would wait
    return order.argument
