"""The graph engine: a whole training step captured as one CUDA graph.

The CPU takes longer to launch the thousands of small kernels of a step than the GPU to run them. A graph is captured
once and launched as a whole. The learning rate and the sums of the metrics are on the device, and so is the schedule of
small images. Then the host does nothing but launch; photographs it copies to the device before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from paperbench.data.feed import Feed
from paperbench.data.loader import Choices
from paperbench.data.share import Share
from paperbench.errors import EngineError, PaperbenchError, summarize_error
from paperbench.specs.recipe import Recipe
from paperbench.training.engine import EagerEngine, Parts
from paperbench.training.memory import is_out_of_memory
from paperbench.training.step import TrainingStep, in_turn
from paperbench.training.working_copy import WorkingCopy

Result = TypeVar("Result")
Work = Callable[[], object]
"""Operations on existing tensors."""

_BROKEN_CAPTURE = ("previous error during capture", "invalidated")
"""Parts of the messages of errors that do not say what broke a capture."""


@cache
def _stream_beside(current: torch.cuda.Stream, number: int) -> torch.cuda.Stream:  # noqa: ARG001  (of the cache)
    """Return the stream of all warm-ups and captures by those who compute on the current stream, or of their branches.

    cuBLAS keeps 32 MiB per stream and thread, for good. All graphs captured on a stream compute in the same 32 MiB, so
    only those of different current streams may be replayed at the same time.
    """
    return torch.cuda.Stream(current.device)


class CudaCapture:
    """Captures work as a CUDA graph."""

    WARM_UPS = 3

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, work: Work) -> None:
        """Run the work a few times, so that libraries choose algorithms and allocate workspaces."""
        self.side_by_side([lambda: [work() for _ in range(self.WARM_UPS)]])

    def record(self, work: Work) -> Work:
        """Capture the work and return its replay, on the same memory. Capturing changes no tensor."""
        gc.collect()  # reference cycles of earlier trainings must not be freed during the capture
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        generator = torch.cuda.default_generators[before.device_index]
        random_state = generator.clone_state()
        # After a failed capture, torch 2.11 leaves its stream current and the random generator in the capture.
        with torch.cuda.device(self._device), torch.cuda.stream(before):
            try:
                # "global" would let any CUDA call of another thread, such as one that pins memory, break the capture
                with torch.cuda.graph(graph, stream=_stream_beside(before, 0), capture_error_mode="thread_local"):
                    work()
            except BaseException:
                generator.graphsafe_set_state(random_state)
                raise
        replay: Work = graph.replay
        return replay

    def side_by_side(self, calls: Iterable[Callable[[], Result]]) -> list[Result]:
        """Do the calls on a stream each, beside the current one, which goes on when all are done; return their results.

        No call may write what another uses. The allocator gives memory freed on a stream to that stream only, so no
        call gets another's. What the current stream allocated for the calls must stay alive until this returns.
        """
        before = torch.cuda.current_stream(self._device)
        results, streams = [], []
        try:
            for number, call in enumerate(calls):
                streams.append(_stream_beside(before, number))
                streams[-1].wait_stream(before)
                with torch.cuda.stream(streams[-1]):
                    results.append(call())
        finally:  # a capture with a stream that nobody waits for would hide the error
            for stream in streams:
                before.wait_stream(stream)
        return results


class _Schedule:
    """Inputs of a captured step: the choices of all iterations, on the device."""

    def __init__(self, schedule: Choices) -> None:
        self._schedule = schedule
        self._position = torch.zeros(1, dtype=torch.int64, device=schedule[0].device)
        self._next = 0  # value of the position on the device
        self.state = [self._position]

    def prepare(self, iteration: int) -> None:
        if iteration != self._next:
            self._position.fill_(iteration)
        self._next = iteration + 1

    def read(self) -> Choices:
        choices = tuple(table.index_select(0, self._position)[0].long() for table in self._schedule)
        self._position += 1
        return choices

    def rewind(self) -> None:
        """Go back to the first iteration, which even the shortest training has."""
        self._position.zero_()


class _Copies:
    """Inputs of a captured step: the choices of one iteration, copied to tensors that stay."""

    def __init__(self, feed: Feed, first: int) -> None:
        self._feed = feed
        self._choices = tuple(part.clone() for part in feed.choices(first))
        self.state: list[Tensor] = []

    def prepare(self, iteration: int) -> None:
        for ours, new in zip(self._choices, self._feed.choices(iteration), strict=True):
            ours.copy_(new)

    def read(self) -> Choices:
        return self._choices

    def rewind(self) -> None:
        pass


def why_not(device: torch.device) -> str | None:
    """Return why the engine does not work on a device; None if it does."""
    return None if device.type == "cuda" else "CUDA graphs need an NVIDIA GPU"


def groups_at_once(recipe: Recipe, share: Share) -> int:
    """Return how many of a process's batch-norm groups run side by side: all of small images.

    Those of photographs fill a GPU one by one, and its memory at once.
    """
    return 1 if recipe.photographs else len(share.group_sizes(recipe, recipe.batch_size))


class GraphEngine:
    """Replays a captured step. The first call captures it, which takes as long as a few eager steps.

    A batch that ends an epoch early, for which the captured step was not made, is left to the eager engine. If several
    processes share the run, the update is not captured, because all must agree before.
    """

    def __init__(self, parts: Parts) -> None:
        self._eager = EagerEngine(parts)
        self._parts, self._processes = parts, parts.processes
        self._iterations, self._feed = parts.recipe.iterations, parts.feed
        self._capture = parts.capture(parts.feed.device)
        first = WorkingCopy(parts.model, bf16_weights=parts.precision == "bf16")
        workings = [first, *(first.twin() for _ in range(1, groups_at_once(parts.recipe, parts.processes.share)))]
        self._step = TrainingStep(parts, workings, self._capture.side_by_side if len(workings) > 1 else in_turn)
        schedule = parts.feed.schedule(self._iterations)
        self._inputs: _Schedule | _Copies | None = None if schedule is None else _Schedule(schedule)
        self._replay: Work | None = None

    def step(self, iteration: int) -> None:
        if iteration >= self._iterations:
            raise PaperbenchError(f"Iteration {iteration} does not exist: the training has {self._iterations}.")
        if self._parts.batch_size(iteration) < self._parts.recipe.batch_size:
            self._eager.step(iteration)
            return
        self._processes.agreed(lambda: self._run(iteration))
        if self._processes.count > 1:
            self._step.update()

    def _run(self, iteration: int) -> None:
        self._inputs = self._inputs or _Copies(self._feed, iteration)
        if self._replay is None:
            self._replay = self._capture_step(self._inputs)
        self._inputs.prepare(iteration)
        self._replay()

    def _capture_step(self, inputs: _Schedule | _Copies) -> Work:
        """Capture the step and return its replay. Nothing is trained, whether or not that succeeds.

        Raises:
            torch.OutOfMemoryError: The GPU has too little memory.
        """

        def work() -> None:
            self._step.compute(inputs.read())
            if self._processes.count == 1:
                self._step.update()

        def warm_up() -> None:
            work()
            inputs.rewind()

        net, device = self._parts.model, self._feed.device
        state = net.parameters(), net.buffers(), self._parts.optimiser.momentum, self._parts.metrics.tensors()
        tensors = [*chain.from_iterable(state), *inputs.state]
        before = [t.detach().clone() for t in tensors]
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                self._capture.warm_up(warm_up)
                self._step.clear_gradients()  # the graph has memory of its own
                return self._capture.record(work)
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
