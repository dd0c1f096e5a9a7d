from __future__ import annotations

import pytest

from paperbench.bench.figures import NetFigures, Variant, VariantFigures, median_ratio
from paperbench.bench.text import format_legend, format_net


def rows_of(lines: list[str]) -> set[str]:
    return {" ".join(line.split()) for line in lines}


def test_table_has_a_row_per_variant_and_the_problems_in_80_columns() -> None:
    measured = VariantFigures(
        Variant("paperbench", "compile", "bf16-fp32-stream"),  # of an older version
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
