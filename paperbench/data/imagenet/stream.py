"""Batches of crops made by threads, ahead of the training that consumes them."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Self

import torch
from torch import Tensor

from paperbench.data.imagenet.batches import BatchPlan, Crops, CropSource

_STARVED = 0.05
"""Share of the time that a training may wait for images before that is reported."""
_KEPT_BYTES = 2**25
"""Size up to which blocks are kept: more than a thread needs for a photograph of usual size."""
_TRIMMED_BYTES = 2**30
"""Freed memory above which the process gives some back. Below about that, each step of ResNet-50 on a CPU would get its
gradients as new pages from the system, which takes a sixth of a step on small crops."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""


@dataclass(frozen=True)
class StreamReport:
    """How well a stream kept up with its consumer.

    Attributes:
        batches: Batches handed over.
        seconds: Time that passed.
        waited: Seconds of it in which the consumer waited for a batch.
        worked: Seconds of processor time that the threads spent on crops.
        threads: Number of threads.
    """

    batches: int
    seconds: float
    waited: float
    worked: float
    threads: int

    def advice(self) -> str | None:
        """Return what would feed a consumer that waits; None if it hardly does."""
        if self.waited <= _STARVED * self.seconds:
            return None
        cores = math.ceil(self.worked / max(self.seconds - self.waited, 1e-9))
        complaint = f"The images come too slowly: training waits {self.waited / self.seconds:.0%} of the time."
        if cores > self.threads:
            return f"{complaint} It would take {cores:,} cores instead of {self.threads}."
        return f"{complaint} Their {self.threads} threads wait themselves: for the disk, or for other programs."


@dataclass
class _Batch:
    """A batch in the making.

    Attributes:
        pixels: (N, crop, crop, 3), the beginning of the buffer.
        missing: Number of crops that are not made yet.
        errors: By row.
        done: Gets an entry when no crop is missing.
    """

    plan: BatchPlan
    buffer: Tensor
    pixels: Tensor
    missing: int
    errors: dict[int, BaseException] = field(default_factory=dict)
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)


class CropStream:
    """Iterates over the batches of a source: those of `CropSource.crops`, whatever the number of threads.

    A batch is valid until the next one is asked for: then its pixels are overwritten. Whoever copies them to a device
    without waiting must wait for the copy before asking.

    An error is raised where the batch with the image is due, and ends the stream, as an interruption does. The stream
    ends its threads after the last batch; when it is closed, each after its current image; or else when Python exits.
    Use it in a `with` statement. Only the consumer may close it: else it might wait for ever for a batch.

    Args:
        source: Where the images are from. Its batches end with the first that has no images.
        start: Number of the first batch.
        threads: If 0, the consumer makes the crops.
        ahead: Number of batches that are made while the consumer has another.
        pinned: Whether the pixels are in page-locked memory, from which a GPU copies without the processor.
    """

    def __init__(
        self, source: CropSource, *, start: int = 0, threads: int, ahead: int = 2, pinned: bool = False
    ) -> None:
        self._source, self._next = source, start
        shape = source.batch_size, source.crop, source.crop, 3
        buffers = 1 + (ahead if threads else 0)
        self._free = [torch.empty(shape, dtype=torch.uint8, pin_memory=pinned) for _ in range(buffers)]
        self._held: list[Tensor] = []
        self._pending: deque[_Batch] = deque()
        self._tasks: SimpleQueue[tuple[_Batch, int] | None] = SimpleQueue()
        self._is_closed = False
        self._lock = Lock()  # taken by threads only: a signal could interrupt the consumer before it is released
        self._batches, self._waited, self._worked = 0, 0.0, 0.0
        self._reported = 0, time.perf_counter(), 0.0, 0.0
        # Python's exit waits for threads that are no daemons before it calls `close`, and then for ever.
        self._threads = [Thread(target=self._work, name=f"crops {n + 1}", daemon=True) for n in range(threads)]
        atexit.register(self.close)
        _keep_freed_memory()
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Crops:
        try:
            return self._hand_over()
        except BaseException:  # the end, an error, or an interruption, after which a batch would be left out
            self.close()
            raise

    def _hand_over(self) -> Crops:
        self._free += self._held
        self._held = []
        if not self._is_closed:
            self._plan_batches()
        if not self._pending:
            raise StopIteration
        began = time.perf_counter()
        if not self._threads:
            self._tasks.put(None)
            self._work()
        batch = self._pending.popleft()
        batch.done.get()
        self._held = [batch.buffer]
        if batch.errors:
            raise batch.errors[min(batch.errors)]
        self._batches += 1
        self._waited += time.perf_counter() - began
        return self._source.assemble(batch.plan, batch.pixels)

    def close(self) -> None:
        """End the threads. Further batches are not made."""
        self._is_closed = True
        atexit.unregister(self.close)
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._pending.clear()
        self._free.clear()

    def report(self) -> StreamReport:
        """Return how well the stream kept up since the last report, or since it was created."""
        before, self._reported = self._reported, (self._batches, time.perf_counter(), self._waited, self._worked)
        batches, seconds, waited, worked = (now - then for now, then in zip(self._reported, before, strict=True))
        return StreamReport(int(batches), seconds, waited, worked, len(self._threads))

    def _plan_batches(self) -> None:
        """Order the crops of as many batches as there are free buffers."""
        while self._free and len((plan := self._source.plan(self._next)).images):
            buffer = self._free.pop()
            batch = _Batch(plan, buffer, buffer[: len(plan.images)], len(plan.images))
            self._pending.append(batch)
            for row in range(batch.missing):
                self._tasks.put((batch, row))
            self._next += 1

    def _work(self) -> None:
        """Make the crops that are ordered, until the stream is closed."""
        while (task := self._tasks.get()) and not self._is_closed:
            batch, row = task
            began = time.thread_time()
            try:
                self._source.render(batch.plan, row, batch.pixels[row].numpy())
            except BaseException as error:  # which the consumer raises, or it would wait for ever
                batch.errors[row] = error
            with self._lock:
                self._worked += time.thread_time() - began
                batch.missing -= 1
                is_last = not batch.missing
            if is_last:
                batch.done.put(None)


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_freed_memory() -> None:
    """Let threads keep freed memory; else nearly every image gets new pages from the system, which doubles its time."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):  # which musl lacks
        mallopt(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
