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
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.training.engine import EngineError
from paperbench.training.memory import is_out_of_memory

Work = Callable[[], None]
"""Operations on existing tensors."""

_BROKEN_CAPTURE = ("previous error during capture", "invalidated")
"""Parts of the messages of errors that do not say what broke a capture."""


class CudaCapture:
    """Captures work as a CUDA graph."""

    WARM_UPS = 3

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # The same for warm-up and capture: libraries keep workspaces per stream.
        self._stream = torch.cuda.Stream(device)

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
        generator = torch.cuda.default_generators[self._stream.device_index]
        random_state = generator.clone_state()
        # After a failed capture, torch 2.11 leaves its stream current and the random generator in the capture.
        with torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream(self._device)):
            try:
                with torch.cuda.graph(graph, stream=self._stream):
                    work()
            except BaseException:
                generator.graphsafe_set_state(random_state)
                raise
        replay: Work = graph.replay
        return replay


class GraphEngine:
    """Replays a captured step. The first call captures it, which takes as long as a few eager steps.

    Args:
        step: The step, called with the indices of its images.
        batches: Chooses the images of each iteration.
        iterations: Length of the training.
        state: All tensors that a step changes.
        clear_gradients: Frees the gradients that a step leaves behind.
    """

    def __init__(
        self,
        step: Callable[[BatchIndices], None],
        batches: TrainingBatches,
        iterations: int,
        state: Sequence[Tensor],
        clear_gradients: Callable[[], None],
        capture: CudaCapture,
    ) -> None:
        self._step, self._state, self._clear_gradients, self._capture = step, state, clear_gradients, capture
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
        """The work of the warm-up. It stays at the first iteration, as even the shortest training has one."""
        self._work()
        self._position.zero_()

    def _capture_step(self) -> Work:
        """Capture the step and return its replay. Nothing is trained, whether or not that succeeds.

        Raises:
            torch.OutOfMemoryError: The GPU has too little memory.
            EngineError: The step does not run, or cannot be captured.
        """
        tensors = [*self._state, self._position]
        before = [t.detach().clone() for t in tensors]
        try:
            with torch.random.fork_rng([self._position.device] if self._position.is_cuda else []):
                self._capture.warm_up(self._first_iteration)
                self._clear_gradients()  # the graph has memory of its own
                return self._capture.record(self._work)
        except RuntimeError as error:
            raise _clear_error(error) from error
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=True):
                    tensor.copy_(value)


def _clear_error(error: RuntimeError) -> Exception:
    """Return the error to raise for a failed warm-up or capture.

    What breaks a capture is often in the context of the error that ends it. If nothing is, it was the allocator: older
    versions of torch report memory that runs out during a capture as a broken capture.
    """
    chain: list[BaseException] = [error]
    while (context := chain[-1].__context__) is not None:
        chain.append(context)
    causes = [one for one in chain if not any(message in str(one) for message in _BROKEN_CAPTURE)]
    memory = next(filter(is_out_of_memory, chain), None)
    if memory or not causes:
        return torch.OutOfMemoryError(str(memory or error))
    return EngineError(f"The training step cannot be captured as a CUDA graph ({summarize_error(causes[0])})")
