"""Runs a function in several processes that share a run, each with one thread, forked from the test's process."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from paperbench.launch import Launch
from paperbench.training.processes import Processes

CPU = torch.device("cpu")
SECONDS = 120.0

# Autograd starts its threads with the first backward pass. Later, in a test, they would keep it from working in forks.
torch.ones(1, requires_grad=True).sum().backward()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def together(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    """Return what the work returns in each of `count` processes, which may be one. A failure in any is one here."""
    context = multiprocessing.get_context("fork")
    port, started = free_port(), []
    for rank in range(count):
        ours, theirs = context.Pipe(duplex=False)
        launch = Launch(rank, count, rank, "127.0.0.1", port) if count > 1 else None
        process = context.Process(target=_run, args=(launch, work, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    results = []
    for process, connection in started:
        assert connection.poll(SECONDS), "a process does not end"
        try:
            results.append(pickle.loads(connection.recv_bytes()))
        except EOFError:
            results.append((None, "it ended without a result"))
        process.join(SECONDS)
    failures = [failure for _, failure in results if failure]
    assert not failures, "\n".join(failures)
    return [result for result, _ in results]


def _run(launch: Launch | None, work: Callable[[Processes], Any], connection: Connection) -> None:
    torch.set_num_threads(1)
    try:
        processes = Processes(launch, CPU)
        result = work(processes), None
        processes.end()
    except BaseException:
        result = None, traceback.format_exc()
    connection.send_bytes(pickle.dumps(result))  # torch would pass tensors on in shared memory
