"""The whole training step as one CUDA graph.

Launching its thousands of small kernels one by one takes a CPU longer than a GPU needs to run them. A graph is captured
once and launched as a whole; which images are whose turn, the learning rate and the sums of the metrics are on the
device, so that nothing but the launch is left to the host.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paperbench.data.loader import BatchIndices, TrainingBatches
from paperbench.errors import PaperbenchError

Work = Callable[[], None]
"""Operations on tensors that exist already."""


class CudaCapture:
    """Makes replays of some work, by CUDA graphs.

    Args:
        device: The GPU.
    """

    WARM_UPS = 3

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # one for both, as libraries keep their workspaces by stream

    def warm_up(self, work: Work) -> None:
        """Do the work some times, so that libraries choose their algorithms and allocate what they keep."""
        before = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            for _ in range(self.WARM_UPS):
                work()
        before.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """What does the same work again, on the same memory. Recording itself changes no tensor."""
        gc.collect()  # nothing that an earlier training left in cycles may be freed while it records
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, stream=self._stream):
            work()
        replay: Work = graph.replay
        return replay


class GraphEngine:
    """Replays the step. It is captured by the first call, which takes as long as some steps one by one.

    Args:
        step: What to do.
        batches: Says which images are whose turn.
        iterations: How many there are in a training.
        state: All tensors that a step changes.
        capture: How it is captured.
    """

    def __init__(
        self,
        step: Callable[[BatchIndices], None],
        batches: TrainingBatches,
        iterations: int,
        state: Sequence[Tensor],
        capture: CudaCapture,
    ) -> None:
        self._step, self._state, self._capture = step, state, capture
        self._iterations = iterations
        self._schedule = batches.schedule(iterations)
        self._position = torch.zeros(1, dtype=torch.int64, device=batches.device)
        self._next = 0  # where the position stands
        self._replay: Work | None = None

    def step(self, iteration: int) -> None:
        if iteration >= self._iterations:
            raise PaperbenchError(f"There is no iteration {iteration}: the training has {self._iterations}.")
        if self._replay is None:
            self._replay = self._captured()
        if iteration != self._next:
            self._position.fill_(iteration)
        self._replay()
        self._next = iteration + 1

    def _work(self) -> None:
        order, variant = (table.index_select(0, self._position)[0].long() for table in self._schedule)
        self._step(BatchIndices(order, variant))
        self._position += 1

    def _rehearsal(self) -> None:
        """Always of the first iteration: however short a training is, it has one."""
        self._position.zero_()
        self._work()

    def _captured(self) -> Work:
        """A replay of the step. The steps that it takes to get there are undone."""
        tensors = [*self._state, self._position]
        before = [t.detach().clone() for t in tensors]
        with torch.random.fork_rng([self._position.device] if self._position.is_cuda else []):
            self._capture.warm_up(self._rehearsal)
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        return self._capture.record(self._work)
