from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from paperbench.bench import breakdown, setup
from paperbench.bench.breakdown import floors, measure_breakdown, times_by_kind
from paperbench.bench.figures import Breakdown, Ceilings, Floors, KindTime, Spread, StepTime, json_text
from paperbench.bench.kernels import Kind, Work
from paperbench.bench.machine import current_flags
from paperbench.bench.setup import bench_training
from paperbench.bench.text import render_breakdown
from paperbench.cli.main import main
from paperbench.training.trainer import Trainer
from paperbench.typed import from_json, json_schema

CPU = torch.device("cpu")
CEILINGS = Ceilings(bytes_per_second=1e9, flops_per_second=1e12, launch_seconds=1e-5, in_graph=True)


pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(breakdown.COPY_BYTES, "cpu", 2**16)
    monkeypatch.setitem(breakdown.MATRIX_SIDE, "cpu", 32)


def small(name: str = "preact_resnet20") -> Breakdown:
    return measure_breakdown(name, bench_training(name, 16, CPU), "eager", "fp32", 0.01, lambda line: None)


def test_the_command_prints_and_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, file = current_flags(), tmp_path / "breakdown.json"
    command = "bench --breakdown preact_resnet20 --device cpu --batch-size 16 --precision bf16 --seconds 0.01 --json"
    assert main([*command.split(), str(file)]) == 0
    printed = capsys.readouterr().out
    content = json.loads(file.read_text())
    jsonschema.Draft202012Validator(json_schema(Breakdown)).validate(content)
    found = from_json(Breakdown, file.read_text())
    assert json_text(found) == file.read_text()
    assert (found.net, found.engine, found.precision) == ("preact_resnet20", "eager", "bf16")
    assert [(step.layout, step.deterministic) for step in found.steps] == [
        ("channels_last", None),
        ("contiguous", None),
    ]
    kinds = {time.kind: time for time in found.kinds}
    wanted = {"convolution forward", "convolution backward", "batch norm", "elementwise", "optimiser", "data"}
    assert wanted <= set(kinds)
    for kind in wanted:
        assert kinds[kind].milliseconds > 0
        assert kinds[kind].floors is not None
    assert kinds["optimiser"].number == 1
    assert found.floors is not None
    assert found.floors.bytes == pytest.approx(sum(time.floors.bytes for time in found.kinds if time.floors))
    for kind, time in kinds.items():
        assert f"{kind} " in printed
        assert f" {time.milliseconds:.2f} " in printed
    assert "no row without determinism" in printed
    assert "no kernel running" not in printed
    assert max(map(len, printed.splitlines())) <= 120
    assert current_flags() == before


def test_the_contiguous_row_trains_in_that_layout_and_the_other_does_not() -> None:
    training = bench_training("preact_resnet20", 16, CPU)
    for channels_last in (True, False):
        trainer = training.trainer("eager", "fp32", channels_last=channels_last)
        layouts: set[bool] = set()

        def look(module: Any, inputs: Any, output: torch.Tensor, seen: set[bool] = layouts) -> None:
            seen.add(output.is_contiguous(memory_format=torch.channels_last))

        for module in trainer.model.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.BatchNorm2d)):
                module.register_forward_hook(look)
        trainer.step()
        assert layouts == {channels_last}


def test_a_wrong_step_gets_no_time_and_no_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    original, made = setup.Training.trainer, iter(range(1_000))

    def trainer(self: Any, engine: str, precision: str, *, channels_last: bool = True) -> Trainer:
        found = original(self, engine, precision, channels_last=channels_last)
        match next(made):
            case 2:  # after the two of the reference
                found._optimiser.step = lambda gradients: None  # type: ignore[method-assign]
            case 3:
                raise RuntimeError("no such layout")
        return found

    monkeypatch.setattr(setup.Training, "trainer", trainer)
    found = small()
    assert [step.milliseconds for step in found.steps] == [None, None]
    assert "step 3" in (found.steps[0].problem or "")
    assert found.steps[1].problem == "RuntimeError: no such layout"
    assert found.kinds == ()
    assert "no such layout" in render_breakdown(found)


def test_on_a_gpu_the_table_has_the_time_without_a_kernel_and_a_row_for_each_setting() -> None:
    found = small()
    gpu = replace(found.machine, environment=replace(found.machine.environment, cuda="13.2"))
    spread = Spread(10.0, 9.0, 11.0)
    steps = tuple(StepTime("channels_last", is_on, spread, None) for is_on in (True, False))
    kinds = (KindTime("batch norm", 6.0, 70.0, Floors(1.0, 0.0, 0.5)), KindTime("other", 2.0, 4.0, None))
    lines = render_breakdown(replace(found, machine=gpu, steps=steps, kinds=kinds)).splitlines()
    rows = {" ".join(line.split()) for line in lines}
    assert {"batch norm 6.00 75.0% 70 1.00 0.00 0.50", "other 2.00 25.0% 4 - - -", "no kernel running 2.00"} <= rows
    assert "step, channels_last, not deterministic (9.00 to 11.00) 10.00" in rows
    assert max(map(len, lines)) <= 120


def test_nets_that_are_not_counted_have_no_floors() -> None:
    found = small("resnet110_exclusive_gating")
    assert found.floors is None
    assert {time.floors for time in found.kinds} == {None}
    assert found.steps[0].milliseconds is not None


def test_kinds_are_sums_of_kernels_with_the_floors_of_their_work() -> None:
    profiled = {"sm80_wgrad_a": (1.0, 2.0), "sm90_wgrad_b": (2.0, 3.0), "mystery": (4.0, 1.0)}
    work: dict[Kind, Work] = {"convolution backward by weights": Work(1e6, 2e9, 7)}
    other, weights = times_by_kind(profiled, work, CEILINGS)
    assert (other.kind, other.milliseconds, other.number, other.floors) == ("other", 4.0, 1.0, None)
    assert (weights.kind, weights.milliseconds, weights.number) == ("convolution backward by weights", 3.0, 5.0)
    assert floors(work["convolution backward by weights"], CEILINGS) == weights.floors
    assert vars(weights.floors) == {"bytes": 1.0, "arithmetic": 2.0, "launches": pytest.approx(0.07)}
