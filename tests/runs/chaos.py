"""Kills paperbench at random moments, again and again, over one results directory.

A process that has loaded everything forks the workers, so that each has its first iteration within a moment:

    python -m tests.runs.chaos RESULTS TABLES CELLS KILLS WORKERS SEED

Prints how many workers were killed and how many ended by themselves. Then one more worker finishes what is left.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import torch

from paperbench.cli.main import main
from paperbench.data.digits import load_digits
from paperbench.runs import executor, room  # noqa: F401  (loaded once, for all workers)


def start_worker(arguments: list[str]) -> int:
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 70
        try:
            code = main(arguments)
        finally:
            os._exit(code)
    return child


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
            done, status = os.waitpid(worker, 0 if worker == victim else os.WNOHANG)
            if done:
                alive.discard(worker)
                killed += os.WIFSIGNALED(status)
                ended += os.WIFEXITED(status)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                    sys.exit(f"a worker failed with {os.WEXITSTATUS(status)}")
    for worker in alive:
        os.waitpid(worker, 0)
    return killed, ended


if __name__ == "__main__":
    results, tables, cells, kills, workers, seed = sys.argv[1:]
    torch.set_num_threads(1)
    load_digits()
    command = ["run", "table2", "--profile", "smoke", "--cells", cells, "--device", "cpu"]
    command += ["--tables", tables, "--results", results]
    print(*kill_again_and_again(command, int(kills), int(workers), random.Random(int(seed))))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(start_worker(command), 0)[1]))
