"""One training by a recipe: net, data stream and engine, advanced an iteration at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from paperbench.catalogue import Net
from paperbench.data.dataset import ImageDataset
from paperbench.data.loader import BatchIndices, EvaluationBatches, InputTransform, TrainingBatches
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import Recipe
from paperbench.training.compiling import compile_units, with_clear_compile_errors
from paperbench.training.engine import EagerEngine, Engine, EngineName
from paperbench.training.evaluation import (
    EvaluationMetrics,
    count_batches,
    evaluate,
    no_interrupt,
    reestimate_batch_norm,
)
from paperbench.training.graph import CudaCapture, GraphEngine
from paperbench.training.metrics import Window, WindowMetrics
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import has_bf16, keep_stream_in_fp32, set_arithmetic
from paperbench.training.step import TrainingStep
from paperbench.training.working_copy import DirectModel, WorkingCopy

NUMERICS_VERSION = 1
"""Raised whenever a change makes the same spec and seed train different numbers. Records keep it."""

EVALUATION_BATCH = {"cpu": 100, "cuda": 2000}
"""Test images a forward pass. They do not affect each other, so this is a matter of memory and speed only."""

GROUPS_AT_ONCE = {"cpu": 1, "cuda": 16}
"""BN groups a forward pass when their statistics are taken. Likewise."""


@dataclass(frozen=True)
class FinalMetrics:
    """What a finished training is judged by.

    Attributes:
        reported: Test loss and error with the statistics that the recipe's `batch_norm.at_test` names.
        moving_average: The same with the moving averages.
    """

    reported: EvaluationMetrics
    moving_average: EvaluationMetrics


class Trainer:
    """Trains one net with one seed.

    Args:
        net: What to train.
        recipe: How.
        dataset: On what.
        seed: Of initialisation, order, augmentation and noise.
        precision: "fp32", "tf32", "bf16" or "bf16-fp32-stream".
        device: Where.
        engine: How; the device must have it (`choice.available_engines`).

    Attributes:
        model: The net.
        input_transform: What it reads of the images.
        iteration: Iterations done so far.
    """

    def __init__(
        self,
        net: Net,
        recipe: Recipe,
        dataset: ImageDataset,
        seed: int,
        precision: str,
        device: torch.device,
        engine: EngineName = "eager",
    ) -> None:
        if len(dataset.x_train) < recipe.batch_norm.group:
            raise PaperbenchError(
                f"{dataset.name} has {len(dataset.x_train)} training images; batch norm needs groups of "
                f"{recipe.batch_norm.group}."
            )
        self.recipe, self.seed, self.precision, self.device = recipe, seed, precision, device
        self.iteration = 0
        set_arithmetic(precision)
        # Noise within a net (dropout shortcuts) draws from torch's default generators; all else has its own.
        torch.manual_seed(derived_seed(seed, "noise"))
        self.model = self.initialised_model(net)
        if precision == "bf16-fp32-stream":
            keep_stream_in_fp32(self.model)
        self._dataset = dataset
        self.input_transform = InputTransform(dataset.x_train, recipe.input)
        self._batches = self._training_batches(recipe.batch_size, "training")
        self._optimiser, self._window = MomentumSGD(self.model.parameters(), recipe), Window(device)
        self._engine = self._made(engine)
        size = EVALUATION_BATCH[device.type]
        self._test = EvaluationBatches(dataset, self.input_transform, batch_size=size, device=device)

    def initialised_model(self, net: Net) -> ResidualNet:
        """The untrained net, drawn on the CPU so that every device starts from the same, in the faster layout."""
        model = ResidualNet(net)
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "initialisation"))
        model.init_weights(generator, fan=self.recipe.initialisation)
        model.to(self.device).to(memory_format=torch.channels_last)
        for layer in model.modules():
            if isinstance(layer, _BatchNorm):
                layer.eps = self.recipe.batch_norm.eps
                layer.momentum = self.recipe.batch_norm.moving_average
                if layer.num_batches_tracked is not None:
                    # This counter decides nothing here; on a GPU it would cost a kernel a layer and pass.
                    layer.num_batches_tracked = layer.num_batches_tracked.cpu()
        return model

    def step(self) -> None:
        """One iteration. The first one may have to be compiled or captured before."""
        self._optimiser.set_rate(self.recipe.rate_at(self.iteration))
        self._engine.step(self.iteration)
        self._window.count(self.recipe.batch_size)
        self.iteration += 1

    @contextmanager
    def stepping_eagerly(self) -> Iterator[None]:
        """Within it, steps call the modules of `model`, hooks included, whatever the engine is."""
        engine, self._engine = self._engine, self._made("eager")
        try:
            yield
        finally:
            self._engine = engine

    def _made(self, engine: EngineName) -> Engine:
        """An engine for this training. All of them change the same tensors in place."""
        size, group = self.recipe.batch_size, self.recipe.batch_norm.group
        if engine == "eager":
            return EagerEngine(self._step_with(DirectModel(self.model), group), self._batches)
        bf16 = has_bf16(self.precision)
        if engine == "graph":
            return self._graphed(self._step_with(WorkingCopy(self.model, bf16_weights=bf16), group))
        working = WorkingCopy(self.model, bf16_weights=bf16, batch_norm_group=group, groups=size // group)
        compile_units(working.module)
        step = with_clear_compile_errors(self._step_with(working, size))
        return EagerEngine(step, self._batches) if self.device.type == "cpu" else self._graphed(step)

    def _step_with(self, working: DirectModel, part: int) -> TrainingStep:
        return TrainingStep(working, self._optimiser, self._window, self.recipe, self._batches, self.precision, part)

    def _graphed(self, step: Callable[[BatchIndices], None]) -> Engine:
        tensors = (self.model.parameters(), self.model.buffers(), self._optimiser.momentum, self._window.tensors())
        state = list(chain.from_iterable(tensors))
        return GraphEngine(step, self._batches, self.recipe.iterations, state, CudaCapture(self.device))

    def window_metrics(self) -> WindowMetrics:
        """Training loss and error since the window began. Waits for the device."""
        return self._window.metrics()

    @property
    def is_window_empty(self) -> bool:
        """Whether no step was made since the window began."""
        return self._window.is_empty

    def begin_window(self) -> None:
        """Forget the training loss and error so far."""
        self._window.begin()

    def test(self, between_batches: Callable[[], None] = no_interrupt) -> EvaluationMetrics:
        """Test loss and error with the BN statistics that the net holds: moving averages, until it is finished.

        Args:
            between_batches: Called before each batch; may raise to break off, which changes nothing.
        """
        return evaluate(self.model, self._test, self.precision, self.device, between_batches)

    def finish(self, between_batches: Callable[[], None] = no_interrupt) -> FinalMetrics:
        """Test the trained net. Leaves in it the BN statistics that the recipe reports with.

        Args:
            between_batches: Called before each batch; may raise to break off, after which this trainer is of no use.
        """
        moving_average = self.test(between_batches)
        self._count_batches()
        if self.recipe.batch_norm.at_test == "moving_average":
            return FinalMetrics(moving_average, moving_average)
        group = self.recipe.batch_norm.group
        reestimate_batch_norm(self.model, self._one_pass(), group, self.precision, self.device, between_batches)
        return FinalMetrics(self.test(between_batches), moving_average)

    def _one_pass(self) -> Iterator[Tensor]:
        """Augmented training images in a new order, some BN groups at once, without those that fill no group."""
        stream = self._training_batches(self.recipe.batch_norm.group, "batch-norm")
        groups, at_once = stream.num_images // stream.batch_size, GROUPS_AT_ONCE[self.device.type]
        for first in range(0, groups, at_once):
            parts = [stream.choices(index) for index in range(first, min(first + at_once, groups))]
            order, variant = (torch.cat(part) for part in zip(*parts, strict=True))
            yield stream.make(BatchIndices(order, variant)).images

    def _training_batches(self, batch_size: int, purpose: str) -> TrainingBatches:
        return TrainingBatches(
            self._dataset,
            self.input_transform,
            batch_size=batch_size,
            padding=self.recipe.augmentation.padding,
            flip=self.recipe.augmentation.flip,
            seed=self.seed,
            device=self.device,
            purpose=purpose,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue exactly, with any engine, as tensors by dotted names. They are not copied."""
        self._count_batches()
        parts: dict[str, dict[str, Tensor]] = {
            "model": self.model.state_dict(),
            "momentum": {str(index): tensor for index, tensor in enumerate(self._optimiser.momentum)},
            "window": self._window.state_dict(),
            "noise": _generator_states(self.device),
        }
        state = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return {"iteration": torch.tensor(self.iteration), **state}

    def _count_batches(self) -> None:
        """Let BN's counters say how often it was trained: not every engine counts."""
        groups = self.recipe.batch_size // self.recipe.batch_norm.group
        count_batches(self.model, self.iteration * groups)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a state of the same net, recipe and seed; its tensors are copied.

        Raises:
            KeyError, ValueError, RuntimeError: It is of another net.
        """
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.iteration = int(state["iteration"])
        self.model.load_state_dict(parts["model"])
        self._optimiser.resume(self.iteration, [parts["momentum"][str(i)] for i in range(len(parts["momentum"]))])
        self._window.load_state_dict(parts["window"])
        torch.set_rng_state(parts["noise"]["cpu"])
        if self.device.type == "cuda" and "cuda" in parts["noise"]:
            torch.cuda.set_rng_state(parts["noise"]["cuda"], self.device)


def _generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
