from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import paperbench
from paperbench.cli import list_tables
from paperbench.cli import run as run_command
from paperbench.runs.record import Record
from paperbench.runs.store import Store
from tests.cli.conftest import Run
from tests.helpers import ROOT, a_record, copy_of_specs, edit, paperbench_process, random_images, write_record

ONE_RUN = ["--profile", "smoke", "--cells", "preact/resnet110", "--device", "cpu"]


SIZES = {"table1": (11, 5), "table2": (10, 5), "table3": (12, 5), "table4": (8, 5), "table5": (16, 3)}
"""Cells and seeds of each table."""


def test_list_names_tables_and_profiles(run: Run) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert {line[0]: (int(line[1]), int(line[2])) for line in lines if line and line[0] in SIZES} == SIZES
    for profile in ("paper", "shallow", "smoke"):
        assert f"\n{profile} " in out


def test_show_prints_published_numbers_with_sources_disputes_recipe_and_nets(run: Run) -> None:
    code, out, _ = run("show", "table2")
    assert code == 0
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert lines["original Residual Unit"][-3:] == ["4(a)", "6.61", "5.93"]
    assert lines["BN after addition"][-2:] == ["8.17", "6.50"]
    for text in (
        "Table 2 of arXiv:1603.05027",
        "Published: median of 5 runs, unless noted. Medians within 0.5 percentage points count as the same, unless",
        "original/resnet110: std 0.16, from arXiv:1512.03385, Table 6",
        "preact_lowest_110: Full pre-activation has the lowest test error of all placements on ResNet-110",
        "relu_only_preact/resnet164: 5.71; the paper: 5.91",
        'table: a row "BN-only pre-activation" with 5.63 for ResNet-164; the paper: the table has no such row',
        "preact_resnet164                  164  bottleneck  CIFAR-10",
        "  iterations: 64000\n",
        "  drops: at 32000 and 48000, factor 0.1\n",
        "  augmentation: padding 4, flip yes\n",
    ):
        assert text in out
    peers = out.split("Public re-implementations:\n")[1].split("\n\n")[0].splitlines()[2:]
    assert ("original/resnet110", "6.60") in {tuple(peer.split()[:2]) for peer in peers}, "with both decimals"


def test_show_of_a_reduced_profile_names_its_nets_and_data(run: Run) -> None:
    _, out, _ = run("show", "table2", "--profile", "smoke")
    for text in (
        "preact_resnet110(depth=14)",
        "scikit-learn's",
        "  iterations: 80\n",
        "seeds: 1\n",
    ):
        assert text in out


def test_data_check_says_what_the_digits_are(run: Run) -> None:
    code, out, _ = run("data", "check", "digits")
    assert code == 0
    assert "1,437 to train on, 360 to test" in out
    assert "no: errors on it are not comparable with the paper" in out


def test_data_check_of_a_users_file_names_it_and_its_fingerprint(run: Run, tmp_path: Path) -> None:
    (x, y), data = random_images(4), tmp_path / "mine"
    data.mkdir()
    np.savez(data / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (data / "dataset.yaml").write_text("name: random pixels\norigin: a test\n")
    code, out, _ = run("data", "check", "cifar10", "--data", data)
    assert code == 0
    assert out.startswith("random pixels\n  origin       a test\n")
    assert "4 to train on, 4 to test" in out


def test_data_convert_makes_a_file_that_data_check_finds(run: Run) -> None:
    for part, label in product(("train", "test"), range(10)):
        folder = Path("images") / part / str(label)
        folder.mkdir(parents=True)
        Image.new("RGB", (32, 32), (label, 0, 0)).save(folder / "one.png")
    code, out, _ = run("data", "convert", "images", "mine/cifar10.npz")
    assert code == 0
    assert "10 to train on, 10 to test" in out
    assert run("data", "check", "cifar10", "--data", "mine") == (0, out, "")
    assert run("data", "convert", "images", "mine/other.npz", "--dataset", "cifar10")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show tabel2", "Unknown table 'tabel2'. Did you mean 'table2'? `paperbench list` lists all tables."),
        ("run table2 --profile smok", "Unknown profile 'smok'. Did you mean 'smoke'?"),
        ("run table2 --cells preact/resnet11", "matches 'preact/resnet11'. Did you mean 'preact/resnet110'?"),
        ("data download cifar", "Unknown data set 'cifar'. Did you mean 'cifar10'?"),
        ("data download digits", "nothing to download"),
        ("data convert . other.npz", "Name the new file cifar10.npz or cifar100.npz; under another name"),
        ("data convert . cifar10.npz", "has neither a folder cifar-10-batches-py/ with the original files, nor fold"),
        ("run table2 --device tpu", "Unknown device 'tpu'. Use auto, cpu, cuda or cuda:N."),
        ("run table2 --device mps", "paperbench runs on cpu and cuda, not on 'mps'."),
        (
            "run table2 --device cpu --precision fp23",
            "Unknown precision 'fp23'. Known: fp32, tf32, bf16-fp32-stream, bf16.",
        ),
        ("run table2 --device cpu --precision tf32", "Precision tf32 needs an NVIDIA GPU"),
        ("run table2 --device cpu --engine jit", "Unknown engine 'jit'. Known: auto, eager, graph, compile."),
        (
            "run table2 --device cpu --engine graph",
            "Engine graph: CUDA graphs need an NVIDIA GPU. Use `--engine auto`.",
        ),
        ("run table2", "CIFAR-10 is not in data. Any one of these will do:"),
        ("data check cifar10", "CIFAR-10 is not in data. Any one of these will do:"),
        (
            "list --tables .",
            ". does not contain the directories experiments/ and expected/.",
        ),
        ("verify --data .", "--data needs --rerun. Add that, or leave --data out."),
        ("verify --device cpu", "--device needs --rerun. Add that, or leave --device out."),
        ("compare table2", "results does not exist. Name the one with the results (`--results`), or make one"),
    ],
)
def test_what_the_user_can_mend_is_one_clear_message(run: Run, arguments: str, message: str) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("paperbench: error: ")
    assert err.count("paperbench: error") == 1
    assert message in err
    assert "Traceback" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(run: Run) -> None:
    code, _, err = run("run", "table2", "--device", "cuda")
    assert code == 2
    assert "sees no GPU here. Use `--device cpu`." in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run table2 --stop-at 0", "argument --stop-at: must be a whole number from 1 up, not '0'"),
        ("run table2 --seeds 1001", "argument --seeds: must be at most 1000, not 1001"),
        ("compare table2 --cells a/* --cells b/*", "--cells was given twice; give one pattern"),
        ("run table2 --seeds 2.5", "argument --seeds: must be a whole number from 1 up, not '2.5'"),
        ("run table2 --max-seconds -1", "argument --max-seconds: must be a positive number of seconds, not '-1'"),
        ("run table2 --max-seconds 5m", "argument --max-seconds: must be a positive number of seconds, not '5m'"),
        ("compare table2 --format latxe", "argument --format: invalid choice: 'latxe'"),
        ("run", "the following arguments are required: table"),
        ("compare table2 --result x", "unrecognized arguments: --result x"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_the_usage(run: Run, arguments: str, message: str) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("usage: paperbench")
    assert message in err


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("run", "table2", "--profile", "smoke", "--dry-run", "--seeds", 2, "--device", "cpu")
    assert code == 0
    rows = out.splitlines()[2:-2]
    assert len(rows) == 20
    assert rows[0].split()[1:4] == ["original_resnet110(depth=14)", "0", "original/resnet110"]
    assert [row.split()[2] for row in rows] == ["0"] * 10 + ["1"] * 10
    assert "\n20 runs, 1,600 iterations to do, about 5" in out
    assert out.endswith(" MB of disk to be filled.\n")
    assert list(tmp_path.iterdir()) == []
    _, out, _ = run("run", "table2", "--profile", "smoke", "--dry-run", "--cells", "preact", "--stop-at", 30)
    assert "2 runs, 60 iterations to do, about " in out


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ("file", "file is not a directory. Choose another one (`--results DIR`)."),
        ("file/results", "cannot be written: Not a directory. Choose another folder (`--results DIR`)"),
    ],
)
def test_a_results_directory_that_cannot_be_written_is_told(run: Run, results: str, message: str) -> None:
    Path("file").touch()
    code, out, err = run("run", "table2", "--profile", "smoke", "--cells", "preact/resnet110", "--results", results)
    assert (code, out) == (2, "")
    assert message in err


def test_tables_of_the_users_own_are_read(run: Run, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    edit(specs / "experiments/table2.yaml", "title: Test error (%)", "title: My error (%)")
    assert "My error (%)" in run("list", "--tables", specs)[1]
    edit(specs / "experiments/table2.yaml", "recipe: cifar", "recipee: cifar")
    code, _, err = run("list", "--tables", specs)
    assert code == 2
    assert f"{specs / 'experiments/table2.yaml'}:5: recipee: unknown key. Did you mean 'recipe'?" in err


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)]
)
def test_waiting_threads_leave_the_cores_to_others_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    run_command.wait_without_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


def test_an_interrupt_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(list_tables, "execute", interrupted)
    assert run("list") == (130, "", "paperbench: interrupted; what was checkpointed is kept.\n")


def test_the_command_line_works_as_a_process(tmp_path: Path) -> None:
    version = paperbench_process("--version", cwd=tmp_path)
    assert (version.returncode, version.stdout, version.stderr) == (0, f"paperbench {paperbench.__version__}\n", "")
    wrong = paperbench_process("show", "tabel2", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines() == [
        "paperbench: error: Unknown table 'tabel2'. Did you mean 'table2'? `paperbench list` lists all tables."
    ]


def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)  # the pipe breaks when the buffer is written
    command = [sys.executable, "-m", "paperbench", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, env=environment, cwd=tmp_path)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def quick_specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped specs with a smoke profile of a few iterations on nets of 8 and 11 layers."""
    specs = copy_of_specs(tmp_path_factory.mktemp("specs"))
    profiles = specs / "experiments" / "profiles.yaml"
    for old, new in (
        ("depth: {basic: 14, bottleneck: 20, one_layer: 14}", "depth: {basic: 8, bottleneck: 11, one_layer: 8}"),
        ("batch_size: 64", "batch_size: 32"),
        ("iterations: 80", "iterations: 6"),
        ("iterations: 5}", "iterations: 1}"),
        ("at: [50, 65]", "at: [3, 5]"),
        ("{log_every: 20, test_every: 40, checkpoint_every: 40}", "{log_every: 1, test_every: 3, checkpoint_every: 2}"),
    ):
        edit(profiles, old, new)
    return specs


def only_record(results: Path) -> Record:
    (record,) = Store(results).records()[0]
    return record


def test_a_table_is_run_in_parts_and_then_only_compared(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    where = ["--tables", quick_specs, "--results", results, "--profile", "smoke", "--cells", "preact/resnet110"]
    command = ["run", "table2", *where, "--device", "cpu"]

    code, out, err = run(*command, "--stop-at", 4)
    assert code == 0
    assert "[1/1] preact/resnet110 (preact_resnet110(depth=8), seed 0, run " in err
    assert "to iteration 4 of 6" in err
    assert "paused at iteration 4 as asked; a later --stop-at, or none, continues it" in err
    assert "(at 4)" in out
    paused = only_record(results)
    assert (paused.status, paused.iteration, len(paused.sessions), paused.result) == ("partial", 4, 1, None)

    code, _, err = run(*command, "--stop-at", 4)
    assert code == 0
    assert "partial at iteration 4 already" in err
    assert only_record(results) == paused

    code, out, err = run(*command)
    assert code == 0
    assert "to iteration 6, continued at 4" in err
    finished = only_record(results)
    assert (finished.run, finished.status) == (paused.run, "finished")
    assert [session.last for session in finished.sessions] == [4, 6]
    assert finished.result is not None
    assert f" {finished.result.test_error:.2f}\n" in out
    iterations = [line.iteration for line in Store(results).directory(finished.run).history()]
    assert iterations == [1, 2, 3, 4, 5, 6]

    code, out, err = run(*command)
    assert code == 0
    assert "finished at iteration 6 already" in err
    assert only_record(results) == finished, "nothing was done again"

    assert run(*command, "--results", tmp_path / "in one go")[0] == 0
    assert only_record(tmp_path / "in one go").result == finished.result

    code, compared, err = run("compare", "table2", *where)
    assert (code, err) == (0, "")
    assert compared == out
    assert f" {finished.result.test_error:.2f}\n" in compared
    assert "Not comparable with the paper: profile smoke is not its experiment" in compared
    assert "6.37" in compared

    code, compared, _ = run("compare", "table2", *where, "--format", "markdown")
    assert code == 0
    assert "| full pre-activation" in compared


def test_the_number_of_runs_asked_for_is_the_one_fixed_beforehand_but_for_an_extension(
    run: Run, quick_specs: Path, tmp_path: Path
) -> None:
    command = ["run", "table2", "--tables", quick_specs, *ONE_RUN, "--results", tmp_path / "r"]
    assert "Profile smoke; 1 run per cell, fixed beforehand\n" in run(*command, "--seeds", 2)[1]
    assert "Profile smoke; 3 runs per cell, fixed beforehand" in run(*command, "--seeds", 3)[1]


def test_a_row_that_must_be_named_in_full_is_told_of(run: Run) -> None:
    command = ["run", "table3", "--profile", "smoke", "--dry-run", "--device", "cpu"]
    _, _, err = run(*command, "--cells", "cifar10_resnet164*")
    assert "not run: cifar10_resnet164_no_warm_up, which must be named in full" in err
    _, out, err = run(*command, "--cells", "cifar10_resnet164_no_warm_up")
    assert err == ""
    assert "cifar10_resnet164_no_warm_up/preact" in out
    _, standard, _ = run(*command, "--cells", "cifar10_resnet164/preact")
    ids = [text.splitlines()[2].split()[0] for text in (out, standard)]
    assert ids[0] != ids[1], "a profile's warm-up is none for a recipe without"


def test_when_the_time_is_over_the_runs_still_to_do_are_counted(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    command = ["run", "table2", "--tables", quick_specs, "--profile", "smoke", "--cells", "*/resnet110"]
    code, _, err = run(*command, "--device", "cpu", "--results", tmp_path / "r", "--max-seconds", "0.000001")
    assert code == 0
    assert "paperbench: 1e-06 seconds are over; runs still to do: 5. The same command continues." in err
    assert Store(tmp_path / "r").records()[0] == []


def test_runs_that_fail_are_named_at_the_end_and_the_others_are_done(
    run: Run, quick_specs: Path, tmp_path: Path
) -> None:
    command = ["run", "table2", "--tables", quick_specs, "--results", tmp_path / "r", "--profile", "smoke"]
    command += ["--cells", "*act/resnet110", "--device", "cpu"]
    _, plan, _ = run(*command, "--dry-run")
    ids = [line.split()[0] for line in plan.splitlines()[2:4]]
    directory = Store(tmp_path / "r").directory(ids[0])
    directory.path.mkdir(parents=True)
    directory.record_file.write_text("{")
    code, out, err = run(*command)
    assert code == 2
    assert f"error: {directory.record_file} is not JSON" in err
    assert f"paperbench: error: runs that failed, see above: {ids[0]}" in err
    assert only_record(tmp_path / "r").run == ids[1]
    assert f"{ids[1]}  preact_resnet110(depth=8)" in out


def test_a_run_that_another_process_holds_is_passed_over(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    common = ["run", "table2", "--tables", quick_specs, *ONE_RUN]
    _, out, _ = run(*common, "--results", tmp_path / "r", "--dry-run")
    run_id = out.splitlines()[2].split()[0]
    theirs = Store(tmp_path / "r").lease(run_id)
    assert theirs.take()
    with theirs.held():
        code, _, err = run(*common, "--results", tmp_path / "r")
    assert code == 0
    assert f"process {os.getpid()} works on it" in err
    assert "paperbench: runs left to other processes: 1." in err
    assert Store(tmp_path / "r").records()[0] == []


def test_a_run_complains_of_damaged_records_of_other_runs(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    directory = Store(tmp_path / "r").directory("damaged-s0")
    directory.path.mkdir(parents=True)
    directory.record_file.write_text("{")
    command = ["run", "table2", "--tables", quick_specs, "--results", tmp_path / "r", *ONE_RUN]
    code, _, err = run(*command, "--stop-at", 1)
    assert code == 0
    assert f"paperbench: left out: {directory.record_file} is not JSON" in err


def test_a_table_with_nets_for_large_images_is_shown_but_not_run_yet(run: Run, tmp_path: Path) -> None:
    for profile in ("paper", "smoke"):
        code, out, _ = run("show", "table5", "--profile", profile)
        assert code == 0
        assert "ResNet-152, pre-act Residual Unit" in out
    assert "preact_resnet152/top1                not in this profile: made for other images" in out
    command = ["run", "table5", "--results", tmp_path / "r", "--cells", "preact_resnet152/*"]
    code, _, err = run(*command)
    assert code == 2
    (line,) = err.splitlines()
    assert "paperbench cannot train or test on ImageNet (ILSVRC 2012) yet: it has no loader for it." in line
    code, _, err = run(*command, "--profile", "smoke")
    assert code == 2
    assert "Cell preact_resnet152/top1 cannot run in a profile that trains on digits" in err
    assert "Choose another profile" in err
    (tmp_path / "r").mkdir()
    code, out, err = run("compare", "table5", "--results", tmp_path / "r", "--profile", "smoke")
    assert (code, err) == (0, "")
    assert "No run of this table in this profile yet." in out


ALONE = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def endless_run(specs: Path, results: Path) -> list[str]:
    """The command for a run that tests its net all the time, and saves itself only when it is stopped."""
    profiles = specs / "experiments" / "profiles.yaml"
    edit(profiles, "iterations: 6", "iterations: 1000000")
    edit(profiles, "test_every: 3, checkpoint_every: 2", "test_every: 1, checkpoint_every: 1000000")
    command = [sys.executable, "-m", "paperbench", "run", "table2", "--tables", str(specs), *ONE_RUN]
    return [*command, "--results", str(results)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_pauses_the_run_and_the_same_command_continues_it(
    quick_specs: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = endless_run(quick_specs, tmp_path / "r")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ALONE) as process:
        assert process.stderr is not None
        assert any("test error" in line for line in process.stderr)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "paused at iteration" in err
    assert "(at " in out
    record = only_record(tmp_path / "r")
    assert record.status == "partial"
    assert record.iteration >= 1
    assert [line.iteration for line in Store(tmp_path / "r").directory(record.run).history()][-1] <= record.iteration
    if number != signal.SIGTERM:
        return  # going on is the same whatever the signal was
    goal = str(record.iteration + 2)
    continued = subprocess.run([*command, "--stop-at", goal], capture_output=True, text=True, check=True, env=ALONE)
    assert f"continued at {record.iteration:,}" in continued.stderr
    again = only_record(tmp_path / "r")
    assert (again.iteration, len(again.sessions)) == (record.iteration + 2, 2)


def test_a_signal_is_obeyed_though_nobody_reads_any_more(quick_specs: Path, tmp_path: Path) -> None:
    """As after Ctrl-C with `2>&1 | tee log`, which ends tee first, or when a terminal is closed."""
    command = endless_run(quick_specs, tmp_path / "r")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ALONE) as process:
        assert process.stdout is not None
        assert any("test error" in line for line in process.stdout)
        process.stdout.close()
        (history,) = (tmp_path / "r").rglob("history.jsonl")
        then = len(history.read_text().splitlines())
        while len(history.read_text().splitlines()) < then + 3:
            assert process.poll() is None, "it trains on"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 128 + signal.SIGINT
    assert only_record(tmp_path / "r").iteration >= then + 3


def test_verify_repeats_a_run_and_names_what_was_edited(run: Run, quick_specs: Path, tmp_path: Path) -> None:
    results = tmp_path / "r"
    run("run", "table2", "--tables", quick_specs, "--results", results, *ONE_RUN)
    record = only_record(results)
    code, out, err = run("verify", results, "--rerun", 1, "--device", "cpu")
    assert (code, err) == (0, "")
    assert out.startswith(f"{results}: 1 run verified: 1 finished.\nrepeated: {record.run}, iterations 1 to ")
    assert "on cpu: every loss and error is the recorded one, bit for bit.\n" in out
    assert out.endswith("OK: all files verified.\n")
    code, out, _ = run("verify", results, "--rerun", 2, "--device", "cpu")
    assert code == 0
    assert "Repeated 1 of the 2 requested runs; 1 ended without a problem." in out
    history = Store(results).directory(record.run).history_file
    history.write_text(history.read_text().replace('"train_loss":2.', '"train_loss":1.', 1))
    code, out, _ = run("verify", results)
    assert code == 1
    assert f"problem: {history} was edited: its first 6 lines are not those that its record was written with." in out
    assert out.endswith("Not OK: see above.\n")


def test_verify_without_the_data_of_a_run_says_that_it_was_not_repeated(run: Run, tmp_path: Path) -> None:
    record = a_record()
    directory = write_record(Store(tmp_path), record)
    code, out, _ = run("verify", tmp_path)
    assert code == 1
    assert f"problem: {directory.history_file} was cut short: it has 0 of the" in out
    record_file = directory.record_file
    record_file.rename(tmp_path / "kept")
    code, _, err = run("verify", tmp_path, "--rerun", 1)
    assert code == 2
    assert "No run could be repeated: the lines above say why." in err


def test_verify_reads_results_from_elsewhere(run: Run, tmp_path: Path) -> None:
    entry = ("--seed", 3, "--error", 6.41, "--source", "A. Author", "--results", tmp_path)
    run("record", "table2", "original/resnet164", *entry)
    code, out, _ = run("verify", tmp_path)
    assert (code, out) == (0, f"{tmp_path}: 0 runs and 1 result from elsewhere verified.\nOK: all files verified.\n")
    (path,) = (tmp_path / "external").iterdir()
    path.write_text(path.read_text().replace("6.41", "6.14"))
    code, out, _ = run("verify", tmp_path)
    assert code == 1
    assert f"problem: {path} does not have the sha256 of its values" in out


def test_verify_of_nothing(run: Run, tmp_path: Path) -> None:
    code, _, err = run("verify", tmp_path)
    assert code == 2
    assert f"{tmp_path} has no folder runs/ or external/. Name the results directory around it." in err
    code, _, err = run("verify", tmp_path / "missing")
    assert code == 2
    assert "missing does not exist. Name a results directory." in err
