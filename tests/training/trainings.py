"""Small trainings that differ in the engine alone, and their states."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe, WarmUp
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.engine import EngineName
from paperbench.training.trainer import Trainer


def recipe_of(paper_recipe: Recipe, iterations: int, momentum_form: Any = "caffe") -> Recipe:
    """Six images in two groups of three: the 100 images end inside a batch. The rate changes twice."""
    return replace(
        paper_recipe,
        batch_size=6,
        iterations=iterations,
        warm_up=WarmUp(0.01, iterations // 10),
        drops=Drops((iterations * 3 // 4,), 0.1),
        momentum_form=momentum_form,
        batch_norm=BatchNormSettings(3, 1e-5, 0.1, "reestimated"),
    )


@dataclass
class Runs:
    """Makes trainers that differ in the engine alone."""

    recipe: Recipe
    dataset: ImageDataset
    device: torch.device
    net: str = "preact_resnet20"
    precision: str = "fp32"
    depth: int = 8

    def new(self, engine: EngineName) -> Trainer:
        net = resolve(self.net, depth=self.depth)
        return Trainer(net, self.recipe, self.dataset, 3, self.precision, self.device, engine)

    def eager_states(self) -> list[dict[str, object]]:
        """The states of an eager training, from before the first iteration to after the last."""
        trainer = self.new("eager")
        states = [state_of(trainer)]
        for _ in range(self.recipe.iterations):
            trainer.step()
            states.append(state_of(trainer))
        return states


def advance(trainer: Trainer, iteration: int) -> Trainer:
    while trainer.iteration < iteration:
        trainer.step()
    return trainer


def state_of(trainer: Trainer) -> dict[str, object]:
    """A copy of all that a training is, by name."""
    return leaves(copy.deepcopy(trainer.state_dict()))


def leaves(state: Any) -> dict[str, object]:
    """The values in nested containers, by the path to them."""
    return dict(_leaves("", state))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(f"{path}/{key}", item)
    else:
        yield path, value


def differences(ours: dict[str, object], theirs: dict[str, object]) -> list[str]:
    """Paths to what is not the same, bit for bit."""
    assert ours.keys() == theirs.keys()
    return [path for path, value in ours.items() if not _is_same(value, theirs[path])]


def _is_same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def through_a_file(trainer: Trainer) -> dict[str, Any]:
    return read_checkpoint(checkpoint_bytes("a-run", trainer.state_dict()), "a-run")[0]
