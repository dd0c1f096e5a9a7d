from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paperbench.bench import bench_json, plain_loop, runners, text, throughput
from paperbench.bench.figures import Control, NetFigures, Spread, VariantFigures, ratio
from paperbench.cli.main import main
from tests.bench.test_throughput import another_start, wrong

FAST = ["bench", "--device", "cpu", "--models", "preact_resnet20", "--batch-size", "8", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(throughput.IMAGES, "cpu", 64)
    monkeypatch.setitem(plain_loop.WORKERS, "cpu", 1)
    monkeypatch.setattr(runners, "REST_SECONDS", 0.0)


def valid(content: dict[str, Any]) -> dict[str, Any]:
    jsonschema.Draft202012Validator.check_schema(bench_json.schema())
    jsonschema.Draft202012Validator(bench_json.schema()).validate(content)
    return content


def test_table_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    command = [*FAST, "--precisions", "bf16", "--seconds", "0.01", "--json", str(file)]
    assert main(command) == 0
    printed = capsys.readouterr()
    content = valid(json.loads(file.read_text(encoding="utf-8")))
    assert content["settings"] == {
        "models": ["preact_resnet20"],
        "engines": ["eager"],
        "precisions": ["bf16"],
        "batch_size": 8,
        "rounds": 2,
        "seconds": 0.01,
        "minutes": None,
    }
    (net,) = content["nets"]
    assert set(content["precisions"]) == {"fp32", "bf16"}  # the plain loop as shipped is fp32
    for variant in net["variants"]:
        (row,) = [line for line in printed.out.splitlines() if line.startswith(variant["label"])]
        median = variant["images_per_second"]["median"]
        assert f" {median:.1f} " in row or f" {median:,.0f} " in row
    assert max(len(line) for line in printed.out.splitlines()) <= 120
    assert "only the ratios" in printed.out
    assert printed.err.count(", round ") == 2
    assert "not measured: compile: compiling takes minutes here" in printed.err


def test_a_wrong_engine_ends_with_status_1_and_without_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "new_trainer", wrong(another_start))
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "fp32", "bf16", "--seconds", "0.01", "--json", str(file)]) == 1
    rows = {line.partition("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["eager fp32"][2:5] == ["wrong", "loss", "-"]
    assert rows["eager bf16"][2] != "wrong"
    variants = valid(json.loads(file.read_text(encoding="utf-8")))["nets"][0]["variants"]
    assert [v["status"] for v in variants if v["label"] == "eager fp32"] == ["wrong loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "preact_resnet21"], "preact_resnet2"),
        (["--models", "preact_resnet50"], "large images"),
        (["--engines", "graph"], "CUDA graphs need an NVIDIA GPU"),
        (["--engines", "fast"], "Unknown engine 'fast'"),
        (["--precisions", "tf32"], "Ampere"),
        (["--precisions", "fp64"], "Unknown precision 'fp64'"),
        (["--batch-size", "1"], "at least 2 images"),
        (["--json", "no/such/folder/file.json"], "in a folder that is there"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "_Measurement", None)
    assert main(["bench", "--device", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_each_net_gets_its_share_of_the_time_that_is_left_and_json_is_written_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, deadlines = [1000.0], []
    monkeypatch.setattr("paperbench.cli.bench.time.monotonic", lambda: now[0])

    def measured(name: str, *, deadline: float, **settings: Any) -> NetFigures:
        deadlines.append(deadline)
        now[0] += 90.0
        left = VariantFigures("paperbench", "eager", "fp32", "eager fp32", "left out", "the time was over")
        return NetFigures(name, 1, 8, 8, 64, 2, 1.5, 20, (left,), (), None, None)

    monkeypatch.setattr(throughput, "measure_net", measured)
    file = tmp_path / "bench.json"
    nets = ["preact_resnet20", "original_resnet20", "preact_resnet110"]
    command = ["bench", "--device", "cpu", "--minutes", "2", "--json", str(file), "--models", *nets]
    assert main(command) == 1  # nothing was measured
    assert deadlines == pytest.approx([1000 + 0.8 * 120 / 3, 1090 + 0.8 * 30 / 2, 1180 - 0.8 * 60])
    content = valid(json.loads(file.read_text(encoding="utf-8")))
    assert content["settings"]["minutes"] == 2
    assert [net["net"] for net in content["nets"]] == nets


def test_when_the_time_is_over_a_net_still_gets_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "fp32", "--minutes", "1e-9", "--json", str(file)]) == 1
    (net,) = valid(json.loads(file.read_text(encoding="utf-8")))["nets"]
    assert {variant["status"] for variant in net["variants"]} == {"left out"}


def some_figures() -> NetFigures:
    quick = VariantFigures(
        "paperbench",
        "graph",
        "bf16-fp32-stream",
        "graph bf16-fp32-stream",
        "measured",
        construction_seconds=1.0,
        first_step_seconds=58.25,
        steps=20,
        seconds=(0.1, 0.2),
        images_per_second=Spread(19_200.0, 12_800.0, 25_600.0),
        over_plain=ratio((256.0, 128.0), (100.0, 100.0), 0.1),
        over_plain_same_precision=ratio((102.0, 103.0), (100.0, 100.0), 0.1),
        peak_allocated=12_345_678_901,
        peak_reserved=13_000_000_000,
        subset=1,
    )
    lacking = VariantFigures("paperbench", "compile", "tf32", "compile tf32", "out of memory", "OutOfMemoryError: no")
    control = Control("graph bf16-fp32-stream", 1, (1.1, 1.0))
    return NetFigures(
        "preact_resnet1001", 10_000_000, 128, 64, 50_000, 2, 1.5, 8, (quick, lacking), (control,), 0.1, None
    )


def test_a_row_of_the_table() -> None:
    lines = [*text.render_net(some_figures()).splitlines(), *text.notes("cuda", "tf32", 4).splitlines()]
    (row,) = [line for line in lines if line.startswith("graph")]
    assert " ".join(row.split()) == "graph bf16-fp32-stream [2] 19,200 12,800 to 25,600 1.92 ~1.02 - 59.2 12.35"
    assert "compile tf32: out of memory: OutOfMemoryError: no" in lines
    assert any("noise 10.0%" in line for line in lines)
    assert max(map(len, lines)) <= 120
    assert "4 workers" in "\n".join(lines)


def test_json_of_figures_from_a_gpu_is_valid_and_its_text_is_the_same_values() -> None:
    machine = {
        "python": "3.11.4",
        "torch": "2.15",
        "torchvision": "0.30",
        "timm": "1.0",
        "numpy": "2.4",
        "cuda": "13.2",
        "cudnn": "92000",
        "system": "Linux x86_64",
        "device": "a GPU",
        "threads": 16,
        "cpus": 16,
        "cpu_features": ["avx2"],
        "interop_threads": 8,
        "openmp": {},
        "memory_bytes": 10**11,
        "capability": "9.0",
        "multiprocessors": 132,
        "driver": None,
        "power_limit_w": 700.0,
        "clocks_mhz": {"sm": 1980},
    }
    settings = bench_json.Settings(("preact_resnet1001",), ("graph",), ("bf16-fp32-stream",), 128, 2, 1.5, 10.0)
    code = {"version": "0.1", "commit": None, "source": "0" * 16, "numerics": 2}
    content = valid(bench_json.document([some_figures()], settings, machine, code))
    assert json.loads(bench_json.to_json(content)) == content
    assert content["precisions"].keys() == {"tf32", "bf16-fp32-stream"}
    for broken in ({"host": "somebody's"}, {"threads": "2"}):
        with pytest.raises(jsonschema.ValidationError):
            valid(content | {"machine": machine | broken})
    for status in ("measured", "wrong loss"):  # a figure if and only if it was measured
        changed = json.loads(json.dumps(content))
        variant = changed["nets"][0]["variants"][0 if status == "wrong loss" else 1]
        variant["status"] = status
        with pytest.raises(jsonschema.ValidationError):
            valid(changed)
