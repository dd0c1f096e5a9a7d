"""What the processes of a run do that do not lead it: they train as process 0 orders, and open no results directory."""

from __future__ import annotations

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


def follow(processes: Processes, device: torch.device, data: Path, limits: Limits) -> int:
    """Follow the orders of process 0 until the last one; return the exit status that it gives.

    Args:
        data: The data directory.
    """
    trainer: Trainer | None = None
    datasets: dict[str, Dataset] = {}

    def build(order: Order) -> Trainer:
        run = from_json(SharedRun, order.text)
        must_agree = "source", "numerics", "torch", "torchvision", "timm", "numpy", "cuda"
        first, own = vars(run.code) | vars(run.environment), vars(code_facts()) | vars(environment_facts(device))
        found = [f"{name} {own[name]} (process 0: {first[name]})" for name in must_agree if own[name] != first[name]]
        if found:
            raise PaperbenchError(f"it has {', '.join(found)}. Start the same code and packages on all machines.")
        if run.dataset not in datasets:
            datasets[run.dataset] = load_dataset(run.dataset, data)
        if datasets[run.dataset].fingerprint != run.spec.data:
            raise PaperbenchError(f"the images of {run.dataset} in {data} are not those of process 0.")
        what = *net_and_recipe(run.spec, run.evaluations), datasets[run.dataset], run.seed, run.spec.precision, device
        between = limits.raise_if_signalled
        return Trainer(*what, run.engine, recompute=run.recompute, processes=processes, between_batches=between)

    while (order := processes.receive()).name != "end":
        try:
            if order.name == "build":
                trainer = None
                release_memory(device)
                trainer = processes.agreed(lambda order=order: build(order))  # type: ignore[misc]
                processes.numbers(int(from_json(SharedRun, order.text).environment != environment_facts(device)))
            elif trainer:
                trainer.obey(order, limits.raise_if_signalled)
        except ProcessLostError:
            raise
        except Exception as error:
            if not is_agreed(error):
                raise  # process 0 has not, and would wait
    return order.argument
