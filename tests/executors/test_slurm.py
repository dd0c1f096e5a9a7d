"""The script of a Slurm job, run with stand-ins for Slurm's commands, and its submission."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench.cli.main import main
from paperbench.errors import PaperbenchError
from paperbench.executors import Workers
from paperbench.executors.slurm import script, submit
from tests.executors.commands import write_program
from tests.golden import assert_golden
from tests.helpers import copy_of_tiny_specs
from tests.training.gpus import GPU, with_gpus

COMMAND = ("run", "table2", "--cells", "a b/*", "--results", "it's 100% $HOME")


class Slurm:
    """Stand-ins for Slurm's commands, which write down how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._calls = folder, folder / "calls"

    def answer(self, command: str, text: str = "", status: int = 0) -> None:
        """Let a command print a text and exit."""
        self.let(command, f"printf '%s\\n' {shlex.quote(text)}; exit {status}")

    def let(self, command: str, code: str) -> None:
        """Let a command run code of bash."""
        write_program(self.folder / command, f'echo "{command} $*" >> {self._calls}\n{code}')

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def times(self, command: str) -> int:
        return sum(call.startswith(command) for call in self.calls)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    made = Slurm(folder)
    made.answer("squeue")
    made.answer("sbatch", "7;cluster")
    made.answer("scontrol")
    return made


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    workers = Workers(COMMAND, tmp_path / "it's 100% $HOME", 3, 1)
    (workers.results / "slurm").mkdir(parents=True)
    return workers


def run(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as job 7."""
    variables = {**os.environ, "SLURM_JOB_ID": "7", **environment}
    return subprocess.run(["bash"], input=text, env=variables, capture_output=True, text=True, timeout=60)


def options_of(text: str) -> list[str]:
    return [word for line in text.splitlines() if line.startswith("#SBATCH") for word in line.split()[1:]]


def test_script_is_as_printed(workers: Workers) -> None:
    made = replace(workers, gpus_per_run=4, imports={"PYTHONPATH": "/of/paperbench"})
    text = script(made, "gpu", "4:00:00", ["--constraint=a100", "--job-name=mine"], ["module load cuda"])
    for varying, name in ((sys.executable, "python"), (made.name, "NAME"), (str(workers.results.parent), "/shared")):
        text = text.replace(varying, name)
    assert_golden("slurm_script", text)


@pytest.mark.parametrize(("gpus", "ntasks"), [(0, 1), (1, 1), (4, 4)])
def test_gpus_are_those_of_a_run(gpus: int, ntasks: int) -> None:
    options = options_of(script(Workers(COMMAND, Path("r"), 1, gpus), None, None))
    assert [option for option in options if "gpu" in option] == ([f"--gres=gpu:{gpus}"] if gpus else [])
    assert f"--ntasks={ntasks}" in options
    assert "--nodes=1" in options


def test_option_without_dashes_is_refused(workers: Workers) -> None:
    with pytest.raises(PaperbenchError, match="an option with its dashes, such as `--sbatch=--qos=low`, not 'qos=low'"):
        script(workers, None, None, ["qos=low"])


@pytest.mark.parametrize("bad", ["\n#SBATCH --wrap=id", "\r", "\t", "\x1b[2J", "\x85", "\u2028"])
def test_control_characters_never_reach_a_line_for_sbatch(bad: str, tmp_path: Path) -> None:
    """A command of `--setup` may have several lines: it is code, and sbatch's lines end before it."""
    given: list[tuple[Any, ...]] = [("gpu" + bad, None), (None, "1:00" + bad), (None, None, ["--qos=low" + bad])]
    for results, *options in [(tmp_path / bad, None, None), *((tmp_path, *one) for one in given)]:
        with pytest.raises(PaperbenchError, match=r"sbatch cannot be given .*remove line breaks"):
            script(Workers(COMMAND, results, 1, 1), *options)
    assert "\na\nb\n" in script(Workers(COMMAND, tmp_path, 1, 1), None, None, setup=["a\nb"])


def test_name_is_that_of_command_gpus_and_results(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r")
    names = [
        Workers(("run", table, f"--results={tmp_path / results}"), tmp_path / results, 1, gpus).name
        for table in ("table1", "table2")
        for gpus in (1, 4)
        for results in ("r", "link", "s")
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 8


def test_command_gets_its_arguments_and_processors(workers: Workers, slurm: Slurm) -> None:
    slurm.let("srun", 'printf "<%s>" "$@"; echo " $SRUN_CPUS_PER_TASK $PYTHONPATH"')
    setup = ["export PYTHONPATH=/of/setup", "echo first"]
    done = run(script(workers, None, None, setup=setup), SLURM_CPUS_PER_TASK="12")
    assert (done.returncode, done.stderr) == (0, "")
    first, call = done.stdout.splitlines()
    assert first == "first"
    assert call.startswith("<--export=ALL>"), "else a job of --export=NONE would not say what it saves"
    assert call.endswith("".join(f"<{word}>" for word in ("paperbench", *COMMAND)) + " 12 /of/setup")
    assert "".join(f"<{name}={value}>" for name, value in workers.imports.items()) in call


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", ""])
@pytest.mark.parametrize("status", [0, 2, 75, 137, 138, 143])
def test_only_a_running_job_with_work_left_is_requeued(workers: Workers, slurm: Slurm, state: str, status: int) -> None:
    slurm.answer("srun", status=status)
    slurm.answer("squeue", f"{state} 0" if state else "")
    done = run(script(workers, None, None))
    is_requeued = state == "RUNNING" and status in (75, 137, 138, 143)
    assert slurm.times("scontrol requeue 7") == is_requeued
    assert done.returncode == (0 if is_requeued else status)
    assert (workers.results / "slurm" / "7.starts").exists() == (is_requeued or not state)


def test_setup_may_let_the_shell_exit_on_errors(workers: Workers, slurm: Slurm) -> None:
    slurm.answer("srun", status=75)
    slurm.answer("squeue", "RUNNING 0")
    assert run(script(workers, None, None, setup=["set -euo pipefail"])).returncode == 0
    assert slurm.times("scontrol requeue 7") == 1
    assert run(script(workers, None, None, setup=["set -e", "false"])).returncode == 1
    assert slurm.times("srun") == 1


@pytest.mark.parametrize("command", ["squeue", "scontrol"])
def test_busy_slurm_is_asked_again(workers: Workers, slurm: Slurm, command: str) -> None:
    slurm.let("sleep", "")
    slurm.answer("srun", status=75)
    slurm.answer("squeue", "RUNNING 0")
    answer = "printf 'Welcome to 2 nodes\\nQUOTA 3 of 9\\n%-20s%-20s\\n' RUNNING 0"
    slurm.let(command, f"[ -e {slurm.folder}/busy ] && {answer} || {{ touch {slurm.folder}/busy; exit 1; }}")
    assert run(script(workers, None, None)).returncode == 0
    assert slurm.times("scontrol requeue 7") == 1 + (command == "scontrol")
    slurm.let(command, "exit 1")
    done = run(script(workers, None, None))
    assert done.returncode == 75
    assert f"{command} keeps failing, so this job ends" in done.stderr


def test_count_of_starts_survives_a_requeue_by_slurm(workers: Workers, slurm: Slurm) -> None:
    slurm.answer("srun", status=0)  # as it does when its node is lost
    slurm.answer("squeue", "COMPLETING 2")
    run(script(workers, None, None), SLURM_RESTART_COUNT="1")
    assert (workers.results / "slurm" / "7.starts").exists()


def test_job_without_progress_ends_after_four_starts(workers: Workers, slurm: Slurm) -> None:
    slurm.answer("srun", status=75)
    slurm.answer("squeue", "RUNNING 0")
    text, of_another = script(workers, None, None), workers.results / "runs" / "a" / "record.json"
    for _ in range(3):
        assert run(text).returncode == 0
    slurm.let("srun", 'sleep 0.05; touch "$PAPERBENCH_SAVED"; exit 75')
    assert run(text).returncode == 0
    slurm.answer("srun", status=75)
    of_another.parent.mkdir(parents=True)
    for _ in range(4):
        of_another.touch()
        assert run(text).returncode == 0
    last = run(text)
    assert last.returncode == 1
    assert "has saved nothing in 4 starts" in last.stdout
    assert (slurm.times("srun"), slurm.times("scontrol")) == (8, 8)
    assert not list((workers.results / "slurm").iterdir())


def test_only_missing_jobs_are_submitted(
    workers: Workers, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "64")  # of an allocation around this process
    monkeypatch.setenv("SLURM_CONF", "kept")
    ends = f"[[ $* == *COMPLETING* ]] && {{ [ -e {tmp_path}/once ] || echo 4; touch {tmp_path}/once; exit; }}"
    slurm.let("squeue", f"{ends}; echo 5; echo 6_0")
    slurm.let("sbatch", f"env > {tmp_path}/environment; cat > {tmp_path}/stdin; echo '7;cluster'")
    assert submit(workers, "the script") == (2, ["7"])
    assert f"--name={workers.name} " in slurm.calls[0]
    assert (tmp_path / "stdin").read_text() == "the script"
    variables = (tmp_path / "environment").read_text()
    assert "SLURM_CPUS_PER_TASK" not in variables
    assert "SLURM_CONF=kept\n" in variables
    assert [call.split("--states=")[1].split()[0] for call in slurm.calls[:3]] == [
        *["COMPLETING"] * 2,  # if it is requeued, it is pending next
        "PENDING,CONFIGURING,RUNNING,SUSPENDED",
    ]
    slurm.let("squeue", f"{ends}; seq 4")
    assert submit(workers, "the script") == (4, [])


@pytest.mark.parametrize(("command", "advice"), [("squeue", "Try again"), ("sbatch", "Change --partition")])
def test_failure_of_slurm_is_told(
    workers: Workers, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, command: str, advice: str
) -> None:
    slurm.let(command, "printf 'error: it\\222s busy\n' >&2; exit 1")  # not in UTF-8
    with pytest.raises(PaperbenchError, match=f"{command} failed: error: it\ufffds busy\n{advice}"):
        submit(workers, "the script")
    (slurm.folder / command).unlink()
    monkeypatch.setenv("PATH", str(slurm.folder))
    with pytest.raises(PaperbenchError, match=f"{command} is not on the PATH.*login node"):
        submit(workers, "the script")
    assert not list((workers.results / "leases").iterdir())


BANNER = "*** 2 nodes are down ***\nSee 12_help; and\n  12:30 maintenance\n"


def test_only_lines_that_are_ids_are_jobs(workers: Workers, slurm: Slurm) -> None:
    ids = r"5\n  6_0\n7_[1-3,9%2]\n7_[0-8:4,...]%2\n8+1"
    slurm.let("squeue", f"echo '{BANNER}'; [[ $* == *COMPLETING* ]] || echo $'{ids}'")
    slurm.answer("sbatch", f"{BANNER}70;cluster\n{BANNER}")
    assert submit(replace(workers, count=6), "the script") == (5, ["70"])
    slurm.answer("sbatch", "Welcome")
    with pytest.raises(PaperbenchError, match=r"no line with a job's id: 'Welcome'\. See `squeue"):
        submit(replace(workers, count=6), "the script")


def test_jobs_before_a_failure_are_told(workers: Workers, slurm: Slurm) -> None:
    slurm.let("sbatch", f"[ ! -e {slurm.folder}/once ] || exit 1; touch {slurm.folder}/once; echo 7")
    with pytest.raises(PaperbenchError, match=r"1 job submitted before that\.$"):
        submit(workers, "the script")


def of_table2(tmp_path: Path, *options: str) -> Sequence[str]:
    places = ("--tables", str(tmp_path / "specs"), "--results", str(tmp_path / "r"))
    cells = ("--profile", "smoke", "--cells", "preact/resnet110")
    return ("run", "table2", *places, *cells, "--executor", "slurm", *options)


def test_script_is_printed_without_slurm_and_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAPERBENCH_DATA", raising=False)
    command = ("run", "table5", "--results", str(tmp_path / "r"), "--executor", "slurm", "--print-script")
    assert main(command) == 0
    text = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=text, text=True, timeout=60).returncode == 0
    (words,) = [shlex.split(line) for line in text.splitlines() if line.startswith("srun")]
    program, *options = words[words.index("-m") + 1 :]
    # A job never trains on the CPU of a machine whose GPU fails, nor depends on sbatch's directory.
    where = {f"--data={Path.cwd()}/data", f"--results={tmp_path}/r"}
    assert program == "paperbench"
    assert set(options) == {"run", "table5", "--device=cuda", "--yes", *where}
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        (("--device", "cpu"), "--device cpu"),
        (("--precision", "tf32", "--engine", "graph"), "--device cuda"),  # no CPU has them
    ],
)
def test_jobs_are_submitted_once_the_plan_is_right(
    tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], devices: str
) -> None:
    copy_of_tiny_specs(tmp_path / "specs")
    assert main(of_table2(tmp_path, "--workers", "2", *options)) == 0
    output = capsys.readouterr().out
    assert "Submitted 2 jobs: 7, 7.\n" in output
    assert f"scancel --name={slurm.calls[0].partition('--name=')[2].split()[0]}\n" in output
    assert main(of_table2(tmp_path, *options, "--cells", "nowhere")) == 2
    if "cpu" not in options:
        assert main(of_table2(tmp_path, *options, "--gpus-per-run", "3")) == 2
        assert "3 processes cannot share its batches" in capsys.readouterr().err
    assert slurm.times("sbatch") == 2
    slurm.let("squeue", "[[ $* == *COMPLETING* ]] || echo 5")
    assert main(of_table2(tmp_path, *options)) == 0
    output = capsys.readouterr().out
    assert output.startswith(
        "Submitted 0 jobs.\nAlready in the queue, and not changed by new options of Slurm: 1 job of"
    )


def test_plan_is_for_the_gpus_of_the_jobs(
    tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of_tiny_specs(tmp_path / "specs")
    with_gpus(monkeypatch, GPU(capability=(7, 0)))  # of the login node
    assert main(of_table2(tmp_path, "--precision", "tf32")) == 0
    assert main(of_table2(tmp_path, "--results", "/proc/full")) == 2
    assert capsys.readouterr().err.startswith("paperbench: error: The remaining runs need about")
    assert slurm.times("sbatch") == 1


def test_finished_runs_need_no_jobs(tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    copy_of_tiny_specs(tmp_path / "specs")
    plain = [word for word in of_table2(tmp_path, "--device", "cpu") if word not in ("--executor", "slurm")]
    assert main(plain) == 0
    assert main(of_table2(tmp_path, "--device", "cpu")) == 0
    assert "All runs are finished." in capsys.readouterr().out
    assert not slurm.calls
