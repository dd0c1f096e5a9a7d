"""Run paperbench in several worker processes on one results directory, and kill them at random moments.

One process imports everything and forks the workers, so that they start training at once:

    python -m tests.runs.chaos ROOT TABLES CELLS KILLS

First, two workers share the runs in ROOT/undisturbed. Then workers are killed, in rounds with a new results directory
each. A round ends after a few kills, or when a worker has finished; one more worker then does the rest. In every second
round, workers see each other as processes on other machines. Disk syncs are slow, so many workers are killed during
a save. They train one to three runs at once. Prints the number of runs that each undisturbed worker trained.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch

from paperbench.cli.main import main
from paperbench.data.digits import load_digits
from paperbench.runs import disk_space, worker  # noqa: F401  (imported once, for all workers)
from paperbench.runs import lease as lease_module

KILLS_PER_ROUND = 4
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


def kill_repeatedly(arguments: list[str], kills: int, rng: random.Random) -> int:
    """Kill one of two workers at a time, until there were enough kills or a worker has finished; return the kills."""
    killed = finished = 0
    alive: set[int] = set()
    while killed < kills and not finished:
        while len(alive) < 2:
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
    root, tables, cells, kills = sys.argv[1:]
    torch.set_num_threads(1)
    load_digits()
    os.fsync = slow_down(os.fsync)
    command = ["run", "table2", "--profile", "smoke", "--cells", cells, "--device", "cpu", "--tables", tables]

    undisturbed = [start_worker([*command, "--results", f"{root}/undisturbed"]) for _ in range(2)]
    for worker in undisturbed:
        exit_code(worker)
    print(*(log_of(worker).count(": to iteration ") for worker in undisturbed))

    killed, rng = 0, random.Random(0)
    for number in itertools.count():
        if killed >= int(kills):
            break
        remote = {"_machine_id": lambda: f"machine {os.getpid()}", "LEASE_SECONDS": 2.0, "HEARTBEAT_SECONDS": 0.2}
        of_round = [*command, "--results", f"{root}/Ergebnisse für alle, 結果 {number}"]
        with patch.multiple(lease_module, **remote) if number % 2 else nullcontext():
            killed += kill_repeatedly(
                [*of_round, "--at-once", f"{1 + number % 3}"], min(KILLS_PER_ROUND, int(kills) - killed), rng
            )
            exit_code(start_worker(of_round))
