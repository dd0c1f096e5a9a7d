"""The executor "ray": workers that are tasks of a Ray cluster."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable

from paperbench.errors import PaperbenchError
from paperbench.executors import Workers
from paperbench.executors.local import RESTARTS, USUAL, WorkerProcesses, how_it_ended
from paperbench.launch import TIME_WAS_UP
from paperbench.runs.limits import Limits, stopping_on_signals

_POLL_SECONDS = 0.5


def run(workers: Workers, limits: Limits, say: Callable[[str], None]) -> list[int]:
    """Start a task for each worker, and stop them at the first signal, which `limits` gets. Ray restarts failed tasks.

    Returns:
        The exit status of each worker; 1 if it was given up.
    """
    for name in ("RAY_DEDUP_LOGS", "RAY_COLOR_PREFIX"):  # lines unchanged, without colours
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError as error:
        raise PaperbenchError("--executor ray needs Ray: `pip install 'paperbench-resnets[ray]'`.") from error
    ray.init(ignore_reinit_error=True)  # the cluster of $RAY_ADDRESS or of this machine, else one on this machine
    resources = {"num_gpus": workers.gpus_per_run, "num_cpus": 1, "max_retries": RESTARTS, "retry_exceptions": True}
    task = ray.remote(work).options(name="paperbench", **resources)
    statuses: list[int] = []
    with stopping_on_signals(limits, is_launched=True):
        end = time.time() + limits.seconds_left
        waiting = [task.remote(workers, number, end) for number in range(1, workers.count + 1)]
        is_stopping = False
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_POLL_SECONDS)
            for one in done:
                try:
                    statuses.append(ray.get(one))
                except ray.exceptions.RayError as error:
                    if not limits.signal:  # else it was stopped before it began
                        say(f"paperbench: error: a worker was given up: {error}")
                    statuses.append(1)
            if limits.signal and not is_stopping:
                is_stopping = True
                for one in waiting:
                    ray.cancel(one, force=False)
    return statuses


def work(workers: Workers, number: int, end: float) -> int:
    """Run a worker inside a task, until a time at which Ray may have restarted it, or may not yet have had room for it.

    Raises:
        RuntimeError: It crashed, so Ray is to restart it.
    """
    seconds = end - time.time()
    if seconds <= 0:
        return TIME_WAS_UP
    rest = () if math.isinf(end) else ("--max-seconds", str(seconds))
    worker = WorkerProcesses(workers, {}, lambda line: print(f"{number}: {line}", file=sys.stderr, flush=True), rest)
    is_stopping = False
    while True:
        try:
            status = worker.wait()
            break
        except KeyboardInterrupt:  # as which `ray.cancel` arrives
            is_stopping = True
            worker.send(signal.SIGTERM)
    if status not in USUAL and not is_stopping:
        raise RuntimeError(f"worker {number} {how_it_ended(status)}")
    return status
