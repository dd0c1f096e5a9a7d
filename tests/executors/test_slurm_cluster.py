"""Jobs in a real Slurm: time limits, preemption, lost nodes, kills and cancellation. No training is lost or changed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from paperbench.executors import Workers
from paperbench.executors.slurm import script, submit
from paperbench.runs.store import RunDirectory, Store
from tests.executors.slurm_cluster import SECONDS, Cluster, cluster, why_not
from tests.helpers import copy_of_tiny_specs
from tests.runs.running import assert_same

pytestmark = [pytest.mark.full, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]


class Shell(Workers):
    """Copies of a shell command in place of `paperbench`."""

    @property
    def command(self) -> tuple[str, ...]:
        return ("bash", "-c", *self.arguments)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


class Job:
    """A submitted script, with its results directory."""

    def __init__(self, slurm: Cluster, workers: Workers, limit: str | None = None) -> None:
        self.slurm, self.workers = slurm, workers
        (workers.results / "slurm").mkdir(parents=True, exist_ok=True)
        self.id = int(slurm.run("sbatch", "--parsable", stdin=script(workers, None, limit)))

    @property
    def log(self) -> str:
        return (self.workers.results / "slurm" / f"{self.workers.name}-{self.id}.log").read_text()

    @property
    def starts(self) -> Path:
        return self.workers.results / "slurm" / f"{self.id}.starts"

    def end(self) -> str:
        """Wait until the job is over; return its state."""
        states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        self.slurm.wait_for(lambda: self.slurm.state(self.id) in states, f"the end of job {self.id}")
        return self.slurm.state(self.id)


@pytest.fixture(scope="module")
def shells(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """Jobs that run side by side: one that never saves anything, and one that needs two starts for the time limit."""
    folder = tmp_path_factory.mktemp("shells 100%")
    stuck = Shell(("echo one more; exit 75",), folder / "stuck", 1, 0)
    # The second start finds what the first has saved.
    saves = "mkdir -p runs/a && cd runs/a && [ ! -e record.json ] || exit 0; trap 'touch record.json; exit 138' USR1"
    warned = Shell((f"cd {shlex.quote(str(folder))}/warned && {saves}; sleep 300 & wait",), folder / "warned", 1, 0)
    return {"stuck": Job(slurm, stuck), "warned": Job(slurm, warned, "1")}


def test_job_that_saves_nothing_ends_after_four_starts(shells: dict[str, Job]) -> None:
    job = shells["stuck"]
    assert job.end() == "FAILED"
    assert job.log.count("one more\n") == 4
    assert "this job has saved nothing in 4 starts" in job.log
    assert not job.starts.exists()


def test_job_goes_on_after_a_time_limit(shells: dict[str, Job]) -> None:
    job = shells["warned"]
    assert job.end() == "COMPLETED"
    assert job.slurm.restarts(job.id) == 1
    assert not job.starts.exists()


def test_job_that_is_being_requeued_counts(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    slow = Shell(("trap '' TERM; sleep 300",), tmp_path, 1, 0)
    text = script(slow, None, None)
    present, (job,) = submit(slow, text)
    assert present == 0
    slurm.wait_for(lambda: slurm.state(int(job)) == "RUNNING", f"job {job}", tmp_path)
    slurm.run("scontrol", "requeue", job)
    assert slurm.state(int(job)) == "COMPLETING"
    assert submit(slow, text) == (1, [])
    slurm.run("scancel", job)


def specs_of(folder: Path, iterations: int) -> Path:
    """The shipped tables, with a profile whose run takes a moment, in two batch-norm groups."""
    return copy_of_tiny_specs(
        folder,
        batch_size=16,
        iterations=iterations,
        drops={"at": [80, 140]},
        batch_norm={"group": 8, "at_test": "reestimated"},
        monitoring={"log_every": 7, "test_every": 100, "checkpoint_every": 5, "checkpoint_share": 1.0},
    )


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return specs_of(tmp_path_factory.mktemp("specs"), 300)


def arguments(specs: Path, results: Path) -> tuple[str, ...]:
    options = ("--tables", specs, "--profile", "smoke", "--cells", "preact/resnet110", "--device", "cpu")
    return ("run", "table2", *map(str, options), "--results", str(results))


def undisturbed(slurm: Cluster, specs: Path, results: Path) -> RunDirectory:
    """The run of a process outside of Slurm."""
    command = [sys.executable, "-m", "paperbench", *arguments(specs, results)]
    subprocess.run(command, env=slurm.environment, check=True, timeout=600)
    (directory,) = Store(results).directories()
    return directory


@pytest.fixture(scope="module")
def expected(slurm: Cluster, specs: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return undisturbed(slurm, specs, tmp_path_factory.mktemp("alone"))


class Training:
    """A table that jobs train.

    Args:
        results: The results directory.
    """

    def __init__(self, slurm: Cluster, specs: Path, results: Path) -> None:
        self.slurm, self.results = slurm, results
        words = ("paperbench", *arguments(specs, results), "--executor", "slurm", "--partition", "low")
        self.command = (sys.executable, "-m", *words)

    def submit(self, times: int = 1) -> int:
        """Submit, several times at once; return the id of the only job."""
        options = {"env": self.slurm.environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started = [subprocess.Popen(self.command, **options) for _ in range(times)]
        outputs = [process.communicate(timeout=SECONDS)[0] for process in started]
        assert [process.returncode for process in started] == [0] * times, outputs
        (job,) = re.findall(r"Submitted 1 job: (\d+)\.\nLogs", "".join(outputs))
        assert "".join(outputs).count("Submitted 0 jobs.\nAlready in the queue,") == times - 1
        return int(job)

    @property
    def iteration(self) -> int:
        """The last iteration that is saved."""
        records = [directory.read_record() for directory in Store(self.results).directories()]
        return max((record.iteration for record in records if record), default=0)

    def go_on(self, job: int) -> None:
        """Wait until a job trains and saves again."""
        self.slurm.wait_for(lambda: self.slurm.state(job) == "RUNNING", f"job {job}", self.results)
        since = self.iteration
        self.slurm.wait_for(lambda: self.iteration > since, f"job {job}", self.results)

    def end(self, job: int, state: str) -> None:
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        self.slurm.wait_for(lambda: self.slurm.state(job) in ends, f"the end of job {job}", self.results)
        assert self.slurm.state(job) == state, self.slurm.log(self.results)
        assert not list(self.results.glob("slurm/*.starts"))


def requeue(slurm: Cluster, job: int) -> None:
    slurm.run("scontrol", "requeue", str(job))


def preempt(slurm: Cluster, job: int) -> None:
    slurm.run("srun", "--partition=high", "--exclusive", "true")


def lose_node(slurm: Cluster, job: int) -> None:
    slurm.run("scontrol", "update", "nodename=localhost", "state=down", "reason=x")
    slurm.wait_for(lambda: slurm.state(job) == "PENDING", "the requeue")
    slurm.run("scontrol", "update", "nodename=localhost", "state=resume")


def crash_node(slurm: Cluster, job: int) -> None:
    for name in ("slurmd", "slurmstepd", "paperbench"):
        slurm.kill(name)
    time.sleep(12)  # a node that comes back is not asked about jobs that are younger
    slurm.start_node()


def kill_step(slurm: Cluster, job: int) -> None:
    slurm.kill("paperbench")


def test_training_survives_faults_and_cancellation(
    slurm: Cluster, specs: Path, expected: RunDirectory, tmp_path: Path
) -> None:
    training = Training(slurm, specs, tmp_path / "100 %j")
    job = training.submit(times=2)
    for number, fault in enumerate((requeue, preempt, lose_node, crash_node, kill_step), 1):
        training.go_on(job)
        fault(slurm, job)
        slurm.wait_for(lambda job=job, number=number: slurm.restarts(job) == number, fault.__name__)
    training.go_on(job)
    slurm.run("scancel", str(job))
    training.end(job, "CANCELLED")
    assert 0 < training.iteration < 300
    training.end(training.submit(), "COMPLETED")
    assert_same(Store(training.results).directory(expected.path.name), expected)


def test_tasks_share_a_run_and_go_on_after_their_time(
    slurm: Cluster, specs: Path, expected: RunDirectory, tmp_path: Path
) -> None:
    words = arguments(specs, tmp_path / "r")
    job = Job(slurm, Workers((*words, "--max-seconds", "2"), tmp_path / "r", 1, gpus_per_run=2))
    slurm.wait_for(lambda: slurm.restarts(job.id) > 0, "the requeue", tmp_path / "r")
    assert "stopped after 2 seconds" in job.log
    assert "Terminated" not in job.log
    slurm.run("scancel", str(job.id))
    assert job.end() == "CANCELLED"
    job = Job(slurm, Workers(words, tmp_path / "r", 1, gpus_per_run=2))
    assert job.end() == "COMPLETED", job.log
    (record,) = Store(tmp_path / "r").records()[0]
    assert {session.processes for session in record.sessions} == {2}
    assert_same(Store(tmp_path / "r").directory(expected.path.name), expected)


@pytest.mark.stress
def test_training_survives_thirty_faults(slurm: Cluster, tmp_path: Path) -> None:
    specs, choices = specs_of(tmp_path / "specs", 3_000), Random(0)
    training, faults = Training(slurm, specs, tmp_path / "r"), (requeue, preempt, lose_node, crash_node, kill_step)
    job = training.submit()
    for _ in range(30):
        training.go_on(job)
        fault, saved = choices.choice((*faults, None)), training.iteration
        if fault:
            before = slurm.restarts(job)
            fault(slurm, job)
        else:
            slurm.run("scancel", str(job))
        if fault is None:
            training.end(job, "CANCELLED")
            job = training.submit()
        else:
            slurm.wait_for(lambda job=job, before=before: slurm.restarts(job) > before, f"{fault}", training.results)
        assert training.iteration >= saved, "a save is never undone"
    training.end(job, "COMPLETED")
    (made,) = Store(training.results).directories()
    record = made.read_record()
    assert record
    assert [session.last for session in record.sessions] == sorted(session.last for session in record.sessions)
    assert_same(made, undisturbed(slurm, specs, tmp_path / "alone"))
