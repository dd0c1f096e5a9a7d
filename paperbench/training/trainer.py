"""The trainer: net, data, optimiser and engine of one training, advanced one iteration at a time."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from paperbench.catalogue import Net
from paperbench.data.dataset import Dataset
from paperbench.data.feed import make_feed
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.tensor_file import check_fit
from paperbench.training.batch_norm import TrainingBatchNorm2d
from paperbench.training.engine import EagerEngine, Engine, EngineName, ShortBatchEngine, groups_at_once
from paperbench.training.evaluation import (
    EvaluationMetrics,
    as_memory_allows,
    evaluate,
    no_interrupt,
    reestimate_batch_norm,
    set_batch_count,
)
from paperbench.training.graph import CudaCapture, GraphEngine
from paperbench.training.metrics import MetricAccumulator, TrainingMetrics
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import set_arithmetic
from paperbench.training.processes import ALONE, Order, Processes
from paperbench.training.step import TrainingStep, in_turn
from paperbench.training.working_copy import DirectModel, WorkingCopy

NUMERICS_VERSION = 2
"""Incremented by every change after which the same spec and seed give different numbers. Records contain it."""


class Trainer:
    """Trains one net with one seed.

    If several processes share the run, each has a trainer. Process 0 calls `step`, `test`, `finish`,
    `load_state_dict`, `state_dict` and `close`; its trainer orders the others to do the same, and theirs `obey`.

    Args:
        seed: Seed of initialisation, order of images, augmentation and noise.
        precision: "fp32", "tf32" or "bf16".
        engine: Must be available on the device (`engine.available_engines`).
        recompute: Whether the backward pass recomputes the residual units, which saves memory and changes no number.
        processes: Those that share the run.
        capture: Makes what captures the steps of a `GraphEngine`.
        between_batches: Called regularly while the data are prepared; may raise to abort.
        announce: Called with the progress of long passes over the training images, in words.

    Attributes:
        model: The net as a module.
        feed: The images.
        iteration: Number of iterations done.
    """

    def __init__(
        self,
        net: Net,
        recipe: Recipe,
        dataset: Dataset,
        seed: int,
        precision: str,
        device: torch.device,
        engine: EngineName = "eager",
        *,
        recompute: bool = False,
        processes: Processes = ALONE,
        capture: Callable[[torch.device], CudaCapture] = CudaCapture,
        between_batches: Callable[[], None] = no_interrupt,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        if dataset.num_train < recipe.batch_norm.group:
            raise PaperbenchError(
                f"{dataset.name} has {dataset.num_train} training images; batch norm needs groups of "
                f"{recipe.batch_norm.group}."
            )
        self.recipe, self.seed, self.precision, self.device = recipe, seed, precision, device
        self._processes, self._new_capture = processes, capture
        self.iteration = 0
        set_arithmetic(precision)
        # Only noise inside a net (dropout) uses torch's default generators.
        torch.manual_seed(derived_seed(seed, "noise"))
        self.model = self._initialised_model(net)
        self.model.set_grad_checkpointing(recompute, net.has_dropout)
        self._num_images = dataset.num_train
        self.feed = make_feed(dataset, recipe, seed, device, between_batches, announce)
        self.feed.share = processes.share
        self._optimiser = MomentumSGD(self.model.parameters(), recipe)
        self._metrics = MetricAccumulator(device)
        processes.reserve(list(self.model.parameters()))
        self._engine = self._make_engine(engine)

    def _initialised_model(self, net: Net) -> ResidualNet:
        """Return the untrained net. Drawn on the CPU, so equal for all devices."""
        model = ResidualNet(net)
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "initialisation"))
        model.init_weights(generator, self.recipe.initialisation)
        model.to(self.device).to(memory_format=torch.channels_last)
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                TrainingBatchNorm2d.replace(layer)
                layer.eps = self.recipe.batch_norm.eps
                layer.momentum = self.recipe.batch_norm.moving_average
                if layer.num_batches_tracked is not None:
                    # Nothing depends on this counter; on a GPU it would cost a kernel per layer and pass.
                    layer.num_batches_tracked = layer.num_batches_tracked.cpu()
        return model

    def obey(self, order: Order, between_batches: Callable[[], None]) -> None:
        """Do what process 0 has ordered.

        Raises:
            What process 0 raises, too.
        """
        match order.name:
            case "step":
                self._step(_as_float(order.argument))
            case "test":
                self._test(between_batches, order.argument)
            case "finish":
                self._finish(between_batches)
            case "load":
                self._receive_state(order.argument)
            case "compare":
                self._processes.compare(self._state_tensors())
            case "close":
                self.feed.close()

    def step(self) -> None:
        """Run one iteration. The first one may capture the step."""
        rate = self.recipe.rate_at(self.iteration)
        self._processes.order("step", _as_int(rate))
        self._step(rate)

    def _step(self, rate: float) -> None:
        if self.recipe.photographs and rate != self._optimiser.rate:
            # if an image is missing, before the momentum is scaled
            self._processes.agreed(lambda: self.feed.choices(self.iteration))
        self._optimiser.set_rate(rate)
        self._engine.step(self.iteration)
        self._metrics.count(_batch_size(self.recipe, self._num_images, self.iteration))
        self.iteration += 1

    @contextmanager
    def stepping_eagerly(self) -> Iterator[None]:
        """Inside the context, steps call the modules of `model` and their hooks, whatever the engine.

        Other processes wait meanwhile, and this one makes the whole batches. A state must be loaded before their next
        step.
        """
        engine, processes = self._engine, self._processes
        self._take_part_in(ALONE)
        self._engine = self._make_engine("eager")
        try:
            yield
        finally:
            self._take_part_in(processes)
            self._engine = engine

    def _take_part_in(self, processes: Processes) -> None:
        self._processes, self.feed.share = processes, processes.share

    def _make_engine(self, engine: EngineName) -> Engine:
        """Return an engine for this training. All engines change the same tensors in place."""
        recipe, processes = self.recipe, self._processes
        batch_size = partial(_batch_size, recipe, self._num_images)  # no method, which would keep the trainer alive
        eager = EagerEngine(self._make_step([DirectModel(self.model)]), self.feed, batch_size, processes)
        if engine == "eager":
            return eager
        capture = self._new_capture(self.device)
        working = WorkingCopy(self.model, bf16_weights=self.precision == "bf16")
        workings = [working, *(working.twin() for _ in range(1, groups_at_once(engine, recipe, processes.share)))]
        step = self._make_step(workings, run=capture.side_by_side if len(workings) > 1 else in_turn)
        tensors = (self.model.parameters(), self.model.buffers(), self._optimiser.momentum, self._metrics.tensors())
        state = list(chain.from_iterable(tensors))
        graph = GraphEngine(step, self.feed, recipe.iterations, state, capture, processes)
        if recipe.epoch_end is None:
            return graph
        return ShortBatchEngine(graph, eager, lambda iteration: batch_size(iteration) == recipe.batch_size)

    def _make_step(self, workings: Sequence[DirectModel], **how: Any) -> TrainingStep:
        own = workings, self._optimiser, self._metrics, self.recipe, self.feed, self.precision, self._processes
        return TrainingStep(*own, **how)

    def training_metrics(self) -> TrainingMetrics:
        """Return training loss and error since the last reset. Waits for the device."""
        return self._metrics.compute()

    def reset_training_metrics(self) -> None:
        """Start a new mean of training loss and error."""
        self._metrics.reset()

    def test(
        self, between_batches: Callable[[], None] = no_interrupt, evaluation: Evaluation | None = None
    ) -> EvaluationMetrics:
        """Return test loss and error with the net's current BN statistics: moving averages until `finish`.

        Args:
            between_batches: Called before each batch; may raise to abort, which changes nothing.
            evaluation: How photographs are tested; by default, the first of the recipe's.
        """
        number = self._evaluations.index(evaluation) if evaluation else 0
        self._processes.order("test", number)
        return self._test(between_batches, number)

    @property
    def _evaluations(self) -> list[Evaluation | None]:
        """The recipe's evaluations, or the only test of whole images."""
        return [*self.recipe.evaluations.values()] or [None]

    def _test(self, between_batches: Callable[[], None], number: int) -> EvaluationMetrics:
        """Return the result of one of the evaluations."""
        evaluation, processes = self._evaluations[number], self._processes

        def test_with(batch_size: int) -> EvaluationMetrics:
            self.feed.test_batch = batch_size  # for later tests, too
            batches = self.feed.test(evaluation, batch_size)
            return evaluate(self.model, batches, self.precision, self.device, between_batches, processes)

        return as_memory_allows(test_with, self.feed.test_batch, self.device)

    def finish(self, between_batches: Callable[[], None] = no_interrupt) -> list[EvaluationMetrics]:
        """Test the trained net with the BN statistics that the recipe uses at test, and leave them in the net.

        Args:
            between_batches: Called before each batch; may raise to abort, after which the trainer cannot be used.

        Returns:
            The results of the recipe's evaluations, or of the only test of whole images.
        """
        self._processes.order("finish")
        return self._finish(between_batches)

    def _finish(self, between_batches: Callable[[], None]) -> list[EvaluationMetrics]:
        self._set_batch_count()
        if self.recipe.batch_norm.at_test == "reestimated":
            how = self.precision, self.device, between_batches, self._processes
            reestimate_batch_norm(self.model, self.feed.reestimation(), *how)
        return [self._test(between_batches, number) for number in range(len(self._evaluations))]

    def close(self) -> None:
        """Free the memory and threads of the training images. The trainer can still be used."""
        self.feed.close()
        self._processes.order("close")

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for an exact resume with any engine, as tensors by dotted names. They are not copied."""
        self._processes.order("compare")
        self._processes.compare(self._state_tensors())
        return self._state()

    def _state(self) -> dict[str, Tensor]:
        self._set_batch_count()
        parts: dict[str, dict[str, Tensor]] = {
            "model": self.model.state_dict(),
            "momentum": {str(index): tensor for index, tensor in enumerate(self._optimiser.momentum)},
            "window": self._metrics.state_dict(),
            "noise": _generator_states(self.device),
        }
        state = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return {"iteration": torch.tensor(self.iteration), **state}

    def _set_batch_count(self) -> None:
        """Set BN's counters, which not every engine updates."""
        set_batch_count(self.model, self.iteration * self.recipe.groups)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from a state of the same net, recipe and seed. Its tensors are copied.

        Raises:
            ValueError, RuntimeError: The state belongs to another net.
        """
        on_gpu = {"noise.cuda"}  # a run may move from a GPU to a CPU, or back
        check_fit(*({name: one[name] for name in one.keys() - on_gpu} for one in (state, self._state())))
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.iteration = int(state["iteration"])
        self.model.load_state_dict(parts["model"])
        self._optimiser.resume(self.iteration, [parts["momentum"][str(i)] for i in range(len(parts["momentum"]))])
        self._metrics.load_state_dict(parts["window"])
        torch.set_rng_state(parts["noise"]["cpu"])
        if self.device.type == "cuda" and "cuda" in parts["noise"]:
            torch.cuda.set_rng_state(parts["noise"]["cuda"], self.device)
        self._processes.order("load", self.iteration)
        self._receive_state(self.iteration)

    def _receive_state(self, iteration: int) -> None:
        """Take over the state of process 0, but for its metrics, which nobody else reads."""
        self._processes.broadcast(self._state_tensors())
        self._optimiser.resume(iteration, self._optimiser.momentum)
        self.iteration = iteration

    def _state_tensors(self) -> list[Tensor]:
        """Return the parameters, BN's moving averages and the momentum, which all processes share."""
        averages = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        return [*self.model.parameters(), *averages, *self._optimiser.momentum]


def _as_int(number: float) -> int:
    """Return the integer with the bits of a float, which grows with it from 0 on."""
    return int.from_bytes(struct.pack(">d", number))


def _as_float(number: int) -> float:
    """Return the inverse of `_as_int`."""
    value: float = struct.unpack(">d", number.to_bytes(8))[0]
    return value


def _batch_size(recipe: Recipe, images: int, iteration: int) -> int:
    """Return the number of images of an iteration, given that of the training set."""
    return recipe.images_before(iteration + 1, images) - recipe.images_before(iteration, images)


def _generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
