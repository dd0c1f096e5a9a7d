"""The trainer: net, data, optimiser and engine of one training, advanced one iteration at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from paperbench.catalogue import AnyNet, Net
from paperbench.data.dataset import Dataset
from paperbench.data.feed import make_feed
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.models.building import build
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.tensor_file import check_fit
from paperbench.training.batch_norm import keep_averages_apart
from paperbench.training.engine import Parts
from paperbench.training.engines import ENGINES, REFERENCE
from paperbench.training.evaluation import (
    EvaluationMetrics,
    as_memory_allows,
    evaluate,
    reestimate_batch_norm,
    set_batch_count,
)
from paperbench.training.graph import CudaCapture
from paperbench.training.metrics import MetricAccumulator
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import set_arithmetic
from paperbench.training.processes import ALONE, Processes

NUMERICS_VERSION = 2
"""Incremented by every change after which the same spec and seed give different numbers. Records contain it."""


class Trainer:
    """Trains one net with one seed.

    If several processes share the run, each has a trainer, and all call the same methods in the same order.

    Args:
        seed: Seed of initialisation, order of images, augmentation and noise.
        precision: "fp32", "tf32" or "bf16".
        engine: Must work on the device (`engines.ENGINES`).
        recompute: Whether the backward pass recomputes the residual units, which saves memory and changes no number.
        processes: Those that share the run.
        capture: Makes what captures CUDA graphs.
        between_batches: Called regularly but in steps, such as before each batch of a test; may raise to abort. An
            aborted test changes nothing; after an aborted `finish`, the trainer cannot be used.
        announce: Called with the progress of long passes over the training images, in words.

    Attributes:
        metrics: Training loss and error since their last reset.
        processes: Those that share the run; none in `stepping_eagerly`.
        iteration: Number of iterations done.
    """

    def __init__(
        self,
        net: AnyNet,
        recipe: Recipe,
        dataset: Dataset,
        seed: int,
        precision: str,
        device: torch.device,
        engine: str = REFERENCE,
        *,
        recompute: bool = False,
        processes: Processes = ALONE,
        capture: Callable[[torch.device], CudaCapture] = CudaCapture,
        between_batches: Callable[[], None] = lambda: None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        if dataset.num_train < recipe.batch_norm.group:
            raise PaperbenchError(
                f"{dataset.name} has {dataset.num_train} training images; batch norm needs groups of "
                f"{recipe.batch_norm.group}."
            )
        self.recipe, self.seed, self.precision, self.device = recipe, seed, precision, device
        self.iteration = 0
        self._evaluations: list[Evaluation | None] = [*recipe.evaluations.values()] or [None]  # of whole images
        set_arithmetic(precision)
        # Only noise inside a net (dropout) uses torch's default generators.
        torch.manual_seed(derived_seed(seed, "noise"))
        self.model = self._initialised_model(net)
        if isinstance(self.model, ResidualNet):
            self.model.set_grad_checkpointing(recompute, self.model.net.has_dropout)
        self.between_batches = between_batches
        self.feed = make_feed(dataset, recipe, seed, device, between_batches, announce)
        self._optimiser = MomentumSGD(self.model.parameters(), recipe)
        self.metrics = MetricAccumulator(device)
        processes.reserve(list(self.model.parameters()))
        own = self.model, self._optimiser, self.metrics, recipe, self.feed
        self._share(Parts(*own, dataset.num_train, precision, processes, capture))
        self.use(engine)

    def _initialised_model(self, net: AnyNet) -> nn.Module:
        """Return the untrained net. Drawn on the CPU, so equal for all devices.

        The recipe initialises the residual nets; other nets of the user's initialise themselves, and keep their eps.
        """
        seed = derived_seed(self.seed, "initialisation")
        if isinstance(net, Net):
            model = build(net)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)  # and not those of GPUs, which the noise is from
                model = build(net)
        if isinstance(model, ResidualNet):
            model.init_weights(torch.Generator().manual_seed(seed), self.recipe.initialisation)
            for layer in model.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eps = self.recipe.batch_norm.eps
        model.to(self.device).to(memory_format=torch.channels_last)
        keep_averages_apart(model, self.recipe.batch_norm.moving_average)
        return model

    def _share(self, parts: Parts) -> None:
        self._parts, self.processes, self.feed.share = parts, parts.processes, parts.processes.share

    def use(self, engine: str) -> None:
        """Run the next steps with an engine. All engines change the same tensors in place."""
        self._engine = ENGINES[engine].build(self._parts)

    def step(self, rate: float | None = None) -> None:
        """Run one iteration, by default with the recipe's learning rate. The first one may capture the step."""
        rate = self.recipe.rate_at(self.iteration) if rate is None else rate
        if self.recipe.photographs and rate != self._optimiser.rate:
            # if an image is missing, before the momentum is scaled
            self.processes.agreed(lambda: self.feed.choices(self.iteration))
        self._optimiser.set_rate(rate)
        self._engine.step(self.iteration)
        self.metrics.count(self._parts.batch_size(self.iteration))
        self.iteration += 1

    @contextmanager
    def stepping_eagerly(self) -> Iterator[None]:
        """Inside the context, this process trains alone, on whole batches, with the reference engine.

        Its steps call the modules of `model` and their hooks. A state must be loaded before the next step after it.
        """
        engine, parts = self._engine, self._parts
        self._share(replace(parts, processes=ALONE))
        self.use(REFERENCE)
        try:
            yield
        finally:
            self._share(parts)
            self._engine = engine

    def test(self, evaluation: Evaluation | None = None) -> EvaluationMetrics:
        """Return test loss and error with the net's current BN statistics: moving averages until `finish`.

        Args:
            evaluation: How photographs are tested; by default, the first of the recipe's.
        """
        evaluation = evaluation or self._evaluations[0]

        def test_with(batch_size: int) -> EvaluationMetrics:
            self.feed.test_batch = batch_size  # for later tests, too
            batches = self.feed.test(evaluation, batch_size)
            return evaluate(self.model, batches, self.precision, self.device, self.between_batches, self.processes)

        return as_memory_allows(test_with, self.feed.test_batch, self.device)

    def finish(self) -> list[EvaluationMetrics]:
        """Test the trained net with the BN statistics that the recipe uses at test, and leave them in the net.

        Returns:
            The results of the recipe's evaluations, or of the only test of whole images.
        """
        self._set_batch_count()
        if self.recipe.batch_norm.at_test == "reestimated":
            how = self.precision, self.device, self.between_batches, self.processes
            reestimate_batch_norm(self.model, self.feed.reestimation(), *how)
        return [self.test(evaluation) for evaluation in self._evaluations]

    def close(self) -> None:
        """Free the memory and threads of the training images. The trainer can still be used."""
        self.feed.close()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for an exact resume with any engine, as tensors by dotted names. They are not copied."""
        self.processes.compare(self._state_tensors())
        return self._state()

    def _state(self) -> dict[str, Tensor]:
        self._set_batch_count()
        noise = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            noise["cuda"] = torch.cuda.get_rng_state(self.device)
        parts: dict[str, dict[str, Tensor]] = {
            "model": self.model.state_dict(),
            "momentum": {str(index): tensor for index, tensor in enumerate(self._optimiser.momentum)},
            "window": self.metrics.state_dict(),
            "noise": noise,
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
        self.metrics.load_state_dict(parts["window"])
        torch.set_rng_state(parts["noise"]["cpu"])
        if self.device.type == "cuda" and "cuda" in parts["noise"]:
            torch.cuda.set_rng_state(parts["noise"]["cuda"], self.device)

    def take_over_state(self) -> None:
        """Take over the state of process 0, in all processes. Noise is not shared: with dropout, one process trains."""
        self.iteration, *_ = self.processes.numbers(self.iteration)
        self.processes.broadcast(self._state_tensors())
        self._optimiser.resume(self.iteration, self._optimiser.momentum)
        self.metrics.take_over(self.processes)

    def _state_tensors(self) -> list[Tensor]:
        """Return the parameters, BN's moving averages and the momentum, which all processes share."""
        averages = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        return [*self.model.parameters(), *averages, *self._optimiser.momentum]
