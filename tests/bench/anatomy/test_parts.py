"""The parts in this process, on the CPU, at a scale at which they take moments; and what they count and sum up."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.bench.anatomy import scale
from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.floors import placed_convolutions
from paperbench.bench.anatomy.job import Job
from paperbench.bench.anatomy.parts import (
    convolutions,
    exactness,
    imagenet,
    kernels,
    ladder,
    machine,
    normalisation,
    seeds,
)
from paperbench.bench.anatomy.parts.kernels import KernelRun, occupation, summary
from paperbench.bench.anatomy.timing import Timing
from paperbench.bench.figures import NetFigures, Spread, VariantFigures
from paperbench.catalogue import resolve
from paperbench.errors import PaperbenchError
from paperbench.training.trainer import Trainer
from tests.training.tape import Tape

NET = resolve("preact_resnet20", depth=8)


class Calls:
    """A timer that calls every body once, keeps what came out, and says that each took a millisecond."""

    def __init__(self) -> None:
        self.results: list[list[Any]] = []

    def time(self, bodies: Any) -> Timing:
        self.results.append([body() for body in bodies])
        return Timing(1e-3, 1e-3, 1e-3)

    def sets(self, bytes_each: float) -> int:
        return 2


def context(
    part: str = "machine", deadline: float = float("inf"), **changes: Any
) -> tuple[Context, io.StringIO, Calls]:
    stream, timer = io.StringIO(), Calls()
    job = Job(part, "", None, ("preact_resnet20",), "quick", "cpu", 60.0, "")
    made = replace(Context.of(job, stream, deadline), timer=timer, **changes)
    made.__dict__["nets"] = {"preact_resnet20": NET}
    return made, stream, timer


def rows(stream: io.StringIO) -> list[dict[str, Any]]:
    return [line["row"] for line in map(json.loads, stream.getvalue().splitlines()) if "row" in line]


def test_rates_of_the_machine_are_work_over_time() -> None:
    made, stream, _ = context()
    machine.measure(made)
    found = {row["what"]: row for row in rows(stream)}
    assert set(found) == {"copy", "empty kernel", "matrix product", "facts", "dispatch"}
    assert found["copy"]["bytes_per_second"] == pytest.approx(2 * 2**22 / 1e-3)
    assert found["matrix product"]["flops_per_second"] == pytest.approx(2 * 128**3 / 1e-3)
    assert found["empty kernel"]["seconds_each"] == pytest.approx(1e-3 / 100)
    # ResNet-20: 19 convolutions, BN layers and ReLUs in 9 units; 4 for each BN and 2 for each other, counters included
    body = 2 * 19 + 3 * 19 + 2 * 19 + 2 * 9
    assert body < found["dispatch"]["operations"] < body + 30


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("number", range(3))
def test_each_pass_of_a_convolution_is_that_of_autograd(layout: str, number: int) -> None:
    made, _, timer = context()
    case = placed_convolutions(NET)[number]
    inputs: list[dict[str, Tensor]] = []
    draw = torch.randn
    with pytest.MonkeyPatch.context() as patch:
        drawn: list[Tensor] = []

        def remembered(*shape: int, **kwargs: Any) -> Tensor:
            drawn.append(draw(*shape, **kwargs))
            return drawn[-1]

        patch.setattr(torch, "randn", remembered)
        for direction in convolutions.DIRECTIONS:
            drawn.clear()
            found = convolutions.time_convolution(made, case, direction, "fp32", layout, 3)
            weight, x, *gradient = drawn[: 2 if direction == "forward" else 3]
            inputs.append({"weight": weight, "x": x, "gradient": gradient[0] if gradient else x})
            assert found["flops"] == 2 * 3 * case.convolution.macs(case.size)
            assert found["tflops"] == pytest.approx(found["flops"] / 1e9)
    c = case.convolution
    for direction, given, (output, _) in zip(convolutions.DIRECTIONS, inputs, timer.results, strict=True):
        x, weight = given["x"].detach().requires_grad_(), given["weight"].detach().requires_grad_()
        y = F.conv2d(x, weight, stride=c.stride, padding=c.kernel // 2)
        if direction == "forward":
            expected, result = y, output
        else:
            gradients = torch.autograd.grad(y, [x, weight], given["gradient"])
            which = 0 if direction == "data gradient" else 1
            expected, result = gradients[which], output[which]
            assert output[1 - which] is None
        assert (result - expected).norm() < 1e-5 * expected.norm()
    moved = found["bytes"] / 4
    assert moved == given["x"].numel() + given["gradient"].numel() + weight.numel()


def test_convolutions_are_measured_as_the_trainer_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[tuple[bool, bool]] = []

    def noted(*_: Any) -> dict[str, Any]:
        flags.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
        return {"microseconds": 1.0}

    monkeypatch.setattr(convolutions, "time_convolution", noted)
    for part, benchmark in (("convolutions", False), ("autotuned", True)):
        flags.clear()
        made, stream, _ = context(part)
        convolutions.measure(made)
        assert set(flags) == {(benchmark, True)}
        assert {row["benchmark"] for row in rows(stream)} == {benchmark}
    first = [row for row in rows(stream) if row["inputs"] == 3]
    assert [row["direction"] for row in first] == ["forward", "weight gradient"]


@pytest.mark.parametrize("way", ["native", "compiled, grouped"])
def test_a_sequence_is_what_it_says_forward_and_backward(way: normalisation.Way, full: bool) -> None:
    if way != "native" and not full:
        pytest.skip("--full: Inductor takes its time")
    made, _, timer = context()
    group = 4 if way == "compiled, grouped" else 8
    found = normalisation.time_sequence(made, "add, BN, ReLU", (3, 4), "fp32", "NHWC", way, group)
    assert found["forward_floor_bytes"] == 5 * 8 * 3 * 16 * 4
    assert found["both_floor_bytes"] == 11 * 8 * 3 * 16 * 4
    assert (found["backend"] is not None) == (way == "native")
    _, both = timer.results
    (((total, y), gradients),) = both[0]
    statistics = total.detach().unflatten(0, (-1, group))
    variance, mean = torch.var_mean(statistics, (1, 3, 4), correction=0, keepdim=True)
    expected = ((statistics - mean) / (variance + 1e-5).sqrt()).flatten(0, 1).relu()
    assert (y - expected).norm() < 1e-5 * expected.norm()
    assert torch.equal(gradients[0], gradients[1])  # of the two terms
    assert len(gradients) == 4
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_groups_are_worked_off_one_by_one() -> None:
    made, _, timer = context()
    normalisation.time_sequence(made, "BN", (3, 4), "fp32", "NHWC", "native", 4)
    forward, both = timer.results
    assert [len(call) for call in forward] == [2, 2]
    assert [outputs[0].shape[0] for outputs, _ in both[0]] == [4, 4]


def test_only_what_has_a_backward_pass_is_timed_backward() -> None:
    made, _, _ = context()
    found = normalisation.time_sequence(made, "add", (3, 4), "bf16", "NCHW", "native", 8)
    assert "both_microseconds" not in found
    assert found["bytes_each"] == 2


def run(name: str, start: float, end: float) -> KernelRun:
    return KernelRun(name, start, end)


def test_time_in_which_kernels_overlap_counts_once() -> None:
    overlapping = [run("a", 0, 10), run("b", 5, 8), run("c", 9, 14), run("d", 20, 25), run("e", 25, 26)]
    assert occupation(overlapping) == (20.0, [6.0])
    assert occupation(list(reversed(overlapping))) == (20.0, [6.0])


def test_a_profile_is_summed_up_by_kind_and_step() -> None:
    runs = [
        run("sm90_xmma_fprop_cudnn", 0, 1000),
        run("sm90_xmma_fprop_cudnn", 2000, 3000),
        run("mystery", 4000, 4400),
        run("triton_poi_fused_add_0", 4400, 4800),
    ]
    found = summary(runs, steps=2, ms_per_step=2.0)
    assert found["launches"] == 2
    assert found["busy_ms"] == pytest.approx(1.4)
    assert found["busy_share"] == pytest.approx(0.7)
    assert found["idle_ms"] == pytest.approx(0.6)
    assert found["profiled_ms"] == pytest.approx(2.4)
    assert found["longest_gap_us"] == 1000
    assert found["kinds"]["convolution"] == {"ms": 1.0, "number": 1.0}
    assert found["kinds"]["elementwise"]["ms"] == pytest.approx(0.2)
    assert found["top"][0] == {"name": "sm90_xmma_fprop_cudnn", "kind": "convolution", "ms": 1.0, "number": 1.0}
    assert [item["name"] for item in found["unknown"]] == ["mystery"]
    with pytest.raises(PaperbenchError, match="no kernels"):
        summary([], 2, 1.0)


def test_a_step_is_profiled_with_all_its_convolutions() -> None:
    made, _, _ = context()
    found = kernels.one(made, NET, "fp32", "eager")
    assert found["unit"] == "operators"
    passes = made.scale.batch_size // made.scale.group
    of_convolutions = {item["name"]: item["number"] for item in found["top"] if item["kind"] == "convolution"}
    assert of_convolutions["aten::convolution_backward"] == passes * 7
    assert found["kinds"]["optimiser"]["number"] >= 1
    assert found["images_per_second"] == pytest.approx(8000 / found["ms_per_step"])


def test_an_engine_that_will_not_come_to_its_end_in_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    seconds = {"graph": 2.0, "eager": 30.0}

    def measured(context: Context, net: Any, precision: str, engine: str) -> dict[str, Any]:
        clock[0] += seconds[engine]
        return {}

    monkeypatch.setattr(kernels, "one", measured)
    made, stream, _ = context("kernels")
    made.__dict__.update(precisions=("bf16", "fp32"), engines=("graph", "eager"))
    made.recorder.deadline, made.recorder._clock = 50.0, lambda: clock[0]
    kernels.measure(made)
    assert [(row["precision"], row["engine"]) for row in rows(stream)] == [
        ("bf16", "graph"),
        ("bf16", "eager"),
        ("fp32", "graph"),
    ]
    assert json.loads(stream.getvalue().splitlines()[-1])["why"] == "no time left"


def test_of_a_deep_net_one_step_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "DEEP", 8)
    made, _, _ = context()
    steps: list[int] = []
    monkeypatch.setattr(kernels, "operators", lambda trainer, number: steps.append(number) or {})
    kernels.one(made, NET, "fp32", "eager")
    assert steps == [1]


def spoilt(seed: int, after: int) -> Callable[[Trainer], None]:
    """A step that goes wrong for one seed, at one iteration."""
    step = Trainer.step

    def wrong(trainer: Trainer) -> None:
        step(trainer)
        if trainer.seed == seed and trainer.iteration == after:
            spoilt_steps.append(1)
            if len(spoilt_steps) > 1:  # the solo run is right
                with torch.no_grad():
                    next(trainer.model.parameters()).add_(1e-7)

    spoilt_steps: list[int] = []
    return wrong


def test_seeds_side_by_side_are_compared_with_their_solo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, stream, _ = context()
    seeds.measure(made)
    assert [row["equal_to_solo"] for row in rows(stream)] == [[True], [True, True]]
    assert all(
        row["images_per_second"] == pytest.approx(8000 * row["seeds"] / row["ms_per_turn"]) for row in rows(stream)
    )
    monkeypatch.setattr(Trainer, "step", spoilt(seed=1, after=2))
    made, stream, _ = context()
    seeds.measure(made)
    assert [row["equal_to_solo"] for row in rows(stream)] == [[True], [True, False]]


def test_exactness_finds_a_run_that_does_not_go_on_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    made, stream, _ = context()
    exactness.measure(made)
    assert [row["equal"] for row in rows(stream)] == [True, True]

    load = Trainer.load_state_dict

    def forgetful(trainer: Trainer, state: dict[str, Any]) -> None:
        load(trainer, state)
        trainer.iteration = 0

    monkeypatch.setattr(Trainer, "load_state_dict", forgetful)
    made, stream, _ = context()
    exactness.measure(made)
    assert [(row["check"], row["equal"]) for row in rows(stream)] == [
        ("eager repeats itself", True),
        ("eager, stopped half-way and gone on with", False),
    ]


def test_exactness_holds_a_graph_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paperbench.training.trainer.CudaCapture", lambda device: Tape())
    made, stream, _ = context()
    made.__dict__["engines"] = ("graph", "eager")
    exactness.measure(made)
    assert [(row["check"], row["equal"]) for row in rows(stream)] == [
        ("eager repeats itself", True),
        ("graph is as eager", True),
        ("graph, stopped half-way and gone on with", True),
    ]


def test_large_images_are_stepped() -> None:
    made, _, _ = context()
    found = imagenet.steps(made, resolve("preact_resnet18"), "fp32", batch=2, size=64, seconds=0.0)
    assert found["images_per_second"] == pytest.approx(2000 / found["ms_per_step"])
    assert found["peak_allocated"] is None


def test_a_context_on_a_gpu_asks_for_all_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, _ = context()
    known = {"eager": None, "graph": None, "compile": "needs Triton"}
    monkeypatch.setattr("paperbench.bench.anatomy.context.available_engines", lambda device: known)
    on_gpu = replace(made, device=torch.device("cuda"))
    assert on_gpu.engines == ("graph", "eager")
    assert not on_gpu.can_compile
    assert made.engines == ("eager",)


def test_the_recipe_changes_its_rate_within_the_compared_steps() -> None:
    made, _, _ = context()
    steps = scale.FULL.exactness_steps
    recipe = replace(made, scale=scale.FULL).recipe
    assert recipe.rate_at(0) != recipe.rate_at(steps - 1)
    assert (recipe.batch_size, recipe.batch_norm.group) == (128, 64)


def test_the_ladder_goes_precision_by_precision_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    clock = [0.0]

    def measured(name: str, **settings: Any) -> NetFigures:
        asked.append(settings)
        clock[0] += 30.0
        variant = VariantFigures("paperbench", "graph", settings["precisions"][0], "graph", "measured")
        known = replace(variant, images_per_second=Spread(1000.0, 990.0, 1010.0), seconds=(1.0, 1.1))
        wrong = replace(variant, status="wrong loss", detail="step 3", engine="compile")
        return NetFigures(name, 1, 128, 64, 512, 3, 0.5, 20, (known, wrong), (), None, None)

    monkeypatch.setattr(ladder, "measure_net", measured)
    monkeypatch.setattr(ladder.time, "monotonic", lambda: clock[0])
    made, stream, _ = context("ladder", scale=scale.FULL)
    made.__dict__["precisions"] = ("bf16", "tf32", "fp32")
    made.recorder.deadline = 70.0
    made.recorder._clock = lambda: clock[0]
    ladder.measure(made)
    assert [settings["precisions"] for settings in asked] == [("bf16",), ("tf32",)]
    assert [settings["baselines"] for settings in asked] == [True, True]
    assert asked[0]["deadline"] == pytest.approx(0.8 * 70)
    assert [row["ms_per_step"] for row in rows(stream)] == [128.0, 128.0]
    left = [line for line in map(json.loads, stream.getvalue().splitlines()) if "left_out" in line]
    assert [line["why"] for line in left] == ["wrong loss: step 3"] * 2 + ["no time left"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph", "compile"])
def test_a_step_on_a_gpu_is_profiled_kernel_by_kernel(engine: str) -> None:
    made, _, _ = context(device=torch.device("cuda"), scale=replace(scale.FULL, images=512))
    found = kernels.one(made, resolve("preact_resnet20"), "bf16", engine)
    assert found["unit"] == "kernels"
    assert found["kinds"]["convolution"]["number"] >= 3 * 19 - 1
    assert 0 < found["busy_share"] <= 1


@pytest.mark.gpu
def test_seeds_on_streams_are_equal_to_their_solo_runs_on_a_gpu() -> None:
    made, stream, _ = context(device=torch.device("cuda"), scale=replace(scale.FULL, images=512, seeds=(1, 4)))
    seeds.measure(made)
    assert [row["equal_to_solo"] for row in rows(stream)] == [[True], [True] * 4]
