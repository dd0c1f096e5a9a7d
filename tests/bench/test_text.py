from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paperbench.bench.breakdown import Breakdown, Ceilings, Floors, Row
from paperbench.bench.figures import NetFigures, Variant, VariantFigures, median_ratio
from paperbench.bench.setup import machine_facts
from paperbench.bench.text import format_breakdown, format_legend, format_net


def rows_of(lines: list[str]) -> set[str]:
    return {" ".join(line.split()) for line in lines}


def test_table_has_a_row_per_variant_and_the_problems_in_80_columns() -> None:
    measured = VariantFigures(
        Variant("paperbench", "compile", "bf16-fp32-stream"),
        "measured",
        first_step_seconds=159.25,
        images_per_second=19_200.0,
        over_plain=median_ratio((1.0, 1.0), (2.56, 1.28), 0.1),
        over_plain_same_precision=median_ratio((1.0, 1.0), (1.02, 1.03), 0.1),
        peak_memory=12_345_678_901,
    )
    failed = VariantFigures(Variant("paperbench", "graph", "tf32"), "out of memory", "OutOfMemoryError: no " * 9)
    net = NetFigures("preact_resnet1001", 10_000_000, 128, 64, 50_000, (measured, failed), 0.1)
    lines = format_net(net).splitlines()
    assert {"compile bf16-fp32-stream 19,200 1.92 ~1.02 - 159.2 12.35", "graph tf32 - - - - - -"} <= rows_of(lines)
    assert any(line.startswith("graph tf32: out of memory: OutOfMemoryError: no") for line in lines)
    assert any("noise 10.0%" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("device", "note"), [("cpu", "compare the speedups"), ("cuda", "Peak: memory")])
def test_legend_has_five_lines_of_80_columns(device: str, note: str) -> None:
    lines = format_legend(device, "tf32", 4).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 80
    assert "4 workers; tf32" in lines[0]
    assert note in lines[4]


def a_breakdown(cuda: str | None) -> Breakdown:
    machine = machine_facts(torch.device("cpu"))
    machine = replace(machine, environment=replace(machine.environment, cuda=cuda))
    floors = Floors(1.0, 0.0, 0.5)
    kinds = (
        Row("convolution backward by weights", 6.0, 70.0, floors),
        Row("mystery" * 8, 2.0, 4.0),
    )
    steps = (
        Row("step, channels_last, deterministic", 10.0, floors=floors),
        Row("step, contiguous, deterministic", 12.5),
        Row("step, channels_last, not deterministic", None, problem="RuntimeError: no such kernel"),
    )
    return Breakdown(1, machine, "preact_resnet1001", "graph", "bf16", 128, 64, Ceilings(3e12, 9e14, 8e5), kinds, steps)


def test_breakdown_has_kinds_idle_time_and_settings_in_80_columns() -> None:
    lines = format_breakdown(a_breakdown("13.2")).splitlines()
    assert {
        "convolution backward by weights 6.00 75.0% 70 1.00 0.00 0.50",
        "mysterymysterymysterymysterymys 2.00 25.0% 4",
        "no kernel running 2.00",
        "whole step 10.00 1.00 0.00 0.50",
        "step, contiguous, deterministic 12.50",
        "step, channels_last, not deterministic -",
        "step, channels_last, not deterministic: RuntimeError: no such kernel",
    } <= rows_of(lines)
    assert max(map(len, lines)) <= 80


def test_breakdown_on_a_cpu_has_no_idle_time() -> None:
    text = format_breakdown(a_breakdown(None))
    assert "no kernel running" not in text
    assert "CPU rows are operators" in text
