"""Kills paperbench at random moments, again and again, over one results directory.

A process that has loaded everything forks the workers, so that each has its first iteration within a moment:

    python -m tests.runs.chaos RESULTS TABLES CELLS KILLS WORKERS SEED LEASE

Prints how many workers were killed and how many ended by themselves. Then one more worker finishes what is left. With
a LEASE of some seconds instead of 0, the workers take each other for processes on other machines. Their disk is slow,
so that many are killed while a checkpoint is being written.
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
from paperbench.runs import disk_space, executor  # noqa: F401  (loaded once, for all workers)
from paperbench.runs import lease as lease_module

LOG = f"{tempfile.mkdtemp()}/{{}}.log"


def slowly(function: Callable[[int], None]) -> Callable[[int], None]:
    def waiting(descriptor: int) -> None:
        time.sleep(0.03)
        function(descriptor)

    return waiting


def start_worker(arguments: list[str]) -> int:
    child = os.fork()
    if child == 0:
        told = os.open(LOG.format(os.getpid()), os.O_WRONLY | os.O_CREAT)
        os.dup2(told, 1)
        os.dup2(told, 2)
        code = 70
        try:
            code = main(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def fetch(worker: int, *, wait: bool = True) -> int | None:
    """How a worker ended: minus the signal that killed it, or 0; None if it is still at work."""
    done, status = os.waitpid(worker, 0 if wait else os.WNOHANG)
    if not done:
        return None
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        sys.exit(f"a worker failed with {code}:\n{Path(LOG.format(worker)).read_text()}")
    return code


def kill_again_and_again(arguments: list[str], kills: int, workers: int, chance: random.Random) -> tuple[int, int]:
    killed = ended = 0
    alive: set[int] = set()
    while killed < kills and not ended:
        while len(alive) < workers:
            alive.add(start_worker(arguments))
        time.sleep(chance.expovariate(1 / 0.5))
        victim = chance.choice(sorted(alive))
        os.kill(victim, signal.SIGKILL)
        for worker in sorted(alive):
            code = fetch(worker, wait=worker == victim)
            if code is not None:
                alive.discard(worker)
                killed += code < 0
                ended += code == 0
    for worker in alive:
        fetch(worker)
    return killed, ended


if __name__ == "__main__":
    results, tables, cells, kills, workers, seed, lease = sys.argv[1:]
    if float(lease):
        lease_module._machine = lambda: f"machine {os.getpid()}"
        lease_module.LEASE_SECONDS, lease_module.HEARTBEAT_SECONDS = float(lease), float(lease) / 10
    torch.set_num_threads(1)
    load_digits()
    os.fsync = slowly(os.fsync)
    command = ["run", "table2", "--profile", "smoke", "--cells", cells, "--device", "cpu"]
    command += ["--tables", tables, "--results", results]
    print(*kill_again_and_again(command, int(kills), int(workers), random.Random(int(seed))))
    fetch(start_worker(command))
