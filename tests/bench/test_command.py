from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paperbench.bench import throughput
from paperbench.bench.figures import BenchReport, NetFigures, VariantFigures
from paperbench.bench.setup import GPU_FACTS, _nvidia_smi, bench_training
from paperbench.bench.throughput import bench_variants, measure_net
from paperbench.bench.timing import Rounds
from paperbench.cli.main import main
from paperbench.typed import from_json
from tests.bench.stubs import stub_training
from tests.helpers import ROOT

FAST = ["bench", "--device=cpu", "--models=preact_resnet20", "--batch-size=8", "--rounds=2", "--seconds=0.001"]


def report_in(file: Path) -> BenchReport:
    return from_json(BenchReport, file.read_text(encoding="utf-8"))


def test_real_measurement_prints_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "fp32", "--at-once", "2", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    (net,) = report_in(file).nets
    assert (net.net, net.batch_size) == ("preact_resnet20", 8)
    assert [found.variant.at_once for found in net.variants] == [1, 1, 1, 2]
    assert {(found.variant.precision, found.status) for found in net.variants} == {("fp32", "measured")}
    for found in net.variants:
        (row,) = [line for line in printed.out.splitlines() if line.startswith(f"{found.variant.label}  ")]
        assert found.images_per_second is not None
        assert f" {found.images_per_second:.1f} " in row or f" {found.images_per_second:,.0f} " in row
    assert "Not measured: graph (CUDA graphs need an NVIDIA GPU).\n" in printed.out
    assert printed.err.count(", round ") == 2


def test_warnings_of_nvidia_smi_are_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = GPU_FACTS.replace(",", " MHz, ")
    (tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\necho 'WARNING: one, two'\necho '{values}'\necho WARNING: infoROM\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1"))
    assert list((_nvidia_smi(torch.device("cuda")) or {}).values()) == values.split(", ")


def test_wrong_step_gives_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_training(monkeypatch, lambda trainer: trainer.model.weight.data.mul_(torch.nan))
    file = tmp_path / "bench.json"
    assert main([*FAST, "--precisions", "fp32", "bf16", "--json", str(file)]) == 1
    assert "\neager fp32: wrong step: a loss " in capsys.readouterr().out
    statuses = {found.variant.label: found.status for found in report_in(file).nets[0].variants}
    assert (statuses["eager fp32"], statuses["eager bf16"]) == ("wrong step", "measured")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models preact_resnet21", "preact_resnet2"),
        ("--models preact_resnet50", "takes photographs"),
        ("--engines graph", "CUDA graphs need an NVIDIA GPU"),
        ("--precisions tf32", "Ampere"),
        ("--batch-size 1", "at least 2 images"),
        ("--json no/such/folder/file.json", "in an existing directory"),
    ],
)
def test_invalid_arguments_fail_before_any_measurement(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # real depths
    assert main(["bench", "--device", "cpu", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_breakdown_names_what_replaces_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--breakdown", "preact_resnet110"])
    assert '"Where a step\'s time goes" in docs/speed.md' in capsys.readouterr().err
    assert "\n## Where a step's time goes\n" in (ROOT / "docs" / "speed.md").read_text()


def test_nets_share_the_remaining_time_and_json_is_always_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, deadlines = [1000.0], []
    monkeypatch.setattr("paperbench.cli.bench.time.monotonic", lambda: now[0])

    def measure_net(training: Any, variants: Any, rounds: Rounds) -> NetFigures:
        deadlines.append(rounds.deadline)
        now[0] += 90.0
        return NetFigures(training.name, 1, 128, 64, 20, (VariantFigures(variants[0], "skipped", "late"),), None)

    monkeypatch.setattr(throughput, "measure_net", measure_net)
    file = tmp_path / "bench.json"
    nets = ["preact_resnet20", "original_resnet20", "preact_resnet110"]
    command = ["bench", "--device", "cpu", "--minutes", "2", "--json", str(file), "--models", *nets]
    assert main(command) == 1  # nothing was measured
    assert deadlines == pytest.approx([1000 + 0.8 * 120 / 3, 1090 + 0.8 * 30 / 2, 1180 - 0.8 * 60])
    assert [net.net for net in report_in(file).nets] == nets


@pytest.mark.gpu
def test_all_engines_and_precisions_have_figures_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    training, variants = bench_training("preact_resnet20", 128, device), bench_variants([], [], device, [3])
    figures = measure_net(training, variants, Rounds(2, 0.01))
    assert {(v.status, v.detail) for v in figures.variants} == {("measured", None)}
    assert all((v.peak_memory or 0) > 0 for v in figures.variants)
