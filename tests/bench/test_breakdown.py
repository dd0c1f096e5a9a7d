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
from paperbench.bench.breakdown import Breakdown, Ceilings, Row
from paperbench.bench.profiling import Setting, make_settings, measure_breakdown, times_by_kind
from paperbench.bench.setup import Training
from paperbench.cli.main import main
from paperbench.training import trainer as trainer_module
from paperbench.training.trainer import Trainer
from paperbench.typed import from_json, json_schema


def test_command_prints_and_writes_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert f"\n{row.name[:31]} " in printed
        assert f" {row.milliseconds:.2f}" in printed


GPU = torch.device("cuda")


def test_settings_on_a_gpu_change_one_thing_each() -> None:
    """In float32 the layout as trained is the contiguous one; only Inductor combines kernels."""
    assert [s.name for s in make_settings("graph", "fp32", GPU)] == [
        "contiguous",
        "channels_last",
        "contiguous, not deterministic",
        "contiguous, not deterministic, timed",
    ]
    first, *others = make_settings("compile", "bf16", GPU)
    assert first == Setting("channels_last", torch.channels_last)
    assert others == [
        Setting("contiguous", torch.contiguous_format),
        replace(first, name="channels_last, not deterministic", cudnn={"deterministic": False}),
        replace(
            first, name="channels_last, not deterministic, timed", cudnn={"deterministic": False, "benchmark": True}
        ),
        replace(first, name="channels_last, combo kernels", compile_options={"combo_kernels": True}),
    ]


def test_each_setting_is_in_force_from_the_first_step(monkeypatch: pytest.MonkeyPatch, training: Training) -> None:
    seen = []

    class Spy(Trainer):
        def step(self) -> None:
            if not self.iteration:
                cudnn = torch.backends.cudnn
                seen.append((self.layout, dict(self._compile_options), cudnn.deterministic, cudnn.benchmark))
            super().step()

    monkeypatch.setattr(setup, "Trainer", Spy)
    monkeypatch.setattr(profiling, "median_seconds", lambda work, seconds: 0.5)
    monkeypatch.setattr(profiling, "profiled_step", lambda trainer: [])
    monkeypatch.setattr(profiling, "make_settings", lambda engine, precision, _: make_settings("compile", "bf16", GPU))
    found = measure_breakdown(training, "eager", "fp32", 0.01, lambda line: None)
    assert len(found.steps) == 5
    assert {step.milliseconds for step in found.steps} == {500.0}
    last = torch.channels_last
    assert seen[-5:] == [
        (last, {}, True, False),
        (torch.contiguous_format, {}, True, False),
        (last, {}, False, False),
        (last, {}, False, True),
        (last, {"combo_kernels": True}, True, False),
    ]


def test_compile_options_reach_the_compiler(monkeypatch: pytest.MonkeyPatch, training: Training) -> None:
    seen: list[dict[str, bool]] = []
    monkeypatch.setattr(trainer_module, "compile_units", lambda module, **options: seen.append(options))
    for options in ({}, {"combo_kernels": True}):
        training.trainer("compile", "fp32", compile_options=options)
    assert seen == [{}, {"combo_kernels": True}]


def test_wrong_or_failing_step_has_a_problem_and_no_time(monkeypatch: pytest.MonkeyPatch, training: Training) -> None:
    original, made = Training.trainer, iter(range(1_000))

    def trainer(*args: Any, **options: Any) -> Trainer:
        found = original(*args, **options)
        match next(made):
            case 4:  # after the one whose work is counted, and the three of the reference
                found._optimiser.step = lambda gradients: None  # type: ignore[method-assign]
            case 5:
                raise RuntimeError("no such layout")
        return found

    monkeypatch.setattr(Training, "trainer", trainer)
    monkeypatch.setattr(profiling, "STEPS", 3)
    found = measure_breakdown(training, "eager", "fp32", 0.01, lambda line: None)
    assert [step.milliseconds for step in found.steps] == [None, None]
    assert str(found.steps[0].problem).startswith("step 3: loss")
    assert found.steps[1].problem == "RuntimeError: no such layout"
    assert found.kinds == ()


def test_tf32_product_leaves_the_older_switches_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one raises if the newer switch differs; Dynamo's guards read it."""
    seen: list[bool] = []

    def read(*_: object) -> float:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return 1.0

    monkeypatch.setattr(profiling, "median_seconds", read)
    for precision, expected in (("tf32", True), ("bf16", False)):
        profiling.measure_ceilings(torch.device("cpu"), precision, in_graph=False, seconds=0)
        assert seen[-2:] == [expected] * 2
    torch.set_float32_matmul_precision("highest")


def test_kinds_sum_their_kernels_and_have_the_floors_of_their_work() -> None:
    kernels = [("sm80_wgrad_a", 1.0, 2.0), ("sm90_wgrad_b", 2.0, 3.0), ("mystery", 4.0, 1.0), ("secret", 0.01, 1.0)]
    work = {"convolution backward by weights": np.array([1e6, 2e9, 7])}
    ceilings = Ceilings(bytes_per_second=1e9, flops_per_second=1e12, launches_per_second=1e5)
    mystery, weights, other = times_by_kind([Row(*kernel) for kernel in kernels], work, ceilings)
    assert mystery == Row("mystery", 4.0, 1.0)  # unknown, but above 1 % of the time
    assert other == Row("other", 0.01, 1.0)
    assert (weights.name, weights.milliseconds, weights.number) == ("convolution backward by weights", 3.0, 5.0)
    assert weights.floors is not None
    assert list(vars(weights.floors).values()) == pytest.approx([1.0, 2.0, 0.07])
