from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from paperbench import api
from paperbench.cli.run import report_outcome
from paperbench.errors import PaperbenchError
from paperbench.runs.record import Record
from paperbench.runs.store import Store
from tests.cli.conftest import ONE_CELL, Run
from tests.helpers import ROOT, change_yaml, copy_of_photo_specs
from tests.training.gpus import GPU, OLD_DRIVER, with_gpus

SMOKE = ("--profile", "smoke", "--device", "cpu")
RATES = ("--rate", "preact_resnet110=100", "--rate", "preact_resnet164=100")


def only_record(results: Path) -> Record:
    (record,) = Store(results).records()[0]
    return record


@pytest.mark.parametrize(("options", "is_refused"), [((), True), (("--yes",), False), (("--max-seconds", "1d"), False)])
def test_days_on_a_cpu_need_a_yes(
    run: Run, taking: Callable[[float], Path], options: tuple[str, ...], is_refused: bool
) -> None:
    Path("file").touch()
    where = ("--tables", taking(10), "--results", "file/r")  # which the first run, if it is started, cannot write
    code, _, err = run("run", "table2", *ONE_CELL, *where, *options)
    assert code == 2
    assert (" days for the training steps, going by one step of" in err) == is_refused
    assert ("Add --yes" in err) == is_refused
    assert ("cannot be written" in err) != is_refused


def test_plan_without_data_cannot_be_run(tmp_path: Path) -> None:
    plan = api.plan("table2", tmp_path / "r", cells="preact", device="cpu", data=tmp_path, estimate_only=True)
    with pytest.raises(PaperbenchError, match="CIFAR-10 not found in the directory"):
        api.run(plan)
    assert not (tmp_path / "r").exists()


def test_rows_of_table5_on_request_are_planned_only_by_name(tmp_path: Path) -> None:
    usual, named = (
        api.plan("table5", tmp_path, profile="smoke", device="cpu", cells=cells).runs
        for cells in ("*", "resnet101_conv_shortcut")
    )
    assert len(usual) == 4
    assert [run.net_name for run in named] == ["original_resnet101(shortcut='conv', depth=50)"]
    assert named[0].id not in {run.id for run in usual}


@pytest.mark.full
def test_row_of_table5_on_request_trains_by_name(run: Run, tmp_path: Path) -> None:
    specs = copy_of_photo_specs(tmp_path / "specs", crop=16)
    command = ("run", "table5", "--tables", specs, "--profile", "smoke", "--device", "cpu", "--stop-at", 1)
    assert run(*command, "--cells", "resnet101_conv_shortcut", "--results", tmp_path / "r")[0] == 0
    assert only_record(tmp_path / "r").net == "original_resnet101(shortcut='conv', depth=50)"


def test_gpu_that_auto_passes_over_is_named_on_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, GPU(), init_error=OLD_DRIVER)
    (warning,) = api.plan("table2", profile="smoke", cells="preact/resnet110").warnings
    assert warning.startswith("cuda:0 is not used: The NVIDIA driver on your system is too old (found version 12020).")
    code, out, err = run("plan", "table2", *SMOKE[:2], *RATES[:2], "--cells", "preact/resnet110")
    assert (code, err) == (0, f"paperbench: warning: {warning}\n")
    assert "\nDevice cpu," in out


@pytest.mark.parametrize("cells", [("--cells", "original", "preact/*"), ("--cells", "original", "--cells", "preact/*")])
def test_several_cell_patterns_choose_the_cells_of_all(run: Run, cells: tuple[str, ...]) -> None:
    _, out, _ = run("plan", "table2", *SMOKE, *RATES, *cells)
    assert [row.split()[0] for row in out.splitlines()[3:7]] == [
        "original/resnet110",
        "preact/resnet110",
        "original/resnet164",
        "preact/resnet164",
    ]


def test_row_on_request_is_skipped_with_a_message(run: Run) -> None:
    row = "cifar10_resnet164"
    _, _, err = run("plan", "table3", *SMOKE, *RATES[2:], "--cells", "cifar10_resnet164*")
    assert "skipped row cifar10_resnet164_no_warm_up: it runs only if named in full" in err
    _, out, err = run("plan", "table3", *SMOKE, *RATES[2:], "--cells", f"{row}_no_warm_up", f"{row}/preact")
    assert err == ""
    assert "\n2 runs, " in out, "a profile's warm-up does not replace a recipe without one"


def test_values_that_are_set_name_the_profile(run: Run, quick_specs: Path) -> None:
    """Which all commands know, and in which nothing is reproduced."""
    where, chosen = ("table2", "--tables", quick_specs), (*ONE_CELL[:4], "--set", "iterations=4")
    code, out, err = run("run", *where, *chosen, *ONE_CELL[4:], "--set", "batch_size=64")
    name = "smoke+batch_size=64,iterations=4"
    assert code == 0
    assert "recipe cifar: iterations 4, warm_up learning_rate 0.01, iterations 1, drops at 2 and 3, factor 0.1," in err
    assert only_record(Path("results")).spec.profile == name
    assert f"Table 2, profile {name}: not comparable with the paper" in out
    assert f"has runs of other profiles: --profile {name} shows them." in run("compare", *where)[2]
    _, out, _ = run("status", *where[1:], "--cells", "preact")
    assert f"Table 2, profile {name} (handwritten digits (embedded)\nin fp32): 1 of 2 runs done" in out


@pytest.mark.usefixtures("no_pickles")
def test_run_in_parts_equals_a_run_in_one_go(run: Run, quick_specs: Path, trained: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    where = ("--tables", quick_specs, "--results", results, *ONE_CELL[:-2])
    command = ("run", "table2", *where, "--device", "cpu")

    code, out, err = run(*command, "--stop-at", 4)
    assert code == 0
    assert "[1/1] preact/resnet110 (preact_resnet110(depth=8), seed 0, run " in err
    assert "(at 4)" in out
    paused = only_record(results)
    assert (paused.status, paused.iteration, len(paused.sessions), paused.result) == ("partial", 4, 1, None)
    assert run(*command, "--stop-at", 4)[0] == 0
    assert only_record(results) == paused, "nothing is trained again"

    code, out, err = run(*command)
    assert code == 0
    finished = only_record(results)
    assert (finished.run, finished.status) == (paused.run, "finished")
    assert [session.last for session in finished.sessions] == [4, 6]
    assert [line.iteration for line in Store(results).directory(finished.run).history()] == [1, 2, 3, 4, 5, 6]
    assert finished.result == only_record(trained).result
    assert finished.result is not None
    assert f"{finished.result.test_error:.2f}" in out
    assert "\npaperbench compare table2 --cells preact/resnet110 --profile smoke" in out
    assert run(*command)[0] == 0
    _, out, _ = run("plan", *command[1:])
    assert "\n1 run, all finished.\n" in out
    assert "\npaperbench compare " in out
    assert only_record(results) == finished, "nothing is trained again"

    code, compared, err = run("compare", "table2", *where)
    assert (code, err) == (0, "")
    assert f" {finished.result.test_error:.2f}\n" in compared
    assert "Not comparable with the paper: profile smoke is not its experiment" in compared
    code, compared, _ = run("compare", "table2", *where, "--format", "markdown")
    assert code == 0
    assert "| full pre-activation" in compared


def test_time_limit_stops_the_command_and_counts_the_runs_left(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    command = ("run", "table2", "--tables", quick_specs, "--profile", "smoke", "--cells", "*/resnet110")
    code, _, err = run(*command, "--device", "cpu", "--results", tmp_path / "r", "--max-seconds", "0.000001")
    assert code == 75
    assert "paperbench: stopped after 0 seconds; 5 runs left." in err
    assert Store(tmp_path / "r").records()[0] == []


def test_failed_run_does_not_stop_the_others(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    command = ("run", "table2", "--tables", quick_specs, "--results", tmp_path / "r", "--profile", "smoke")
    command += ("--cells", "*act/resnet110", "--device", "cpu", "--stop-at", 1)
    damaged, other = (
        planned.id
        for planned in api.plan(
            "table2", tmp_path / "r", cells="*act/resnet110", profile="smoke", device="cpu", root=quick_specs
        ).runs
    )
    directory = Store(tmp_path / "r").directory(damaged)
    directory.path.mkdir(parents=True)
    directory.record_file.write_text("{")
    code, _, err = run(*command)
    assert code == 2
    assert f"error: {directory.record_file} is not JSON" in err
    assert f"paperbench: left out: {directory.record_file} is not JSON" in err
    assert f"paperbench: error: 1 run failed, see above: {damaged}" in err
    assert only_record(tmp_path / "r").run == other


@pytest.mark.parametrize(
    ("failed", "is_cut_short", "number", "status"),
    [
        (0, False, None, 0),  # other processes train what is left
        (1, False, None, 2),
        (0, True, None, 75),
        (1, True, None, 75),  # Slurm and Kubernetes go on with the rest
        (2, True, None, 2),
        (1, True, signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_exit_status_says_whether_to_go_on(
    quick_specs: Path, tmp_path: Path, failed: int, is_cut_short: bool, number: int | None, status: int
) -> None:
    where = {"root": quick_specs, "profile": "smoke", "device": "cpu"}
    plan = api.plan("table2", tmp_path / "r", cells="preact/resnet110", seeds=2, **where)
    outcome = api.conclude(plan, plan.runs[:failed], is_cut_short, number)
    assert report_outcome(outcome, lambda _: None) == status


def test_failed_run_that_another_process_finished_has_not_failed(trained: Path, quick_specs: Path) -> None:
    where = {"root": quick_specs, "profile": "smoke", "device": "cpu"}
    plan = api.plan("table2", trained, cells="preact/resnet110", seeds=2, **where)
    outcome = api.conclude(plan, plan.runs[:1], is_cut_short=True)
    assert (outcome.failed, outcome.remaining) == ([], plan.runs[1:])


def test_run_of_another_process_is_skipped(run: Run, trained: Path, quick_specs: Path, tmp_path: Path) -> None:
    run_id = only_record(trained).run
    theirs = Store(tmp_path / "r").lease(run_id)
    assert theirs.acquire()
    try:
        code, _, err = run("run", "table2", "--tables", quick_specs, *ONE_CELL, "--results", tmp_path / "r")
    finally:
        theirs.release()
    assert code == 0
    assert f"process {os.getpid()} is training it" in err
    assert "paperbench: 1 run left to other processes." in err
    assert Store(tmp_path / "r").records()[0] == []


ALONE = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def endless_run(quick_specs: Path, tmp_path: Path) -> list[str]:
    """The command for a run that tests its net all the time, and saves a checkpoint only when it is stopped."""
    specs = shutil.copytree(quick_specs, tmp_path / "specs")
    profiles = specs / "experiments" / "profiles.yaml"
    recipe = ("profiles", "smoke", "datasets", "digits", "recipe")
    monitoring = {"log_every": 1, "test_every": 1, "checkpoint_every": 1_000_000}
    change_yaml(profiles, ((*recipe, "iterations"), 1_000_000), ((*recipe, "monitoring"), monitoring))
    return ["run", "table2", "--tables", str(specs), *ONE_CELL, "--yes", "--results", str(tmp_path / "r")]


def only_partial(results: Path) -> Record:
    paused = only_record(results)
    assert paused.status == "partial"
    history = list(Store(results).directory(paused.run).history())
    assert 1 <= history[-1].iteration <= paused.iteration, "a resumed run may still owe the last line"
    return paused


@pytest.mark.usefixtures("heeded_signals")
def test_signal_pauses_the_run_and_the_same_command_resumes_it(
    run: Run, endless_run: list[str], tmp_path: Path
) -> None:
    def stop() -> None:
        while not any(path.stat().st_size for path in (tmp_path / "r").rglob("history.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=stop, daemon=True)
    thread.start()
    code, out, err = run(*endless_run)
    thread.join()
    assert code == 128 + signal.SIGTERM
    assert "paused at iteration" in err
    assert "stopped" not in err, "the handler has printed that it is stopping"
    assert "(at " in out
    paused = only_partial(tmp_path / "r")
    assert run(*endless_run, "--stop-at", paused.iteration + 2)[0] == 0
    resumed = only_record(tmp_path / "r")
    assert [session.last for session in resumed.sessions] == [paused.iteration, paused.iteration + 2]


@pytest.mark.full
@pytest.mark.usefixtures("heeded_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_pauses_a_process(endless_run: list[str], tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "paperbench", *endless_run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ALONE) as process:
        assert process.stderr is not None
        assert any("test error" in line for line in process.stderr)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "paused at iteration" in err
    only_partial(tmp_path / "r")


@pytest.mark.full
@pytest.mark.usefixtures("heeded_signals")
def test_hangup_does_not_stop_a_run_under_nohup(endless_run: list[str], tmp_path: Path) -> None:
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-m", "paperbench", *endless_run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ALONE) as process:
        assert process.stderr is not None
        assert any("test error" in line for line in process.stderr)
        process.send_signal(signal.SIGHUP)
        assert any("test error" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)  # after a heeded SIGHUP, it would exit at once
        _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "paused at iteration" in err
    assert only_record(tmp_path / "r").status == "partial"


@pytest.mark.full
@pytest.mark.usefixtures("heeded_signals")
def test_run_survives_a_closed_terminal_and_obeys_a_later_signal(endless_run: list[str], tmp_path: Path) -> None:
    """As after Ctrl-C with `2>&1 | tee log`, which ends tee first."""
    command = [sys.executable, "-m", "paperbench", *endless_run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ALONE) as process:
        assert process.stdout is not None
        assert any("test error" in line for line in process.stdout)
        process.stdout.close()
        (history,) = (tmp_path / "r").rglob("history.jsonl")
        n_lines = len(history.read_text().splitlines())
        while len(history.read_text().splitlines()) < n_lines + 3:
            assert process.poll() is None, "it trains on"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 128 + signal.SIGINT
    assert only_record(tmp_path / "r").iteration >= n_lines + 3
