"""Run paperbench in several worker processes on one results directory, and kill them at random moments.

One process imports everything and forks the workers, so that they start training at once:

    python -m tests.runs.chaos RESULTS TABLES CELLS KILLS WORKERS SEED LEASE

Without KILLS, the workers run to their end. Prints the number of runs that each worker started. With KILLS, a worker
is killed after a random time until there were so many kills or a worker has finished; one more worker then does the
rest. Prints the number of killed workers. With a LEASE in seconds instead of 0, workers regard each other as processes
on other machines. Disk syncs are slow, so that many workers are killed during a save.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from paperbench.cli.main import main
from paperbench.data.digits import load_digits
from paperbench.runs import disk_space, executor  # noqa: F401  (imported once, for all workers)
from paperbench.runs import lease as lease_module

LOG = f"{tempfile.mkdtemp()}/{{}}.log"


def slow_down(function: Callable[[int], None]) -> Callable[[int], None]:
    def slow(descriptor: int) -> None:
        time.sleep(0.03)
        function(descriptor)

    return slow


def start_worker(arguments: list[str]) -> int:
    child = os.fork()
    if child == 0:
        log = os.open(LOG.format(os.getpid()), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 70
        try:
            code = main(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_code(worker: int, *, wait: bool = True) -> int | None:
    """Return 0, or minus the signal that killed the worker; None if it is still running."""
    done, status = os.waitpid(worker, 0 if wait else os.WNOHANG)
    if not done:
        return None
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        sys.exit(f"a worker failed with {code}:\n{log_of(worker)}")
    return code


def log_of(worker: int) -> str:
    return Path(LOG.format(worker)).read_text()


def kill_repeatedly(arguments: list[str], kills: int, workers: int, rng: random.Random) -> int:
    """Return the number of killed workers."""
    killed = finished = 0
    alive: set[int] = set()
    while killed < kills and not finished:
        while len(alive) < workers:
            alive.add(start_worker(arguments))
        time.sleep(rng.expovariate(1 / 0.5))
        victim = rng.choice(sorted(alive))
        os.kill(victim, signal.SIGKILL)
        for worker in sorted(alive):
            code = exit_code(worker, wait=worker == victim)
            if code is not None:
                alive.discard(worker)
                killed += code < 0
                finished += code == 0
    for worker in alive:
        exit_code(worker)
    return killed


if __name__ == "__main__":
    results, tables, cells, kills, workers, seed, lease = sys.argv[1:]
    if float(lease):
        lease_module._machine_id = lambda: f"machine {os.getpid()}"
        lease_module.LEASE_SECONDS, lease_module.HEARTBEAT_SECONDS = float(lease), float(lease) / 10
    torch.set_num_threads(1)
    load_digits()
    os.fsync = slow_down(os.fsync)
    command = ["run", "table2", "--profile", "smoke", "--cells", cells, "--device", "cpu"]
    command += ["--tables", tables, "--results", results]
    if int(kills):
        print(kill_repeatedly(command, int(kills), int(workers), random.Random(int(seed))))
        exit_code(start_worker(command))
    else:
        started = [start_worker(command) for _ in range(int(workers))]
        for worker in started:
            exit_code(worker)
        print(*(log_of(worker).count(": to iteration 40") for worker in started))
