"""What `paperbench status` finds in a store. The processes that hold runs are this one, or invented."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench.errors import RunError
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.lease import Lease
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.status import STATES, RunStatus, Snapshot, TableStatus, slurm_jobs
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import verify
from paperbench.training.trainer import Trainer
from tests.compare.judging import COPY, a_table, record
from tests.helpers import a_session, write_record
from tests.report.stores import make_store
from tests.runs.running import Log, train

CELL = "preact/resnet110"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def hold(store: Store) -> Iterator[Callable[..., Path]]:
    """Lets this process hold a run, or changes the lease so that another one seems to; returns the lease file."""
    leases: list[Lease] = []

    def acquire(one: Record, **changes: Any) -> Path:
        leases.append(store.lease(one.run, one.spec))
        assert leases[-1].acquire()
        path = store.root / "leases" / f"{one.run}.1"
        values = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))
        return path

    yield acquire
    for lease in leases:
        lease.release()


def of_table2(seed: int, error: float | None = None, **changes: Any) -> Record:
    return record(a_table("table2"), CELL, error, seed=seed, **changes)


def status(store: Store, cells: str = CELL, profile: str = "paper", table: str = "table2") -> TableStatus:
    return Snapshot(store).status_of(a_table(table), profile, cells)


def one_run(store: Store, seed: int) -> RunStatus:
    return status(store).cells[CELL][seed]


def test_every_state_is_counted_at_its_cell(store: Store, hold: Callable[..., Path]) -> None:
    finished, diverged, paused, running, failed = (
        of_table2(seed, error) for seed, error in enumerate((6.4, float("inf"), None, None, None))
    )
    for one in (finished, diverged, paused, running):
        write_record(store, one)
    hold(running)
    store.directory(failed.run).write_failure(RunError("It failed."), failed.spec)

    found = status(store, "*")
    assert [run.state for run in found.cells[CELL]] == ["done", "done", "paused", "running", "failed"]
    assert found.cells[CELL][4].failure.message == "It failed."  # type: ignore[union-attr]
    assert Counter(run.state for run in found.runs) == {
        "waiting": 45,
        **dict.fromkeys(set(STATES) - {"waiting", "done"}, 1),
        "done": 2,
    }
    assert (found.shown, found.others) == (("CIFAR-10 in fp32",), {})


def test_run_in_two_tables_and_cells_is_one_run(store: Store) -> None:
    write_record(store, of_table2(0, 6.4))
    found = status(store, "*", table="table3")
    cells = [cell for cell, runs in found.cells.items() if any(run.state == "done" for run in runs)]
    assert cells == ["cifar10_resnet110/preact"]
    assert Snapshot(store).profiles_of(a_table("table5")) == ()


def test_run_that_has_not_saved_yet_is_running_and_as_fast_as_its_history_says(
    store: Store, hold: Callable[..., Path]
) -> None:
    new = of_table2(2, precision="bf16")
    hold(new, job="4711")
    directory = store.directory(new.run)
    directory.path.mkdir(parents=True)
    line = HistoryLine(200, 0.5, 0.1, 1.0, 50.0, None, None, 20.0)
    directory.history_file.write_bytes(history_bytes([line]))

    found = status(store)
    assert found.shown == ("CIFAR-10 in bf16",)
    run = found.cells[CELL][2]
    assert (run.state, run.progress.iteration, run.progress.iterations) == ("running", 200, 64_000)  # type: ignore[union-attr]
    assert run.progress.images_per_second == 10 * 128  # type: ignore[union-attr]
    assert run.progress.seconds_left == pytest.approx(6_380, abs=60)  # type: ignore[union-attr]
    assert run.progress.job == "4711"  # type: ignore[union-attr]


def test_speed_is_that_of_the_last_session_that_trained(store: Store, hold: Callable[..., Path]) -> None:
    sessions = a_session(100, seconds=1_000.0), a_session(1_000, seconds=90.0), a_session(1_000, seconds=5.0)
    one = of_table2(0, iteration=1_000, sessions=sessions)
    write_record(store, one)
    hold(one)
    progress = one_run(store, 0).progress
    assert progress
    assert (progress.iteration, progress.images_per_second) == (1_000, 10 * 128)


def test_invented_data_do_not_hold_up(store: Store) -> None:
    one = of_table2(0, 6.4)
    write_record(store, one)
    for number in range(40):
        spec = replace(one.spec, data=f"{number}")
        path = store.directory(spec.run_id(0)).path
        path.mkdir()
        store.directory(path.name).write_failure(RunError("It failed."), spec)
    assert one_run(store, 0).state == "done"
    (complaint,) = Snapshot(store).complaints
    assert complaint == "runs in 21 further pairs of data and precision: 20 are shown."


def test_lease_of_an_earlier_version_counts(store: Store, hold: Callable[..., Path]) -> None:
    one = of_table2(0)
    write_record(store, one)
    hold(one, job="absent", since="absent", data="absent", precision="absent")
    run = one_run(store, 0)
    assert run.state == "running"
    assert run.progress
    assert run.progress.job is None


@pytest.mark.parametrize(
    ("changes", "age", "state", "is_silent"),
    [
        ({"started": "1"}, 0, "paused", False),  # this machine's process of that number is another one
        ({"machine": "elsewhere"}, 0, "running", False),
        ({"machine": "elsewhere"}, 300, "paused", True),
        ({}, 300, "running", False),  # suspended perhaps, but there
    ],
)
def test_dead_and_silent_processes_do_not_run(
    store: Store, hold: Callable[..., Path], changes: dict[str, str], age: float, state: str, is_silent: bool
) -> None:
    one = of_table2(0)
    write_record(store, one)
    path = hold(one, **changes)
    then = time.time() - age
    os.utime(path, (then, then))
    run = one_run(store, 0)
    assert (run.state, run.silent is not None) == (state, is_silent)
    if is_silent:
        assert run.silent == pytest.approx(age, abs=60)


def test_failed_run_that_trains_again_is_running(store: Store, hold: Callable[..., Path]) -> None:
    one = of_table2(0)
    write_record(store, one).write_failure(RunError("It failed."), one.spec)
    hold(one)
    assert one_run(store, 0).state == "running"


def test_data_and_precision_with_most_runs_are_shown(store: Store) -> None:
    for one in (
        of_table2(0, 6.4),
        of_table2(0, 6.4, data=COPY),
        *(of_table2(seed, precision="bf16") for seed in (0, 1)),
    ):
        write_record(store, one)
    found = status(store)
    assert [run.state for run in found.cells[CELL]] == ["paused", "paused", "waiting", "waiting", "waiting"]
    assert found.shown == ("CIFAR-10 in bf16",)
    assert found.others == {"on CIFAR-10 in fp32": 1, "on CIFAR-10 (some copy) in fp32": 1}


def test_runs_of_another_profile_are_not_counted(store: Store) -> None:
    write_record(store, of_table2(0, 6.4, profile="smoke"))
    found = status(store)
    assert {run.state for run in found.runs} == {"waiting"}
    assert found.shown == ()
    assert Snapshot(store).profiles_of(a_table("table2")) == ("smoke",)
    assert [run.state for run in status(store, profile="smoke").cells[CELL]] == ["done"]


def test_rows_on_request_are_wanted_if_they_are_named_or_have_runs(store: Store) -> None:
    table = a_table("table3")
    (row,) = {cell.row.id for cell in table.all_cells if cell.row.on_request}
    cell = next(cell.id for cell in table.all_cells if cell.row.id == row)
    store.root.mkdir()
    assert cell not in status(store, "*", table="table3").cells
    assert cell in status(store, row, table="table3").cells
    write_record(store, record(table, cell, None))
    assert cell in status(store, "*", table="table3").cells


def test_of_other_people_only_ended_runs_count(store: Store) -> None:
    theirs = make_store(store.root / "contributed" / "ada", map(of_table2, (0, 1), (6.4, None)))
    theirs.directory(of_table2(2).run).write_failure(RunError("It failed."), of_table2(2).spec)
    assert [run.state for run in status(store).cells[CELL]] == ["done", *["waiting"] * 4]


def test_damaged_record_is_reported(store: Store) -> None:
    directory = write_record(store, of_table2(0, 6.4))
    directory.record_file.write_text("{")
    seen = Snapshot(store)
    assert len(seen.complaints) == 1
    assert f"{directory.record_file} is not JSON" in seen.complaints[0]


# Trained runs


def test_working_process_says_what_it_trains(run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    holders = []
    before = time.time()
    train(run, tmp_path, stop_at=1, log=Log(lambda _: holders.append(Store(tmp_path).held_runs()[run.id].holder)))
    (holder,) = holders
    assert holder
    assert (holder.job, holder.data, holder.precision) == ("4711", run.dataset.fingerprint, "fp32")
    assert holder.since == pytest.approx(before, abs=60)


def test_failure_is_noted_until_the_run_goes_on(run: PlannedRun, tmp_path: Path) -> None:
    class Failing(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.iteration == 9:
                raise RunError(f"{tmp_path}/runs/{run.id}/model\x1b and /some/where/else are lost.")
            super().step(rate)

    directory = Store(tmp_path).directory(run.id)
    assert "/some/where/else" in train(run, tmp_path, setting={"new_trainer": Failing})[1].failure
    failure = directory.read_failure()
    assert failure
    assert failure.message == "model\\x1b and [path] are lost."
    assert (failure.data, failure.precision) == (run.dataset.fingerprint, "fp32")
    (verified,) = verify(Store(tmp_path))
    assert (verified.problems, verified.remarks) == ([], [])

    train(run, tmp_path, stop_at=10)
    assert not directory.failure_file.exists()


def test_failure_is_moved_away_with_the_run(store: Store) -> None:
    one = of_table2(0)
    directory = write_record(store, one)
    directory.write_failure(RunError("It failed."), one.spec)
    aside = RunDirectory(directory.supersede())
    assert aside.read_failure()
    assert one_run(store, 0).state == "waiting"


# Slurm


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script on the path as the only squeue."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")

    def make(script: str) -> None:
        path = tmp_path / "bin" / "squeue"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


JOBS = """echo "$@" >&2
[ "$*" = "--me --array --noheader --format=%i|%j|%T|%r" ] || exit 1
echo '1|paperbench-0123abcd-77777777|RUNNING|None'
echo '2|paperbench-0123abcd-77777777|PENDING|Resources'
echo '3_1|paperbench-0123abcd-88888888|PENDING|Priority'
echo '3_2|paperbench-0123abcd-88888888|PENDING|Priority'
echo '4|paperbench-other|RUNNING|None'
echo '5|something else'"""


def test_jobs_of_the_store_are_counted(squeue: Callable[[str], None]) -> None:
    squeue(JOBS)
    assert slurm_jobs("paperbench-0123abcd") == {"running": 1, "pending (Resources)": 1, "pending (Priority)": 2}


def test_squeue_may_fail_or_be_absent(squeue: Callable[[str], None]) -> None:
    assert slurm_jobs("paperbench") == Counter()
    squeue("exit 1")
    assert slurm_jobs("paperbench") is None


def test_squeue_that_hangs_is_given_up(squeue: Callable[[str], None]) -> None:
    squeue("exec /bin/sleep 60")
    assert slurm_jobs("paperbench", patience=0.2) is None
