from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paperbench.bench import text, throughput
from paperbench.bench.figures import BenchReport, Control, NetFigures, Settings, Spread, Variant, VariantFigures, ratio
from paperbench.cli.main import main
from paperbench.typed import from_json
from tests.bench.test_throughput import Change, another_start, make_wrong  # noqa: F401

FAST = ["bench", "--device", "cpu", "--models", "preact_resnet20", "--batch-size", "8", "--rounds", "2"]


def report_in(file: Path) -> BenchReport:
    return from_json(BenchReport, file.read_text(encoding="utf-8"))


def test_table_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "bf16", "--seconds", "0.01", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    report = report_in(file)
    assert report.settings == Settings(("preact_resnet20",), ("eager",), ("bf16",), 8, 2, 0.01, None)
    (net,) = report.nets
    assert {found.variant.precision for found in net.variants} == {"fp32", "bf16"}  # the plain loop as shipped is fp32
    for found in net.variants:
        (row,) = [line for line in printed.out.splitlines() if line.startswith(found.variant.label)]
        assert found.images_per_second is not None
        median = found.images_per_second.median
        assert f" {median:.1f} " in row or f" {median:,.0f} " in row
    assert max(len(line) for line in printed.out.splitlines()) <= 120
    assert "only the ratios" in printed.out
    assert printed.err.count(", round ") == 2
    assert "not measured: compile: compiling takes minutes here" in printed.err


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
        ("--breakdown preact_resnet20 --engine graph", "CUDA graphs need an NVIDIA GPU"),
        ("--engines fast", "Unknown engine 'fast'"),
        ("--engines eagre", "Did you mean 'eager'?"),
        ("--precisions tf32", "Ampere"),
        ("--precisions fp64", "Unknown precision 'fp64'"),
        ("--batch-size 1", "at least 2 images"),
        ("--json no/such/folder/file.json", "in a folder that is there"),
        ("--engine eager", "--engine needs --breakdown"),
        ("--breakdown preact_resnet20 --models preact_resnet20", "--models does not go with --breakdown"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput.Measurement, "run", None)
    assert main(["bench", "--device", "cpu", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_each_net_gets_its_share_of_the_time_that_is_left_and_json_is_written_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, deadlines = [1000.0], []
    monkeypatch.setattr("paperbench.cli.bench.time.monotonic", lambda: now[0])

    class Measurement:
        engines, precisions = ("eager",), ("fp32",)

        def __init__(self, name: str, *settings: Any, progress: Any) -> None:
            self.name = name

        def run(self, deadline: float) -> NetFigures:
            deadlines.append(deadline)
            now[0] += 90.0
            eager = Variant("paperbench", "eager", "fp32")
            return NetFigures(self.name, 1, 8, 64, 20, (VariantFigures(eager, "skipped", "late"),), (), None, None)

    monkeypatch.setattr(throughput, "Measurement", Measurement)
    file = tmp_path / "bench.json"
    nets = ["preact_resnet20", "original_resnet20", "preact_resnet110"]
    command = ["bench", "--device", "cpu", "--minutes", "2", "--json", str(file), "--models", *nets]
    assert main(command) == 1  # nothing was measured
    assert deadlines == pytest.approx([1000 + 0.8 * 120 / 3, 1090 + 0.8 * 30 / 2, 1180 - 0.8 * 60])
    assert report_in(file).settings.minutes == 2
    assert [net.net for net in report_in(file).nets] == nets


def test_a_row_of_the_table() -> None:
    graph = Variant("paperbench", "graph", "bf16-fp32-stream")
    quick = VariantFigures(
        graph,
        "measured",
        construction_seconds=1.0,
        first_step_seconds=58.25,
        steps=20,
        seconds=(0.1, 0.2),
        images_per_second=Spread(19_200.0, 12_800.0, 25_600.0),
        over_plain=ratio((256.0, 128.0), (100.0, 100.0), 0.1),
        over_plain_same_precision=ratio((102.0, 103.0), (100.0, 100.0), 0.1),
        peak_memory=12_345_678_901,
    )
    lacking = VariantFigures(Variant("paperbench", "compile", "tf32"), "out of memory", "OutOfMemoryError: no")
    control = Control(graph, (1.1, 1.0))
    net = NetFigures("preact_resnet1001", 10_000_000, 64, 50_000, 8, (quick, lacking), (control,), 0.1, None)
    lines = [*text.render_net(net, 128).splitlines(), *text.notes("cuda", "tf32", 4).splitlines()]
    (row,) = [line for line in lines if line.startswith("graph")]
    assert " ".join(row.split()) == "graph bf16-fp32-stream 19,200 12,800 to 25,600 1.92 ~1.02 - 59.2 12.35"
    assert "compile tf32: out of memory: OutOfMemoryError: no" in lines
    assert any("noise 10.0%" in line for line in lines)
    assert max(map(len, lines)) <= 120
    assert "4 workers" in "\n".join(lines)
