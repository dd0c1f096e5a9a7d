"""A trainer's state, kept in memory: to go back to, or to be written while the training goes on."""

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

    Taking it again reuses its memory, copies all tensors of a kind in one go, and waits for no device.

    Attributes:
        iteration: Iterations done then.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._copies: list[Tensor] = []
        is_on_gpu = trainer.device.type == "cuda"
        self._stream = torch.cuda.Stream(trainer.device) if is_on_gpu else None  # for copies to the host
        self._taken = torch.cuda.Event() if is_on_gpu else None
        self.take(trainer)

    @torch.no_grad()
    def take(self, trainer: Trainer) -> None:
        """Keep the trainer's present state instead of the one before."""
        state = trainer.state_dict()
        live = list(_tensors(state))
        if [t.shape for t in live] != [t.shape for t in self._copies]:
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
        if self._taken is not None:
            self._taken.record(torch.cuda.current_stream(trainer.device))

    def state(self) -> dict[str, Any]:
        """The kept state, to be loaded into the trainer."""
        return deepcopy(self._state)  # whoever loads it may keep the tensors

    @torch.no_grad()
    def on_host(self) -> dict[str, Any]:
        """The kept state in the machine's memory. Waits until it is there, but for no step made after it was taken.

        Another thread may call this. The snapshot must not be taken again while it is at work, nor while what it
        returned is in use: what is on the CPU anyway is not copied.
        """
        if self._stream is None or self._taken is None:
            return self._state
        self._stream.wait_event(self._taken)
        with torch.cuda.stream(self._stream):  # each copy waits for this stream alone
            hosted: dict[str, Any] = _with_tensors(self._state, (tensor.cpu() for tensor in self._copies))
            return hosted


def is_finite(state: Any) -> bool:
    """Whether all numbers in a nest of containers of tensors are. Waits for their device."""
    return all(bool(t.isfinite().all()) for t in _tensors(state) if t.is_floating_point())


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
