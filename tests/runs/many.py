"""Many processes that divide many runs of one results directory; instead of training, they write what a run leaves."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from paperbench.api import Plan, plan
from paperbench.runs.history import HistoryLine
from paperbench.runs.limits import Limits
from paperbench.runs.observer import Observer
from paperbench.runs.record import DataFacts, Files
from paperbench.runs.session import RunSession, SessionSetting
from paperbench.runs.store import Store
from paperbench.runs.worker import Worker
from tests.helpers import CHECKPOINT, a_record

LINE = HistoryLine(80, 1.0, 0.1, 1.0, 40.0, 0.26, 6.75, 8.0)


class Session(RunSession):
    """Appends the run's id to `trained.log` in the results directory."""

    def train(self, *_: object) -> Iterator[int]:
        log = os.open(self.directory.path.parents[1] / "trained.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, f"{self.run.id}\n".encode())
        os.close(log)
        self.directory.write_history([LINE])
        digest = sha256(self.directory.history_file.read_bytes()).hexdigest()
        values = {"spec": self.run.spec, "seed": self.run.seed, "net": self.run.net_name}
        files = Files(1, digest, CHECKPOINT, "0" * 64)
        record = a_record(**values, data=DataFacts.of(self.run.dataset), files=files)
        self.directory.write_record(record)
        self.directory.close()
        yield from ()


def make_plan(results: Path, seeds: int) -> Plan:
    """Plan the ten nets of Table 2 on the embedded digits, with so many seeds each."""
    return plan("table2", results, profile="smoke", device="cpu", seeds=seeds)


def divide(work: Plan, workers: int) -> Counter[str]:
    """Let so many processes divide the runs; return how often each run was trained.

    Raises:
        AssertionError: A process failed.
    """
    children = []
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            status = 70
            try:
                setting = SessionSetting(work.device, Limits(), Observer())
                worker = Worker(Store(work.selection.results), setting, new_session=Session)
                status = len(worker.run_all(work.runs))
            finally:
                os._exit(status)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert statuses == [0] * workers
    return Counter((work.selection.results / "trained.log").read_text().split())
