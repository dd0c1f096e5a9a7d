from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from paperbench.bench import profiling, setup
from paperbench.bench.breakdown import Breakdown, Ceilings, Floors, Row, render_breakdown
from paperbench.bench.profiling import ContiguousTrainer, measure_breakdown, times_by_kind
from paperbench.bench.setup import bench_training
from paperbench.cli.main import main
from paperbench.training.trainer import Trainer
from paperbench.typed import from_json, json_schema

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(profiling.COPY_BYTES, "cpu", 2**16)
    monkeypatch.setitem(profiling.MATRIX_SIDE, "cpu", 32)


def small() -> Breakdown:
    return measure_breakdown(bench_training("preact_resnet20", 16, CPU), "eager", "fp32", 0.01, lambda line: None)


def test_the_command_prints_and_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "breakdown.json"
    command = "bench --breakdown preact_resnet20 --device cpu --batch-size 16 --precisions bf16 --seconds 0.01 --json"
    assert main([*command.split(), str(file)]) == 0
    printed = capsys.readouterr().out
    jsonschema.Draft202012Validator(json_schema(Breakdown)).validate(json.loads(file.read_text()))
    found = from_json(Breakdown, file.read_text())
    assert (found.net, found.engine, found.precision) == ("preact_resnet20", "eager", "bf16")
    assert [step.name for step in found.steps] == ["step, channels_last", "step, contiguous"]
    kinds = {row.name: row for row in found.kinds}
    for kind in ("convolution forward", "convolution backward", "batch norm", "elementwise", "optimiser", "data"):
        assert (kinds[kind].milliseconds or 0) > 0
        assert kinds[kind].floors is not None
    assert kinds["copies"].floors is None
    assert kinds["optimiser"].number == 1
    whole = found.steps[0].floors
    assert whole is not None
    assert whole.bytes == pytest.approx(sum(row.floors.bytes for row in found.kinds if row.floors))
    for row in (*found.kinds, *found.steps):
        assert f"{row.name} " in printed
        assert f" {row.milliseconds:.2f}" in printed
    assert "no row without determinism" in printed
    assert "no kernel running" not in printed
    assert max(map(len, printed.splitlines())) <= 120


@pytest.mark.parametrize("kind", [Trainer, ContiguousTrainer])
def test_the_contiguous_row_trains_the_same_in_that_layout_and_the_other_does_not(kind: type[Trainer]) -> None:
    trainer = bench_training("preact_resnet20", 16, CPU).trainer("eager", "fp32", kind)
    layouts: set[bool] = set()
    for module in trainer.model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.BatchNorm2d)):
            module.register_forward_hook(
                lambda module, inputs, output: layouts.add(output.is_contiguous(memory_format=torch.channels_last))
            )
    trainer.step()
    assert layouts == {kind is Trainer}


def test_a_wrong_step_gets_no_time_and_no_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    original, made = setup.Training.trainer, iter(range(1_000))

    def trainer(*args: Any) -> Trainer:
        found = original(*args)
        match next(made):
            case 3:  # after the one whose work is counted, and the two of the reference
                found._optimiser.step = lambda gradients: None  # type: ignore[method-assign]
            case 4:
                raise RuntimeError("no such layout")
        return found

    monkeypatch.setattr(setup.Training, "trainer", trainer)
    found = small()
    assert [step.milliseconds for step in found.steps] == [None, None]
    assert (found.steps[0].problem or "").startswith("step 3: loss")
    assert found.steps[1].problem == "RuntimeError: no such layout"
    assert found.kinds == ()
    assert "no such layout" in render_breakdown(found)


def test_on_a_gpu_the_table_has_the_time_without_a_kernel_and_a_row_for_each_setting() -> None:
    found = small()
    gpu = replace(found.machine, environment=replace(found.machine.environment, cuda="13.2"))
    steps = Row("step, channels_last, deterministic", 10.0), Row("step, contiguous, deterministic", 12.5)
    kinds = Row("batch norm", 6.0, 70.0, Floors(1.0, 0.0, 0.5)), Row("mystery", 2.0, 4.0)
    lines = render_breakdown(replace(found, machine=gpu, steps=steps, kinds=kinds)).splitlines()
    rows = {" ".join(line.split()) for line in lines}
    assert {"batch norm 6.00 75.0% 70 1.00 0.00 0.50", "mystery 2.00 25.0% 4", "no kernel running 2.00"} <= rows
    assert "step, contiguous, deterministic 12.50" in rows


def test_kinds_are_sums_of_kernels_with_the_floors_of_their_work() -> None:
    kernels = [("sm80_wgrad_a", 1.0, 2.0), ("sm90_wgrad_b", 2.0, 3.0), ("mystery", 4.0, 1.0), ("secret", 0.01, 1.0)]
    work = {"convolution backward by weights": np.array([1e6, 2e9, 7])}
    ceilings = Ceilings(bytes_per_second=1e9, flops_per_second=1e12, launches_per_second=1e5)
    mystery, weights, other = times_by_kind([Row(*kernel) for kernel in kernels], work, ceilings)
    assert mystery == Row("mystery", 4.0, 1.0)  # unknown, and too much to be hidden
    assert other == Row("other", 0.01, 1.0)
    assert (weights.name, weights.milliseconds, weights.number) == ("convolution backward by weights", 3.0, 5.0)
    assert weights.floors is not None
    assert list(vars(weights.floors).values()) == pytest.approx([1.0, 2.0, 0.07])
