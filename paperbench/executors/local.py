"""The executor "local": workers that each have GPUs of this machine, or share its CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock, RLock, Thread
from typing import IO, cast

from paperbench.errors import PaperbenchError, count
from paperbench.executors import Workers
from paperbench.launch import TIME_WAS_UP
from paperbench.runs.limits import Limits, stopping_on_signals
from paperbench.streams import Clock

RESTARTS = 3
"""How often a worker that crashes is restarted."""
_POLL_SECONDS = 0.1
USUAL = (0, 2, TIME_WAS_UP)
"""Exit statuses after which a worker is not restarted."""


class WorkerProcesses:
    """A copy of the command: the processes that train its runs together, each in a session without a terminal.

    Args:
        variables: For the environment.
        say: Called with each line that a process prints on stderr, from any thread.
        further: Arguments in addition to those of all workers.
    """

    def __init__(
        self, workers: Workers, variables: Mapping[str, str], say: Callable[[str], None], further: Sequence[str] = ()
    ) -> None:
        self._say = say
        launch: dict[str, str] = {}
        if workers.processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            launch = {"WORLD_SIZE": str(workers.processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self._processes: list[subprocess.Popen[str]] = []
        for rank in map(str, range(workers.processes)):
            of_rank = {**launch, "RANK": rank, "LOCAL_RANK": rank} if launch else {}
            process = subprocess.Popen(  # noqa: S603  (the user's own command)
                (sys.executable, "-m", "paperbench.executors", *workers.arguments, *further),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, **workers.imports, **variables, **of_rank},
                start_new_session=True,
            )
            self._processes.append(process)
        self._readers = [Thread(target=self._pass_on, args=[process], daemon=True) for process in self._processes]
        for reader in self._readers:
            reader.start()

    def send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)

    def wait(self, seconds_to_end: float = 150.0) -> int:
        """Wait for all processes; kill those that do not end soon after the first.

        Args:
            seconds_to_end: How long they may take: they notice its death within 60 seconds.

        Returns:
            The exit status: an unusual one if there is one, else that of process 0; -N if signal N killed it.
        """
        while all(process.poll() is None for process in self._processes):
            time.sleep(_POLL_SECONDS)
        end = time.monotonic() + seconds_to_end
        for process in self._processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        statuses = [process.wait() for process in self._processes]
        for reader in self._readers:
            reader.join(5)  # not for longer: a process that outlives the worker may hold the stream
        return next((status for status in statuses if status not in USUAL), statuses[0])

    def _pass_on(self, process: subprocess.Popen[str]) -> None:
        stdin, stderr = cast(IO[str], process.stdin), cast(IO[str], process.stderr)
        with stdin, stderr:
            for line in stderr:
                if line.strip():
                    self._say(line.rstrip("\n"))


def how_it_ended(status: int) -> str:
    """Put an unusual exit status into words."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def ids_of_gpus(number: int, visible: str | None) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES, which may be `visible` here, can call the GPUs that torch sees."""
    return [name.strip() for name in visible.split(",")][:number] if visible else [*map(str, range(number))]


def environments(workers: Workers, gpus: Sequence[str], processors: int) -> list[dict[str, str]]:
    """Return variables for the environment of each worker: its GPUs, or on a CPU the number of its threads."""
    size, all_processes = workers.gpus_per_run, workers.count * workers.processes
    if workers.count * size > len(gpus):
        of_several = f"{workers.count} workers need {workers.count * size} GPUs ({size} each)"
        needs = of_several if workers.count > 1 else f"A worker needs {count(size, 'GPU')}"
        raise PaperbenchError(
            f"{needs}, but torch sees {len(gpus) or 'none'} here. Lower --workers or --gpus-per-run, or check "
            "`nvidia-smi` and CUDA_VISIBLE_DEVICES."
        )
    shared = {"LOCAL_WORLD_SIZE": str(all_processes)}  # divides the threads that decode images
    if not size:
        threads = str(max(1, processors // all_processes))
        return [{**shared, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}] * workers.count
    parts = (gpus[size * index : size * (index + 1)] for index in range(workers.count))
    return [{**shared, "CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


def run(
    workers: Workers,
    variables: Sequence[Mapping[str, str]],
    limits: Limits,
    say: Callable[[str], None],
    clock: Clock = time.monotonic,
) -> list[int]:
    """Start the workers, pass signals on to them, and restart those that crash; return the last exit status of each.

    Args:
        variables: For the environment of each worker; see `environments`.
        limits: Gets the first signal.
        clock: Tells signals from repeated ones.
    """
    lock, printing = RLock(), Lock()
    running: dict[int, WorkerProcesses] = {}

    def forward(number: int) -> None:
        with lock:
            is_second = limits.signal is not None
            for worker in running.values():  # processes that train together ignore a second signal
                worker.send(signal.SIGKILL if is_second and workers.processes > 1 else number)
            limits.signal = limits.signal or number

    def keep_running(index: int) -> int:
        def say_for(line: str) -> None:
            with printing:
                say(f"{index}: {line}")

        status = 0
        further: tuple[str, ...] = ()
        for restarts_left in reversed(range(RESTARTS + 1)):
            with lock:
                if limits.signal:
                    return 128 + limits.signal
                running[index] = WorkerProcesses(workers, variables[index - 1], say_for, further)
            status = running[index].wait()
            if status in USUAL or limits.signal:
                break
            if limits.seconds_left <= 0:
                return TIME_WAS_UP
            if limits.max_seconds is not None:
                further = ("--max-seconds", str(limits.seconds_left))
            then = "Restarting it" if restarts_left else f"Not restarting it again, after {RESTARTS} restarts"
            say_for(f"paperbench: warning: the worker {how_it_ended(status)}. {then}.")
        return status

    with stopping_on_signals(limits, forward=forward, clock=clock), ThreadPoolExecutor(workers.count) as pool:
        ended = [pool.submit(keep_running, number) for number in range(1, workers.count + 1)]
        while wait(ended, timeout=1).not_done:
            pass  # a signal that another thread received is handled here, once this thread wakes up
        return [one.result() for one in ended]
