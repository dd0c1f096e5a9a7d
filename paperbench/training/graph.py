"""The graph engine: a whole training step captured as one CUDA graph.

The CPU takes longer to launch the thousands of small kernels of a step than the GPU to run them. A graph is captured
once and launched as a whole. The schedule of the images, the learning rate and the sums of the metrics are on the
device, so the host does nothing but launch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paperbench.data.loader import BatchIndices, TrainingBatches
from paperbench.errors import PaperbenchError

Work = Callable[[], None]
"""Operations on existing tensors."""


class CudaCapture:
    """Captures work as a CUDA graph."""

    WARM_UPS = 3

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(
            device
        )  # the same for warm-up and capture: libraries keep workspaces per stream

    def warm_up(self, work: Work) -> None:
        """Run the work a few times, so that libraries choose algorithms and allocate workspaces."""
        before = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            for _ in range(self.WARM_UPS):
                work()
        before.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """Capture the work and return its replay, on the same memory. Capturing changes no tensor."""
        gc.collect()  # reference cycles of earlier trainings must not be freed during the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, stream=self._stream):
            work()
        replay: Work = graph.replay
        return replay


class GraphEngine:
    """Replays a captured step. The first call captures it, which takes as long as a few eager steps.

    Args:
        step: The step, called with the indices of its images.
        batches: Chooses the images of each iteration.
        iterations: Length of the training.
        state: All tensors that a step changes.
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
        self._next = 0  # value of the position on the device
        self._replay: Work | None = None

    def step(self, iteration: int) -> None:
        if iteration >= self._iterations:
            raise PaperbenchError(f"Iteration {iteration} does not exist: the training has {self._iterations}.")
        if self._replay is None:
            self._replay = self._capture_step()
        if iteration != self._next:
            self._position.fill_(iteration)
        self._replay()
        self._next = iteration + 1

    def _work(self) -> None:
        order, variant = (table.index_select(0, self._position)[0].long() for table in self._schedule)
        self._step(BatchIndices(order, variant))
        self._position += 1

    def _first_iteration(self) -> None:
        """The work of the warm-up: even the shortest training has a first iteration."""
        self._position.zero_()
        self._work()

    def _capture_step(self) -> Work:
        """Capture the step and return its replay. The steps of the warm-up are undone."""
        tensors = [*self._state, self._position]
        before = [t.detach().clone() for t in tensors]
        with torch.random.fork_rng([self._position.device] if self._position.is_cuda else []):
            self._capture.warm_up(self._first_iteration)
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        return self._capture.record(self._work)
