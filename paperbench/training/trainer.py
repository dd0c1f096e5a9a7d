"""One training by a recipe: net, data stream and engine, advanced an iteration at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from paperbench.catalogue import Net
from paperbench.data.dataset import ImageDataset
from paperbench.data.loader import EvaluationBatches, InputTransform, TrainingBatches
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import Recipe
from paperbench.training.engine import EagerEngine, Engine, WindowMetrics
from paperbench.training.evaluation import EvaluationMetrics, evaluate, go_on, reestimate_batch_norm
from paperbench.training.precision import set_arithmetic

NUMERICS_VERSION = 1
"""Raised whenever a change makes the same spec and seed train different numbers. Records keep it."""

EVALUATION_BATCH = {"cpu": 100, "cuda": 1000}
"""Test images a forward pass. They do not affect each other, so this is a matter of memory and speed only."""


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
        precision: "fp32", "tf32" or "bf16".
        device: Where.

    Attributes:
        model: The net.
        input_transform: What it reads of the images.
        iteration: Iterations done so far.
    """

    def __init__(
        self, net: Net, recipe: Recipe, dataset: ImageDataset, seed: int, precision: str, device: torch.device
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
        self.model = _initialised_model(net, recipe, seed, device)
        self._dataset = dataset
        self.input_transform = InputTransform(dataset.x_train, recipe.input)
        batches = self._training_batches(recipe.batch_size, "training")
        self._engine: Engine = EagerEngine(self.model, recipe, batches, precision, device)
        size = EVALUATION_BATCH[device.type]
        self._test = EvaluationBatches(dataset, self.input_transform, batch_size=size, device=device)

    def step(self) -> None:
        """One iteration."""
        self._engine.step(self.iteration)
        self.iteration += 1

    @property
    def engine_name(self) -> str:
        """What records call the engine."""
        return self._engine.name

    @property
    def epoch(self) -> float:
        """Passes over the training set so far."""
        return self.iteration * self.recipe.batch_size / len(self._dataset.x_train)

    def window_metrics(self) -> WindowMetrics:
        """Training loss and error since the window began. Waits for the device."""
        return self._engine.metrics()

    @property
    def is_window_empty(self) -> bool:
        """Whether no step was made since the window began."""
        return self._engine.is_window_empty

    def begin_window(self) -> None:
        """Forget the training loss and error so far."""
        self._engine.reset_metrics()

    def test(self, between_batches: Callable[[], None] = go_on) -> EvaluationMetrics:
        """Test loss and error with the BN statistics that the net holds: moving averages, until it is finished.

        Args:
            between_batches: Called before each batch; may raise to break off, which changes nothing.
        """
        return evaluate(self.model, self._test, self.precision, self.device, between_batches)

    def finish(self, between_batches: Callable[[], None] = go_on) -> FinalMetrics:
        """Test the trained net. Leaves in it the BN statistics that the recipe reports with.

        Args:
            between_batches: Called before each batch; may raise to break off, after which this trainer is of no use.
        """
        moving_average = self.test(between_batches)
        if self.recipe.batch_norm.at_test == "moving_average":
            return FinalMetrics(moving_average, moving_average)
        groups = self._one_pass_in_bn_groups()
        reestimate_batch_norm(self.model, groups, self.precision, self.device, between_batches)
        return FinalMetrics(self.test(between_batches), moving_average)

    def _one_pass_in_bn_groups(self) -> Iterator[Tensor]:
        """Augmented training images in a new order, once each but for those that fill no group."""
        groups = self._training_batches(self.recipe.batch_norm.group, "batch-norm")
        for index in range(groups.num_images // groups.batch_size):
            yield groups.batch(index).images

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

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly; tensors and plain values only."""
        return {
            "iteration": self.iteration,
            "model": self.model.state_dict(),
            "engine": self._engine.state_dict(),
            "noise": _generator_states(self.device),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same net, recipe and seed."""
        self.model.load_state_dict(state["model"])
        self._engine.load_state_dict(state["engine"])
        torch.set_rng_state(state["noise"]["cpu"])
        if self.device.type == "cuda" and "cuda" in state["noise"]:
            torch.cuda.set_rng_state(state["noise"]["cuda"], self.device)
        self.iteration = state["iteration"]


def _initialised_model(net: Net, recipe: Recipe, seed: int, device: torch.device) -> ResidualNet:
    """The untrained net, drawn on the CPU so that every device starts from the same."""
    model = ResidualNet(net)
    generator = torch.Generator().manual_seed(derived_seed(seed, "initialisation"))
    model.init_weights(generator, fan=recipe.initialisation)
    model.to(device).to(memory_format=torch.channels_last)
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.eps = recipe.batch_norm.eps
            layer.momentum = recipe.batch_norm.moving_average
            if layer.num_batches_tracked is not None:
                # This counter decides nothing here; on a GPU it would cost a kernel a layer and pass.
                layer.num_batches_tracked = layer.num_batches_tracked.cpu()
    return model


def _generator_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
