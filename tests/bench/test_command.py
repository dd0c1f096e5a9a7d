from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paperbench.bench import profiling, text, throughput
from paperbench.bench.figures import BenchReport, NetFigures, Variant, VariantFigures, ratio
from paperbench.cli.main import main
from paperbench.typed import from_json
from tests.bench.test_throughput import another_start, make_wrong  # noqa: F401

FAST = ["bench", "--device", "cpu", "--models", "preact_resnet20", "--batch-size", "8", "--rounds", "2"]


def report_in(file: Path) -> BenchReport:
    return from_json(BenchReport, file.read_text(encoding="utf-8"))


def test_table_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "bf16", "--seconds", "0.01", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    report = report_in(file)
    (net,) = report.nets
    assert (net.net, net.batch_size) == ("preact_resnet20", 8)
    assert {found.variant.precision for found in net.variants} == {"fp32", "bf16"}  # the plain loop as shipped is fp32
    for found in net.variants:
        (row,) = [line for line in printed.out.splitlines() if line.startswith(found.variant.label)]
        assert found.images_per_second is not None
        assert f" {found.images_per_second:.1f} " in row or f" {found.images_per_second:,.0f} " in row
    assert max(len(line) for line in printed.out.splitlines()) <= 120
    assert "only the ratios" in printed.out
    assert "graph is not measured: CUDA graphs need an NVIDIA GPU.\n" in printed.out
    assert printed.err.count(", round ") == 2


def test_a_wrong_engine_ends_with_status_1_and_without_a_figure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_wrong: Any,  # noqa: F811
) -> None:
    make_wrong(another_start, "fp32")
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "fp32", "bf16", "--seconds", "0.01", "--json", str(file)]) == 1
    rows = {line.partition("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["eager fp32"][2:5] == ["wrong", "step", "-"]
    assert rows["eager bf16"][2] != "wrong"
    statuses = {found.variant.label: found.status for found in report_in(file).nets[0].variants}
    assert statuses["eager fp32"] == "wrong step"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models preact_resnet21", "preact_resnet2"),
        ("--models preact_resnet50", "large images"),
        ("--breakdown preact_resnet50", "large images"),
        ("--engines graph", "CUDA graphs need an NVIDIA GPU"),
        ("--breakdown preact_resnet20 --engines graph", "CUDA graphs need an NVIDIA GPU"),
        ("--engines fast", "Unknown engine 'fast'"),
        ("--precisions tf32", "Ampere"),
        ("--precisions fp64", "Unknown precision 'fp64'"),
        ("--batch-size 1", "at least 2 images"),
        ("--json no/such/folder/file.json", "in a folder that is there"),
        ("--breakdown preact_resnet20 --models preact_resnet20", "one net"),
        ("--breakdown preact_resnet20 --precisions fp32 bf16", "one precision"),
        ("--breakdown preact_resnet20 --rounds 7", "without --minutes or --rounds"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "measure_net", None)
    monkeypatch.setattr(profiling, "measure_breakdown", None)
    assert main(["bench", "--device", "cpu", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_each_net_gets_its_share_of_the_time_that_is_left_and_json_is_written_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, deadlines = [1000.0], []
    monkeypatch.setattr("paperbench.cli.bench.time.monotonic", lambda: now[0])

    def measure_net(training: Any, variants: Any, rounds: int, seconds: float, deadline: float, say: Any) -> NetFigures:
        deadlines.append(deadline)
        now[0] += 90.0
        return NetFigures(training.name, 1, 128, 64, 20, (VariantFigures(variants[0], "skipped", "late"),), None)

    monkeypatch.setattr(throughput, "measure_net", measure_net)
    file = tmp_path / "bench.json"
    nets = ["preact_resnet20", "original_resnet20", "preact_resnet110"]
    command = ["bench", "--device", "cpu", "--minutes", "2", "--json", str(file), "--models", *nets]
    assert main(command) == 1  # nothing was measured
    assert deadlines == pytest.approx([1000 + 0.8 * 120 / 3, 1090 + 0.8 * 30 / 2, 1180 - 0.8 * 60])
    assert [net.net for net in report_in(file).nets] == nets


def test_a_row_of_the_table() -> None:
    graph = Variant("paperbench", "graph", "bf16-fp32-stream")
    quick = VariantFigures(
        graph,
        "measured",
        first_step_seconds=59.25,
        images_per_second=19_200.0,
        over_plain=ratio((1.0, 1.0), (2.56, 1.28), 0.1),
        over_plain_same_precision=ratio((1.0, 1.0), (1.02, 1.03), 0.1),
        peak_memory=12_345_678_901,
    )
    lacking = VariantFigures(Variant("paperbench", "compile", "tf32"), "out of memory", "OutOfMemoryError: no")
    net = NetFigures("preact_resnet1001", 10_000_000, 128, 64, 50_000, (quick, lacking), 0.1)
    lines = [*text.render_net(net).splitlines(), *text.notes("cuda", "tf32", 4).splitlines()]
    (row,) = [line for line in lines if line.startswith("graph")]
    assert " ".join(row.split()) == "graph bf16-fp32-stream 19,200 1.92 ~1.02 - 59.2 12.35"
    assert "compile tf32: out of memory: OutOfMemoryError: no" in lines
    assert any("noise 10.0%" in line for line in lines)
    assert max(map(len, lines)) <= 120
    assert "4 workers" in "\n".join(lines)
