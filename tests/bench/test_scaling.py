"""`paperbench bench --scaling`: what several processes gain by training one run together."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.bench.figures import ScalingFigures, ScalingReport
from paperbench.bench.scaling import measure_scaling, scaling_training
from paperbench.bench.text import SCALING_LEGEND, format_scaling
from paperbench.bench.timing import Rounds
from paperbench.cli.main import main
from paperbench.training.processes import Processes
from paperbench.typed import from_json
from tests.training.together import CPU, together

FIGURES = ScalingFigures(
    net="preact_resnet1001",
    parameters=10_000_000,
    batch_size=128,
    bn_group=64,
    engine="eager",
    precision="fp32",
    processes=2,
    threads=1,
    is_equal=True,
    alone=(4.0, 4.0, 4.0),
    alone_all_threads=(2.0, 3.0, 2.0),
    together=(2.0, 2.5, 2.5),
    gradients=(0.5, 0.5, 0.5),
    all_reduce=(0.25, 0.25, 0.25),
    statistics=(0.125, 0.125, 0.125),
    agreement=(0.0, 0.0, 0.0),
)


def rows_of(text: str) -> set[str]:
    return {" ".join(line.split()) for line in text.splitlines()}


def test_tables_compare_within_rounds() -> None:
    text = format_scaling(FIGURES)
    assert {
        "1 process 32.0",
        "1 process, 2 threads 64.0 2.00 ±0.67",
        "2 processes 51.2 1.60 ±0.40 80% 1.00 ±0.20",
        "sum of gradients 500.00 20.0%",
        "the rest 1875.00 75.0%",
        "all_reduce instead 250.00 10.0%",
        "Parameters as by one process, bit for bit.",
    } <= rows_of(text)
    assert max(map(len, [*text.splitlines(), *SCALING_LEGEND.splitlines()])) <= 80


def test_differing_parameters_are_named_and_gpus_have_no_row_for_threads() -> None:
    text = format_scaling(replace(FIGURES, is_equal=False, alone_all_threads=()))
    assert "WRONG: parameters differ from one process's." in text
    assert "2 processes 51.2 1.60 ±0.40 80%" in rows_of(text)
    assert "1 process, " not in text


@pytest.mark.parametrize("is_changed", [pytest.param(False, marks=pytest.mark.full), True])
def test_two_processes_are_measured_and_compared_with_one(is_changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(processes: Processes) -> ScalingFigures | None:
        if is_changed:  # the sum of gradients lacks those of process 1
            monkeypatch.setattr(Processes, "summed", lambda self, tensors: tensors)
        training = scaling_training("preact_resnet20", 8, CPU)
        training = replace(
            training, recipe=replace(training.recipe, batch_norm=replace(training.recipe.batch_norm, group=4))
        )
        return measure_scaling(training, "eager", "fp32", processes, Rounds(2, 0.001))

    found, other = together(2, work)
    assert other is None
    assert found.is_equal is not is_changed
    assert (found.processes, found.threads, found.batch_size, found.bn_group) == (2, 1, 8, 4)
    for part in ("alone", "alone_all_threads", "together", "gradients", "all_reduce", "statistics", "agreement"):
        assert len(getattr(found, part)) == 2
        assert all(seconds > 0 for seconds in getattr(found, part))


def test_photographs_keep_groups_of_32_if_they_divide_the_batch() -> None:
    paper, small, odd = (scaling_training("preact_resnet18", size, CPU).recipe for size in (None, 64, 24))
    assert (paper.batch_size, paper.batch_norm.group) == (256, 32)
    assert (small.batch_size, small.batch_norm.group) == (64, 32)
    assert (odd.batch_size, odd.batch_norm.group) == (24, 24)


def test_a_single_process_says_how_to_start_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--scaling"]) == 2
    assert "torchrun --nproc-per-node 2 -m paperbench bench --scaling" in capsys.readouterr().err


def test_several_processes_measure_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    for name, value in launch.items():
        monkeypatch.setenv(name, str(value))
    assert main(["bench", "--loader"]) == 2
    assert "only --scaling" in capsys.readouterr().err


@pytest.mark.full
def test_command_prints_once_and_writes_what_the_schema_says(tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    command = "bench --scaling --device cpu --models preact_resnet20 --batch-size 128 --rounds 1 --seconds 0.01 --json"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "paperbench"]
    done = subprocess.run(
        [*start, *command.split(), str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Efficiency:") == 1
    (net,) = from_json(ScalingReport, file.read_text()).nets
    assert net.is_equal
    assert f"{net.batch_size / net.together[0]:,.1f}" in done.stdout
