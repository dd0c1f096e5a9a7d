"""Batches of crops made by threads, ahead of the training that consumes them."""

from __future__ import annotations

import ctypes
import math
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from paperbench.data.imagenet.batches import BatchPlan, Crops, CropSource
from paperbench.data.imagenet.crew import Crew, Order
from paperbench.streams import Clock

AHEAD = 2
"""Number of batches that are made while the consumer has another."""
_STARVED = 0.05
"""Share of the time that a training may wait for images before that is reported."""
_LEAST_SECONDS = 60.0
"""Shorter times say little."""
_KEPT_BYTES = 2**25
"""Size up to which blocks are kept: more than a thread needs for a photograph of usual size."""
_TRIMMED_BYTES = 2**30
"""Freed memory above which the process gives some back. Below about that, each step of ResNet-50 on a CPU would get its
gradients as new pages from the system, which takes a sixth of a step on small crops."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""


class CropStream(Iterator[Crops], AbstractContextManager["CropStream"]):
    """Iterates over the batches of a source: the same, whatever the number of threads.

    A batch is valid until the next one is asked for: then its pixels are overwritten. Whoever copies them to a device
    without waiting must wait for the copy before asking.

    An error is raised where the batch with the image is due, and ends the stream, as an interruption does. The stream
    ends its threads after the last batch, or when it is closed, each after its current image. When nothing refers to it
    any more, or Python exits, it is closed. Only the consumer may do so: else it might wait for ever for a batch.

    Args:
        source: Where the images are from. Its batches end with the first that has no images.
        start, step: Number of the first batch, and the difference between numbers.
        threads: If 0, the consumer makes the crops.
        pinned: Whether the pixels are in page-locked memory, from which a GPU copies without the processor.
    """

    def __init__(
        self,
        source: CropSource,
        *,
        start: int = 0,
        step: int = 1,
        threads: int,
        pinned: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._source, self._next, self._step, self._clock = source, start, step, clock
        shape = source.batch_size, source.crop, source.crop, 3
        buffers = 1 + (AHEAD if threads else 0)
        self._free = [torch.empty(shape, dtype=torch.uint8, pin_memory=pinned) for _ in range(buffers)]
        self._held: list[Tensor] = []
        # Batches in the making: the buffer begins with the crops, made by the orders.
        self._pending = deque[tuple[BatchPlan, Tensor, list[Order[None]]]]()
        self._waited = 0.0
        self._reported = clock(), 0.0, 0.0
        _keep_freed_memory()
        self._crew = Crew(threads)
        self._dismiss = weakref.finalize(self, self._crew.dismiss)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Crops:
        try:
            return self._hand_over()
        except BaseException:  # the end, an error, or an interruption, after which a batch would be left out
            self.close()
            raise

    def _hand_over(self) -> Crops:
        self._free += self._held
        self._held = []
        if self._dismiss.alive:
            self._plan_batches()
        if not self._pending:
            raise StopIteration
        began = self._clock()
        if not self._crew.threads:
            self._crew.catch_up()
        plan, buffer, orders = self._pending.popleft()
        for order in orders:
            order.result()
        self._held = [buffer]
        self._waited += self._clock() - began
        return self._source.assemble(plan, buffer[: len(orders)])

    def close(self) -> None:
        """End the threads. Further batches are not made."""
        self._dismiss()
        self._pending.clear()
        self._free.clear()

    def advice(self) -> str | None:
        """Return what would feed a consumer that waits; None if it hardly does, or for less than a minute so far.

        Less than a minute is counted again at the next call: a fast training asks several times a minute.
        """
        now = self._clock(), self._waited, self._crew.worked
        seconds, waited, worked = (new - old for new, old in zip(now, self._reported, strict=True))
        if seconds < _LEAST_SECONDS:
            return None
        self._reported = now
        return advice(seconds, waited, worked, len(self._crew.threads))

    def _plan_batches(self) -> None:
        """Order the crops of as many batches as there are free buffers."""
        while self._free and len((plan := self._source.plan(self._next)).images):
            buffer = self._free.pop()
            places = enumerate(buffer[: len(plan.images)].numpy())
            orders = [self._crew.order(partial(self._source.render, plan, row, out)) for row, out in places]
            self._pending.append((plan, buffer, orders))
            self._next += self._step


def advice(seconds: float, waited: float, worked: float, threads: int) -> str | None:
    """Return what would feed a consumer that waited for so long, while threads worked for so long."""
    if waited <= _STARVED * seconds:
        return None
    cores = math.ceil(worked / max(seconds - waited, 1e-9))
    complaint = f"Data loading limits training, which waits for images {waited / seconds:.0%} of the time."
    if cores > threads:
        return f"{complaint} {cores:,} cores would keep up; {threads} are in use."
    return f"{complaint} Its {threads} threads wait themselves: for the disk, or for other programs."


def _keep_freed_memory() -> None:
    """Let threads keep freed memory; else nearly every image gets new pages from the system, which doubles its time."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):  # which musl lacks
        mallopt(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
