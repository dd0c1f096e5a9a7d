"""A trainer's state, kept in memory to go back to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from paperbench.training.trainer import Trainer


class Snapshot:
    """The state of a trainer at some moment, on the trainer's device.

    Taking it again reuses its memory, and on a GPU copies all tensors of a kind in one go.

    Attributes:
        iteration: Iterations done then.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._copies: list[Tensor] = []
        self.take(trainer)

    @torch.no_grad()
    def take(self, trainer: Trainer) -> None:
        """Keep the trainer's present state instead of the one before."""
        state = trainer.state_dict()
        live = list(_tensors(state))
        if [t.shape for t in live] != [t.shape for t in self._copies]:  # momentum appears with the first step
            self._copies = [t.detach().clone() for t in live]
        else:
            kinds: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for pair in zip(self._copies, live, strict=True):
                kinds[pair[1].device, pair[1].dtype].append(pair)
            for pairs in kinds.values():
                copies, originals = zip(*pairs, strict=True)
                torch._foreach_copy_(copies, originals)
        self._state: dict[str, Any] = _with_tensors(state, iter(self._copies))
        self.iteration = trainer.iteration

    def state(self) -> dict[str, Any]:
        """The kept state, to be loaded into the trainer."""
        return deepcopy(self._state)  # optimisers keep the tensors that they are given


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nest of containers with its tensors exchanged, in the order of `_tensors`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_tensors(item, tensors) for item in value]
    return value
