from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.bench.breakdown import Breakdown, Ceilings, Row
from paperbench.bench.decisions import BatchNormRow, Checks, Repetition, summarise
from paperbench.bench.figures import BenchReport, Kind, NetFigures, ScalingReport, Variant, VariantFigures
from paperbench.bench.setup import machine_facts
from paperbench.typed import to_json
from tests.bench.test_scaling import FIGURES

MACHINE = machine_facts(torch.device("cpu"))


def summary_of(directory: Path, name: str, content: Any) -> list[str]:
    """The summary's lines for one file, each in one piece."""
    (directory / name).write_text(content if isinstance(content, str) else to_json(content))
    return summarise(directory).replace("\n    ", " ").splitlines()


def steps(**milliseconds: float | None) -> Breakdown:
    """`_` in a name stands for a comma."""
    rows = tuple(
        Row(f"step, {name.replace('__', ', ').replace('_', ' ')}", ms, problem=None if ms else "no such kernel")
        for name, ms in milliseconds.items()
    )
    return Breakdown(1, MACHINE, "preact_resnet110", "compile", "fp32", 128, 64, Ceilings(1, 1, 1), (), rows)


def test_setting_changes_if_it_is_faster_by_its_threshold(tmp_path: Path) -> None:
    found = steps(
        contiguous=10.0,
        channels=9.6,
        contiguous__combo_kernels=9.9,
        contiguous__not_deterministic=9.0,
        contiguous__not_deterministic__timed=7.0,
    )
    assert summary_of(tmp_path, "breakdown-110-fp32.json", found) == [
        "step of preact_resnet110, compile fp32, as trained: contiguous 10.00 ms",
        "  channels 9.60 ms, 1.04 times as fast -> change memory_layout in training/precision.py",
        "  contiguous, combo kernels 9.90 ms, 1.01 times as fast -> keep what is trained",
        "  contiguous, not deterministic 9.00 ms, 1.11 times as fast -> keep what is trained",
        "  contiguous, not deterministic, timed 7.00 ms, 1.43 times as fast -> change set_arithmetic in "
        "training/precision.py: look for faster deterministic algorithms",
    ]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "look into overlapping the exchange with the backward pass"),
        ({"gradients": (0.25, 0.25, 0.25)}, "keep the exchange"),
        ({"is_equal": False}, "DIFFERENT from one process: train no run with several"),
    ],
)
def test_exchange_overlaps_if_it_takes_long(tmp_path: Path, changes: dict[str, Any], verdict: str) -> None:
    found = ScalingReport(1, MACHINE, (replace(FIGURES, **changes),))
    share = "10.0%" if "gradients" in changes else "20.0%"
    assert summary_of(tmp_path, "scaling.json", found) == [
        f"preact_resnet1001, eager fp32, 2 processes: 1.60 times as fast as one, sum of gradients {share} -> {verdict}"
    ]


def test_setting_that_failed_is_not_chosen(tmp_path: Path) -> None:
    lines = summary_of(tmp_path, "breakdown-x.json", steps(contiguous=10.0, channels=None))
    assert lines[1] == "  channels: no such kernel -> keep what is trained"


def figures(kind: Kind, engine: str, step: float | None, first: float = 1.0, precision: str = "tf32") -> VariantFigures:
    if step is None:
        return VariantFigures(Variant(kind, engine, precision), "wrong step", "step 1: loss 7")
    return VariantFigures(
        Variant(kind, engine, precision), "measured", None, first, (step,), images_per_second=128 / step
    )


def bench(*variants: VariantFigures) -> BenchReport:
    return BenchReport(1, MACHINE, (NetFigures("preact_resnet110", 1, 128, 64, 1, variants, None),))


@pytest.mark.parametrize(
    ("seconds_of_compile", "first_step", "verdict"),
    [
        (0.01, 51.0, "compile pays off from 5,000 iterations -> keep COMPILE_MIN_ITERATIONS (10,000)"),
        (0.01, 301.0, "compile pays off from 30,000 iterations -> change COMPILE_MIN_ITERATIONS (10,000)"),
        (0.01, 2.0, "compile pays off from 100 iterations -> change COMPILE_MIN_ITERATIONS (10,000)"),
        (0.02, 51.0, "compile is not faster than graph -> engine_candidates in training/engine.py: no compile"),
    ],
)
def test_break_even_decides_when_to_compile(
    tmp_path: Path, seconds_of_compile: float, first_step: float, verdict: str
) -> None:
    graph, compiled = (
        figures("paperbench", *of) for of in (("graph", 0.02), ("compile", seconds_of_compile, first_step))
    )
    lines = summary_of(tmp_path, "bench-110.json", bench(figures("plain", "eager", 0.04), graph, compiled))
    assert lines[0].startswith("preact_resnet110, images/s: plain loop tf32 3,200, graph tf32 6,400, compile tf32 ")
    assert any(line.startswith(f"  {verdict}") for line in lines)


def test_speed_is_compared_with_what_counting_allows(tmp_path: Path) -> None:
    fast, slow = figures("paperbench", "graph", 0.01), figures("paperbench", "graph", 0.01, precision="bf16")
    lines = summary_of(tmp_path, "bench-110.json", bench(fast, slow, figures("paperbench", "compile", None)))
    assert "  preact_resnet110, compile tf32: wrong step: step 1: loss 7" in lines


@pytest.mark.parametrize(
    ("cudnn", "milliseconds", "verdict"),
    [
        (None, 0.5, "cuDNN's error inf (mean 1000, spread 1), 0.500 ms -> keep torch's"),
        (1e-3, 0.5, "-> keep torch's"),
        (2e-6, 0.95, "-> keep torch's"),
        (2e-6, 0.5, "-> cuDNN may be used"),
    ],
)
def test_cudnn_returns_to_batch_norm_if_exact_and_faster(
    tmp_path: Path, cudnn: float | None, milliseconds: float, verdict: str
) -> None:
    native = [BatchNormRow("contiguous", "native", mean, 1.0, 1e-6, 1.0) for mean in (1.0, 1e3)]
    other = [replace(row, kernels="cudnn", milliseconds=milliseconds) for row in native]
    other[1] = replace(other[1], error=cudnn)
    (line,) = summary_of(tmp_path, "batch-norm.json", Checks(1, MACHINE, "net", (*native, *other)))
    assert verdict in line


def test_states_that_differ_break_a_promise(tmp_path: Path) -> None:
    rows = (
        Repetition("graph", "tf32", ("a", "a", "a")),
        Repetition("compile", "tf32", ("a", "a", "b")),
        Repetition("compile", "bf16", (), "RuntimeError: no such kernel"),
    )
    lines = summary_of(tmp_path, "repetitions.json", Checks(1, MACHINE, "preact_resnet110", repetitions=rows))
    assert [line.partition(" -> ")[2] for line in lines] == [
        "equal bit for bit",
        "DIFFERENT, though README promises equality",
        "RuntimeError: no such kernel",
    ]


def test_failed_tests_and_stages_and_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tests.exit").write_text("1\n")
    (tmp_path / "doctor.exit").write_text("0\n")
    (tmp_path / "runs.exit").write_text("124\n")
    (tmp_path / "bench-164.json").write_text("{}")
    case = '<testcase name="{}">{}</testcase>'.format
    xml = f"<testsuite>{case('a', '')}{case('b', '<failure/>')}{case('c', '<skipped/>')}</testsuite>"
    lines = summary_of(tmp_path, "tests.xml", xml)
    assert lines[0] == "gpu tests: 1 passed, 1 skipped, 1 failed -> train nothing before they pass: b"
    assert lines[1].startswith("bench-164.json cannot be read: ")
    assert lines[2:] == ["stage runs: out of time, see log.txt", "stage tests: exit status 1, see log.txt"]
