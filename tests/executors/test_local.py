"""`paperbench run --executor local`: workers on this machine, which crash, are killed, or get signals."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from paperbench import api
from paperbench.errors import PaperbenchError, RunError
from paperbench.executors import Workers, local
from paperbench.executors.local import WorkerProcesses, environments, ids_of_gpus
from paperbench.launch import TIME_WAS_UP
from paperbench.runs.limits import Limits
from paperbench.runs.store import Store
from tests.cli.conftest import Run
from tests.executors.commands import Command, StandIn, arguments, assert_results, write_program
from tests.helpers import ROOT
from tests.limits import limit_seconds
from tests.training.gpus import GPU, with_gpus

pytestmark = pytest.mark.usefixtures("heeded_signals")

SMOKE = ("--profile", "smoke", "--executor", "local")


def workers(count: int, gpus_per_run: int = 0, *arguments: str) -> Workers:
    return Workers(arguments, Path("results"), count, gpus_per_run)


# How GPUs and threads are divided


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        (None, ["0", "1", "2"]),
        ("", ["0", "1", "2"]),
        ("5,3, 7,99", ["5", "3", "7"]),
        ("GPU-a,MIG-b", ["GPU-a", "MIG-b"]),
    ],
)
def test_ids_of_gpus_are_those_that_the_user_chose(visible: str | None, ids: list[str]) -> None:
    assert ids_of_gpus(3, visible) == ids


def test_each_worker_gets_its_own_gpus() -> None:
    given = environments(workers(2, 2), ["4", "GPU-a", "6", "7", "8"], processors=64)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in given] == ["4,GPU-a", "6,7"]
    assert "OMP_NUM_THREADS" not in given[0]
    assert {one["LOCAL_WORLD_SIZE"] for one in given} == {"4"}, "their decoders share the processors"


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(PaperbenchError, match=r"^2 workers need 4 GPUs \(2 each\), but torch sees 3 here\. Lower"):
        environments(workers(2, 2), ["0", "1", "2"], processors=1)
    with pytest.raises(PaperbenchError, match=r"^A worker needs 1 GPU, but torch sees none here\."):
        environments(workers(1, 1), [], processors=1)


@pytest.mark.parametrize(("given", "threads"), [(None, "4"), ("7", "7")])
def test_workers_on_a_cpu_share_its_threads(monkeypatch: pytest.MonkeyPatch, given: str | None, threads: str) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert [one["OMP_NUM_THREADS"] for one in environments(workers(2), [], processors=9)] == [threads] * 2


def test_gpus_of_the_machine_are_divided_among_workers(
    run: Run, monkeypatch: pytest.MonkeyPatch, stand_in: StandIn
) -> None:
    with_gpus(monkeypatch, *[GPU()] * 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,4,5,7")
    stand_in.does("touch $CUDA_VISIBLE_DEVICES:$RANK")
    assert run("run", "table2", *SMOKE, "--cells", "preact/resnet110", "--gpus-per-run", 2)[0] == 0
    assert sorted(path.name for path in Path().glob("*:*")) == ["1,2:0", "1,2:1", "4,5:0", "4,5:1"]


def test_workers_depend_neither_on_directory_nor_on_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: StandIn
) -> None:
    monkeypatch.setenv("PAPERBENCH_DATA", "images")
    stand_in.does("printf '%s\n' \"$@\" > given")
    assert run("run", "table2", *SMOKE, "--cells", "preact/*", "or*", "--results=-r", "--max-seconds", "1h")[0] == 0
    program, table, *options = Path("given").read_text().splitlines()
    assert (program, table) == ("run", "table2")
    assert set(options) == {
        *("--cells", "preact/*", "or*", "--profile=smoke", "--max-seconds=3600.0"),
        *(f"--data={tmp_path}/images", f"--results={tmp_path}/-r"),
        "--device=cpu",  # also if a GPU works in the moment in which the worker starts
        "--yes",  # else each would measure all runs as its own
    }


@pytest.mark.parametrize("variables", [{"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "2"}])
def test_several_processes_start_no_workers(
    run: Run, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    of_all = {"LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1", "SLURM_STEP_NODELIST": "a"}
    of_slurm = {f"SLURM_{name}": "0" for name in ("PROCID", "LOCALID", "JOB_ID", "STEP_ID")}
    for name, value in {**of_all, **of_slurm, **variables}.items():
        monkeypatch.setenv(name, value)
    code, _, err = run("run", "table2", *SMOKE)
    assert code == 2
    assert "--executor starts all processes itself. Give the command without torchrun or srun." in err


@pytest.mark.parametrize(
    ("fails", "first", "others", "code", "named"),
    [
        ([1], "exit 0", "exit 2", 2, [1]),
        ([1], "exit 75", "exit 75", 75, [1]),
        ([], "exit 75", "exit 0", 75, []),
        ([], "exit 0", "kill -9 $$", 2, [0, 1, 2]),  # it died without a word
        ([1], "exit 2", "kill -9 $$", 2, [0, 1, 2]),
        ([], "exit 75", "kill -9 $$", 75, []),
    ],
)
def test_runs_that_fail_now_are_named(
    run: Run, stand_in: StandIn, fails: list[int], first: str, others: str, code: int, named: list[int]
) -> None:
    options = ("--device", "cpu", "--cells", "preact/resnet110", "--seeds", 3)
    runs = api.plan("table2", profile="smoke", device="cpu", cells="preact/resnet110", seeds=3).runs
    for results, numbers in (("results", [2]), ("new", fails)):  # one failed before, and is not reached
        for number in numbers:
            directory = Store(Path(results)).directory(runs[number].id)
            directory.path.mkdir(parents=True)
            directory.write_failure(RunError("the disk is full"), runs[number].spec)
    stand_in.does(f"mkdir one 2> /dev/null && {{ cp -r new/* results; {first}; }}; {others}")
    found, _, err = run("run", "table2", *SMOKE, *options, "--workers", 2)
    assert found == code
    assert re.findall(r"[0-9a-f]{12}-s\d", err) == [runs[number].id for number in named]


@pytest.mark.parametrize(
    ("executor", "days", "runs", "workers", "is_refused"),
    [
        ("local", 0.1, 100, 100, True),  # they divide this CPU
        ("slurm", 0.1, 100, 1, True),
        ("slurm", 0.1, 100, 100, False),
        ("slurm", 10, 1, 100, True),  # a job trains one run at a time
    ],
)
def test_days_on_cpus_need_a_yes(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    taking: Callable[[float], Path],
    executor: str,
    days: float,
    runs: int,
    workers: int,
    is_refused: bool,
) -> None:
    for name, answer in (("sbatch", "echo 7"), ("squeue", ":")):
        write_program(tmp_path / name, answer)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = ("--profile", "smoke", "--device", "cpu", "--cells", "preact/resnet110", "--seeds", runs)
    where = ("--tables", taking(days), "--workers", workers)
    code, out, err = run("run", "table2", "--executor", executor, *options, *where)
    assert ("Add --yes" in err) == is_refused
    assert (code, "Submitted 100 jobs: 7, 7," in out) == ((2, False) if is_refused else (0, True))


def test_skipped_rows_are_named(run: Run, stand_in: StandIn) -> None:
    stand_in.does("exit 0")
    _, _, err = run("run", "table3", *SMOKE, "--device", "cpu", "--cells", "cifar10_resnet164*")
    assert "skipped row cifar10_resnet164_no_warm_up: it runs only if named in full" in err


def test_gpus_that_cannot_share_a_run_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, *[GPU()] * 3)
    code, _, err = run("run", "table2", *SMOKE, "--cells", "preact/resnet110", "--gpus-per-run", 3)
    assert code == 2
    assert "preact_resnet110(depth=14): 3 processes cannot share its batches" in err


# How workers are kept running: with shell scripts in their place


class Workplace:
    """Runs `local.run`, and keeps what it prints."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in, self.lines, self.limits = stand_in, list[str](), Limits()
        self.on_line: Callable[[str], object] = lambda _: None

    def workers(self, text: str, count: int, processes: int) -> Workers:
        self._stand_in.does(text)
        return Workers(("given",), Path("results"), count, processes, self._stand_in.imports)

    def run(self, text: str, count: int = 2, processes: int = 0) -> list[int]:
        variables = [{"NUMBER": str(number + 1)} for number in range(count)]
        with limit_seconds(60):
            clock = itertools.count(step=10).__next__  # no signal repeats another
            return local.run(self.workers(text, count, processes), variables, self.limits, self.say, clock)

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.on_line(line)

    def said(self, what: str) -> list[str]:
        return [line for line in self.lines if what in line]


@pytest.fixture
def workplace(stand_in: StandIn) -> Workplace:
    return Workplace(stand_in)


@pytest.mark.parametrize(
    ("crash", "status", "how"),
    [("kill -9 $$", -9, "was killed by SIGKILL"), ("exit 143", 143, "ended with exit status 143")],
)
def test_worker_that_always_crashes_is_given_up(workplace: Workplace, crash: str, status: int, how: str) -> None:
    assert workplace.run(f"echo begins >&2; test $NUMBER = 2 && {crash}; exit 0") == [0, status]
    assert workplace.said("begins") == ["1: begins"] + ["2: begins"] * 4 or workplace.said("1:") == ["1: begins"]
    assert len(workplace.said("2: begins")) == 4
    warning = f"2: paperbench: warning: the worker {how}."
    assert workplace.said("warning") == [
        *[f"{warning} Restarting it."] * 3,
        f"{warning} Not restarting it again, after 3 restarts.",
    ]


@pytest.mark.parametrize("status", [0, 2, TIME_WAS_UP])
def test_worker_that_ends_as_usual_is_not_restarted(workplace: Workplace, status: int) -> None:
    assert workplace.run(f"echo begins >&2; exit {status}") == [status] * 2
    assert sorted(workplace.lines) == ["1: begins", "2: begins"]


def test_worker_that_crashes_gets_the_rest_of_the_time(workplace: Workplace) -> None:
    workplace.limits.max_seconds = 50.0
    assert workplace.run('echo "$@" >&2; test "$2" && exit 0; exit 1', 1) == [0]
    first, _, second = workplace.lines
    assert first == "1: given"
    assert 0 < float(second.removeprefix(f"{first} --max-seconds ")) < 50
    workplace.limits.max_seconds = 1e-9
    assert workplace.run("exit 1", 1) == [TIME_WAS_UP]


def test_lines_of_workers_stay_whole(workplace: Workplace) -> None:
    line = "x" * 300
    workplace.run(f"i=0; while test $i -lt 3000; do echo $i {line}; i=$((i+1)); done >&2; echo unseen; echo >&2", 4)
    for number in range(1, 5):
        assert workplace.said(f"{number}: ") == [f"{number}: {i} {line}" for i in range(3000)]
    assert len(workplace.lines) == 4 * 3000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on_to_all(workplace: Workplace, number: signal.Signals) -> None:
    """Also the second one, for which these workers wait."""

    def send(line: str) -> None:
        what = line.partition(": ")[2]
        if what in ("ready", "once") and len(workplace.said(what)) == 2:
            os.kill(os.getpid(), number)

    workplace.on_line = send
    name = number.name.removeprefix("SIG")
    script = f"trap 'trap \"exit 7\" {name}; echo once >&2' {name}; echo ready >&2; while :; do sleep 0.05; done"
    assert workplace.run(script) == [7, 7], "they are not restarted"
    assert workplace.limits.signal == number
    assert workplace.said("warning") == []


def test_worker_of_several_processes_is_restarted_as_a_whole(workplace: Workplace, tmp_path: Path) -> None:
    script = f"""
        echo rank $RANK local $LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR $MASTER_PORT >&2
        mkdir "{tmp_path}/$NUMBER-$RANK" || exit 0
        test $RANK = 1 && kill -9 $$
        exit 2"""
    assert workplace.run(script, 2, 2) == [0, 0]
    for number in (1, 2):
        said = [re.fullmatch(r"\d: rank (\d) local \1 of 2 at 127.0.0.1 (\d+)", line) for line in workplace.lines]
        ranks = [match for match in said if match and match.string.startswith(f"{number}:")]
        assert sorted(match[1] for match in ranks[:2]) == sorted(match[1] for match in ranks[2:]) == ["0", "1"]
        assert ranks[0][2] == ranks[1][2]
    assert len(workplace.said("the worker was killed by SIGKILL. Restarting it.")) == 2


def test_hung_process_of_a_worker_is_killed(workplace: Workplace) -> None:
    workers = workplace.workers("test $RANK = 0 && exec sleep 100; exit 1", 1, 2)
    assert WorkerProcesses(workers, {}, workplace.say).wait(seconds_to_end=0.2) == -9


# With paperbench itself


@pytest.mark.full
def test_two_workers_divide_a_table(specs: Path, expected: Store, tmp_path: Path) -> None:
    command = Command(specs, tmp_path / "r", "--executor", "local", "--workers", "2")
    assert command.status() == 0, command.output
    assert_results(tmp_path / "r", expected)
    for number in (1, 2):
        assert re.search(rf"^{number}:     test error", command.output, re.M), command.output
    assert command.output.count("Table 2, profile smoke") == 1, "only the parent prints the table"
    again = Command(specs, tmp_path / "r", "--executor", "local", "--workers", "2")
    assert again.status() == 0
    assert "1:" not in again.output
    assert "Table 2, profile smoke" in again.output


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_save_when_the_command_is_stopped_or_killed(
    specs: Path, expected: Store, tmp_path: Path, number: signal.Signals
) -> None:
    command = Command(specs, tmp_path / "r", "--executor", "local", "--workers", "2")
    command.wait_for(lambda: command.has_saved(2))
    processes = command.workers()
    command.process.send_signal(number)
    assert command.status() == (-number if number == signal.SIGKILL else 128 + number), command.output
    command.wait_for(lambda: not any(Path(f"/proc/{process}/exe").exists() for process in processes))
    records, _ = Store(tmp_path / "r").records()
    assert "partial" in {record.status for record in records}
    assert {len(record.sessions) for record in records} == {1}
    assert list((tmp_path / "r").rglob("leases/*")) == []
    again = Command(specs, tmp_path / "r", "--executor", "local", "--workers", "2")
    assert again.status() == 0, again.output
    assert_results(tmp_path / "r", expected)


@pytest.mark.full
def test_killed_worker_is_restarted(specs: Path, expected: Store, tmp_path: Path) -> None:
    command = Command(specs, tmp_path / "r", "--executor", "local", "--workers", "2")
    command.wait_for(lambda: command.has_saved(2))
    os.kill(command.workers()[0], signal.SIGKILL)
    assert command.status() == 0, command.output
    assert command.output.count("the worker was killed by SIGKILL. Restarting it.") == 1
    assert_results(tmp_path / "r", expected)


@pytest.mark.full
def test_two_workers_of_two_processes_each(
    specs: Path, expected: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shared = Workers(tuple(arguments(specs, tmp_path / "r")), tmp_path / "r", 2, 2)
    lines: list[str] = []
    with limit_seconds(300):
        statuses = local.run(shared, environments(shared, ["0", "1", "2", "3"], 2), Limits(), lines.append)
    assert statuses == [0, 0], lines
    assert_results(tmp_path / "r", expected)
    for record in Store(tmp_path / "r").records()[0]:
        assert [session.processes for session in record.sessions] == [2]


@pytest.mark.full
def test_exit_status_says_what_is_left(specs: Path, tmp_path: Path) -> None:
    late = Command(specs, tmp_path / "late", "--executor", "local", "--workers", "2", "--max-seconds", "0.001")
    damaged = tmp_path / "damaged" / "runs"
    paused = Command(specs, tmp_path / "damaged", "--stop-at", "1")
    assert (late.status(), paused.status()) == (TIME_WAS_UP, 0), late.output + paused.output
    assert "paperbench: stopped after 0 seconds; 3 runs left." in late.output
    record = next(damaged.iterdir()) / "record.json"
    record.write_text("{")
    for checkpoint in record.parent.glob("checkpoint*"):
        checkpoint.unlink()  # from which the record would be made again
    failed = Command(specs, tmp_path / "damaged", "--executor", "local", "--workers", "2", "--stop-at", "2")
    assert failed.status() == 2
    assert f"paperbench: error: 1 run failed, see above: {record.parent.name}" in failed.output
