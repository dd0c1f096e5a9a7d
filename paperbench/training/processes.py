"""Processes that train one run together, bit for bit as a single process would.

Each process makes and trains on some batch-norm groups of every batch. Everything that would depend on their number is
done in the order of the groups instead: gradients are added in the binary tree of `training.tree_sum`, and statistics
and losses are gathered before they are added up. Collectives only move numbers; none of them adds.

All run the same session; only process 0 has the results directory and the screen, and chooses the runs. Before
anything that depends on all of them, all agree that each has succeeded, so an error or a signal in one of them is an
error or a signal in all.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from paperbench.catalogue import AnyNet
from paperbench.data.share import Share
from paperbench.errors import (
    DataError,
    EngineError,
    Interrupted,
    PaperbenchError,
    RunError,
    count,
    one_line,
    summarize_error,
)
from paperbench.launch import Launch
from paperbench.models.building import draws_noise
from paperbench.specs.recipe import Recipe
from paperbench.training.memory import is_out_of_memory
from paperbench.training.tree_sum import TreeSum

Result = TypeVar("Result")
Part = TypeVar("Part")
SomeError = TypeVar("SomeError", bound=Exception)

SILENCE_SECONDS = 60.0
"""A run ends within this time after a process of it stops to give signs of life."""
BEAT_SECONDS = 2.0
JOIN = timedelta(minutes=5)
"""How long a process waits for the others to start."""
ANSWER_SECONDS = 10.0
"""How long process 0 may take to answer at its port."""
WAIT = timedelta(hours=1)
"""How long a process waits for another one that is alive but busy, such as with a mean image."""
_FOREVER = timedelta(days=365)
_ALIGNMENT = 4
"""Gradients start at multiples of so many values, or kernels would read them one by one."""

_ERRORS: tuple[type[Exception], ...] = (
    *(Interrupted, torch.OutOfMemoryError, DataError, EngineError, RunError, PaperbenchError, OSError, RuntimeError),
)
"""Errors that processes tell each other, the most specific first."""
_AGREED = "_is_agreed"
"""Attribute of the errors that all processes have."""


class ProcessLostError(PaperbenchError):
    """Another process of the run has ended, or does not answer."""


class _Stoppable(Protocol):
    signal: int | None


class Processes:
    """All processes of a run, seen from one of them. Without arguments: a process that trains alone.

    Attributes:
        share: This process's part of every batch.
        limits: Shares its signal with those of the other processes.
    """

    def __init__(
        self, launch: Launch | None = None, device: torch.device | None = None, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self.rank, self.count = (launch.rank, launch.count) if launch else (0, 1)
        self.share = Share(self.rank, self.count)
        self.limits: _Stoppable | None = None
        self._lost: str | None = None
        self._silence = dict.fromkeys(range(self.count), 0.0)
        self._has_ended = threading.Event()
        if launch and device:
            self._join(launch, device, answer_seconds)

    def _join(self, launch: Launch, device: torch.device, answer_seconds: float) -> None:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        has_server = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        what = f"{launch.address}:{launch.port} is not process 0. Set MASTER_PORT to a free port"
        deadline = threading.Timer(answer_seconds, self._die, [what])
        deadline.daemon = True
        try:
            if launch.rank and not has_server:
                _wait_for_listener(launch)
                deadline.start()  # torch may wait for an answer for ever
            own = TCPStore(launch.address, launch.port, is_master=not (launch.rank or has_server), timeout=JOIN)
            if not launch.rank:
                own.set(launch.name, "")
            own.wait([launch.name], JOIN)
            deadline.cancel()
            dist.init_process_group(backend, store=own, rank=launch.rank, world_size=launch.count, timeout=JOIN)
            store = TCPStore(launch.address, launch.port, is_master=False)
            beat = threading.Thread(target=self._beat, args=(store,), daemon=True)
            self._threads = [beat, threading.Thread(target=self._watch, daemon=True)]
            for thread in self._threads:  # before what may wait for a lost process for as long as it says
                thread.start()
            self._hosts: Any = dist.new_group(backend="gloo", timeout=WAIT)
            self._patient: Any = dist.new_group(backend="gloo", timeout=_FOREVER)
        except (RuntimeError, ValueError) as error:
            deadline.cancel()
            self._has_ended.set()
            raise PaperbenchError(
                f"Process {launch.rank} of {launch.count} cannot reach the others at {launch.address}:{launch.port} "
                f"({one_line(str(error))[:300]}). Check the host name and the firewall, or set MASTER_ADDR and "
                "MASTER_PORT."
            ) from error

    # Agreement

    def first_text(self, text: str = "") -> str:
        """Return the first text of a process that is not empty, in all; "" if all are. Waits as long as it takes."""
        return text if self.count == 1 else next(filter(None, self._texts(text, self._patient)), "")

    def _texts(self, own: str, group: Any) -> list[str]:
        """Return the texts of all processes."""
        found = [""] * self.count
        with self._reporting_lost():
            dist.all_gather_object(found, own, group=group)
        return found

    def any_of(self, *flags: bool) -> list[bool]:
        """Return which flags are set in any process. A signal to one becomes a signal to all."""
        if self.count == 1:
            return list(flags)
        numbers = torch.tensor([(self.limits and self.limits.signal) or 0, *flags])
        with self._reporting_lost():
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._hosts)
        signal, *found = numbers.tolist()
        if signal and self.limits and not self.limits.signal:
            self.limits.signal = signal
        return [bool(flag) for flag in found]

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Inside the context, all do the same. After an error of only some, nothing can be exchanged any more."""
        try:
            yield
        except BaseException as error:
            if self.all_have(error):
                raise
            self._leave(error)
            if isinstance(error, RunError) or is_out_of_memory(error):  # whose handlers would go on
                raise ProcessLostError(self._lost) from error
            raise

    def _leave(self, error: BaseException) -> None:
        """Note that this process does not follow the others any further."""
        if self.count > 1 and not self._lost:
            self._lost = f"Process {self.rank} has left the others ({summarize_error(error)}). {_RESUME}"

    def end(self, status: int | None = None) -> None:
        """Part from the other processes, without waiting for lost ones. Nothing can be exchanged afterwards.

        Args:
            status: As process 0, the exit status for all, which the others receive as a text; None if they do not.
        """
        if self.count > 1 and not self._has_ended.is_set():
            try:
                with suppress(ProcessLostError):  # reported already
                    if status is not None:
                        self.first_text(str(status))
            finally:
                self._has_ended.set()
                for thread in self._threads:  # Python's exit would abort in one that is in the store
                    thread.join(2 * BEAT_SECONDS)
                if not self._lost:
                    dist.destroy_process_group()

    def agreed(self, work: Callable[[], Result]) -> Result:
        """Return the result of some work, once every process has succeeded in its own.

        Raises:
            An error of the kind that the first failing process raises: this one's own, or one that names that process.
        """
        if self.count == 1:
            return work()
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        except BaseException as caught:
            self._leave(caught)
            raise
        codes = self.numbers(_error_code(error))
        first = next((rank for rank, code in enumerate(codes) if code), None)
        if first is None:
            return result  # type: ignore[return-value]
        raise self._agreed_error(error, codes, first)

    def lead(self, work: Callable[[], Result]) -> Result | None:
        """Let process 0 do some work with files. Return its result there, and None in the others, once it succeeded.

        Raises:
            As `agreed` does.
        """
        return self.agreed(lambda: None if self.rank else work())

    def all_have(self, error: BaseException) -> bool:
        """Whether all processes have raised this error, or one of its kind."""
        return self.count == 1 or hasattr(error, _AGREED)

    def _agreed_error(self, error: Exception | None, codes: list[int], first: int) -> Exception:
        """Return the error to raise in this process: its own, if it is of the kind of the first process's.

        All must raise the same kind: where one tries again with less memory, none may give up.
        """
        own = error.reason if isinstance(error, EngineError) else str(error)
        if isinstance(error, Interrupted):
            own = str((self.limits and self.limits.signal) or "")
        text = self._texts(own, self._hosts)[first]
        kind = _ERRORS[codes[first] - 1]
        if kind is Interrupted and text and self.limits and not self.limits.signal:
            self.limits.signal = int(text)
        if codes[self.rank] != codes[first] or not isinstance(error, kind):
            error, cause = kind(f"Process {first}: {text}"), error
            error.__cause__ = cause
        return common(error)

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of all processes."""
        if self.count == 1:
            return [number]
        numbers = torch.zeros(self.count, dtype=torch.int64)
        with self._reporting_lost():
            dist.all_gather_into_tensor(numbers, torch.tensor([number]), group=self._hosts)
        found: list[int] = numbers.tolist()
        return found

    def compare(self, tensors: Iterable[Tensor]) -> None:
        """Check that all processes hold the same values, bit for bit."""
        if self.count == 1:
            return
        values = torch.stack([t.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64) for t in tensors])
        sums = self.numbers(int.from_bytes(sha256(values.cpu().numpy().tobytes()).digest()[:7]))
        if len(set(sums)) > 1:
            raise common(
                RunError(
                    "The processes hold different parameters, although all made the same updates: a driver or GPU is "
                    "faulty, or CPUs differ. Nothing was saved; the same command resumes from the last checkpoint."
                )
            )

    # Numbers

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors, all of one dtype, with those of process 0."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        with self._reporting_lost(), torch.no_grad():
            dist.broadcast(flat, 0)
            for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(values.view(tensor.shape))

    def gathered(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, (k, n) each, in their order: (count * k, n)."""
        if self.count == 1:
            return rows
        found = rows.new_empty(self.count * len(rows), rows.shape[1])
        with self._reporting_lost():
            dist.all_gather_into_tensor(found, rows)
        return found

    def add_rows(self, parts: Iterable[Part], work: Callable[[Part], Tensor], total: Tensor) -> int:
        """Add what the work makes of the parts of all processes, row by row in the order of the parts.

        Args:
            parts: This process's: numbers rank, rank + count, rank + 2 count and so on.
            work: Makes rows (k, n) of a part. May raise to abort, in all processes.
            total: What the rows are added to, (n,). They are converted to its dtype.

        Returns:
            The number of rows.
        """
        own = iter(parts)

        def next_rows() -> Tensor:
            part = next(own, None)
            return total.new_empty(0, len(total)) if part is None else work(part).to(total.dtype)

        rows = 0
        while True:
            mine = self.agreed(next_rows)
            numbers = self.numbers(len(mine))
            if not any(numbers):
                return rows
            by_process = self.gathered(F.pad(mine, (0, 0, 0, max(numbers) - len(mine)))).split(max(numbers))
            for theirs, number in zip(by_process, numbers, strict=True):
                for row in theirs[:number]:
                    total += row
            rows += sum(numbers)

    def reserve(self, like: Sequence[Tensor]) -> None:
        """Allocate the memory of `summed`, whose tensors will have these shapes and strides.

        Args:
            like: Float tensors of one dtype, dense in any layout.
        """
        if self.count == 1:
            return
        sizes = [-(-t.numel() // _ALIGNMENT) * _ALIGNMENT for t in like]
        per_process = -(-sum(sizes) // (self.count * _ALIGNMENT)) * _ALIGNMENT
        self._sent, self._received = like[0].new_zeros(2, self.count, per_process)
        flat, starts = self._sent.view(-1), accumulate(sizes[:-1], initial=0)
        self._views = [flat.as_strided(t.shape, t.stride(), s) for t, s in zip(like, starts, strict=True)]

    @torch.no_grad()
    def summed(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the sum of the processes' lists of tensors, in the order of the tree; the next call overwrites it.

        Each process adds a part of all values, in the order of the tree, and then all get all sums.
        """
        if self.count == 1:
            return tensors
        with self._reporting_lost():
            torch._foreach_copy_(self._views, tensors)
            dist.all_to_all_single(self._received, self._sent)
            sums = TreeSum()
            for part in self._received:
                sums.add([part])
            dist.all_gather_into_tensor(self._sent.view(-1), sums.total()[0])
        return self._views

    # Lost processes

    @contextmanager
    def _reporting_lost(self) -> Iterator[None]:
        """Turn torch's errors about unreachable processes into ours, after which no process is waited for again."""
        if self._lost:
            raise ProcessLostError(self._lost)
        try:
            yield
        except RuntimeError as error:
            reason = one_line(str(error).partition("\n")[0])[:300]
            what = "The memory ran out between processes" if is_out_of_memory(error) else "Another process has ended"
            self._lost = f"{what} ({reason}). {_RESUME}"
            raise ProcessLostError(self._lost) from error

    def _beat(self, store: TCPStore) -> None:
        """Give signs of life, and note those of the others."""
        counts: dict[int, int] = {}
        while not self._has_ended.wait(BEAT_SECONDS):
            try:
                for rank in self._silence:
                    number = store.add(f"paperbench/{rank}", int(rank == self.rank))
                    if counts.get(rank) != number:
                        counts[rank], self._silence[rank] = number, 0.0
            except RuntimeError:
                if not self._has_ended.wait(BEAT_SECONDS):
                    self._die("process 0 or the launcher has ended")
                return

    def _watch(self) -> None:
        """End this process if another one is silent: it may wait for that one in a library that no exception reaches.

        Counts the time in which this process runs, so that all can be suspended together. In a thread of its own, as a
        call of `_beat` may wait for a process 0 that is suspended.
        """
        while not self._has_ended.wait(1):
            for rank in self._silence:
                self._silence[rank] += 1
            if max(self._silence.values()) > SILENCE_SECONDS - 2 * BEAT_SECONDS:
                silent = [rank for rank, seconds in self._silence.items() if seconds == max(self._silence.values())]
                who = "process 0 or the launcher" if self.rank in silent else f"process {silent[0]}"
                self._die(f"{who} has not answered for about {SILENCE_SECONDS:.0f} seconds")

    def _die(self, why: str) -> None:
        if not self._has_ended.is_set():
            os.write(2, f"paperbench: error: process {self.rank} ends: {why}. {_RESUME}\n".encode())
            os._exit(1)


def _wait_for_listener(launch: Launch) -> None:
    """Wait until something accepts a connection and keeps it. Torch, if refused or cut off, asks ever less often."""
    end = time.monotonic() + JOIN.total_seconds()
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((launch.address, launch.port)) as one:
            if not select.select([one], [], [], 1)[0] or one.recv(1):
                return
        time.sleep(1)
    raise RuntimeError("nothing answers")


_RESUME = "The last checkpoint is kept; the same command resumes from it."


def together(launch: Launch, device: torch.device, work: Callable[[Processes], int]) -> int:
    """Do the work of a command with other processes; return its exit status. What all find wrong, process 0 tells."""
    processes = Processes(launch, device)
    try:
        status = work(processes)
    except Exception as error:
        if launch.rank == 0:
            atexit.register(processes.end, 2)  # a launcher stops all when one ends, so this one tells the error first
            raise
        if not processes.all_have(error):
            processes.end()
            raise
        status = 2
        with suppress(ProcessLostError):
            status = int(processes.first_text())
    except BaseException:
        processes.end()
        raise
    processes.end(None if launch.rank else status)
    return status


def refusal(number: int, net: AnyNet, recipe: Recipe, images: int) -> str | None:
    """Return why this number of processes cannot train a run, on so many images, bit for bit as one; None if it can."""
    if number == 1:
        return None
    if draws_noise(net):
        return (
            "Noise, such as dropout's, is drawn for one batch-norm group after the other, so it takes a single "
            "process. Choose the other rows with `--cells`, and train this one apart."
        )
    groups = recipe.groups
    legal = [n for n in range(1, groups + 1) if groups % n == 0 and (n == 1 or (groups // n).bit_count() == 1)]
    if recipe.epoch_end and 0 < images % recipe.batch_size < groups:
        return f"The last batch of an epoch has only {images % recipe.batch_size} images. Use a single process."
    if number in legal:
        return None
    *others, most = map(str, legal)
    return (
        f"{number} processes cannot share its batches: they have {count(groups, 'batch-norm group')} of "
        f"{recipe.batch_norm.group} images. Use {', '.join(others)}{' or ' * bool(others)}{most}."
    )


def common(error: SomeError) -> SomeError:
    """Mark an error to which all processes come alike, without an exchange."""
    setattr(error, _AGREED, True)
    return error


def _error_code(error: Exception | None) -> int:
    """Return 1 + the index of the kind of an error; 0 without one."""
    if error is None:
        return 0
    if is_out_of_memory(error):
        return 1 + _ERRORS.index(torch.OutOfMemoryError)
    kinds = (index for index, kind in enumerate(_ERRORS, start=1) if isinstance(error, kind))
    return next(kinds, len(_ERRORS))


ALONE = Processes()
"""A process that trains alone."""
