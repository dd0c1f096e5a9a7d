"""Counts by the architecture against what torch's dispatcher sees of a real step on tensors without memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from paperbench.bench.anatomy.floors import BYTES_OF, LEVELS, Floors, Level, passes_of, placed_convolutions
from paperbench.catalogue import resolve
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet

Published = tuple[float, float, float, float, int]

KNOWN: dict[str, Published] = {
    # GFLOP forward; MB an image: unfused fp32, fused bf16, ideal bf16; operations other than views
    "preact_resnet110": (0.506, 92.0, 32.5, 15.7, 997),
    "preact_resnet164": (0.489, 289.0, 101.0, 51.0, 1431),
    "preact_resnet1001": (2.976, 1761.0, 613.0, 307.0, 8685),
}

LAUNCHES = {
    # with a counter of batches in each BN: eager; Inductor; BN by hand; all fused
    "preact_resnet110": (980, 981, 763, 218),
    "preact_resnet164": (1421, 1476, 1150, 332),
    "preact_resnet1001": (8675, 9009, 7009, 2006),
}


class Seen(TorchDispatchMode):
    """Operators of a step, and the elements that their kernels read and write: those of one image."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.number: Counter[str] = Counter()
        self.elements: Counter[str] = Counter()
        self.flops = 0
        self.operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = function.__name__.partition(".")[0]
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns)
        self.operations += not is_view
        self.number[name] += 1
        match name:
            case "convolution":
                x, weight = args[0], args[1]
                self._move("convolution", x, output)
                self.flops += 2 * output.numel() // self.batch * weight[0].numel()
            case "convolution_backward":
                gradient, x = args[0], args[1]
                wanted = args[-1]
                for needed in wanted[:2]:
                    if needed:
                        self._move("convolution", gradient, x)
            case "native_batch_norm":
                self._move("normalisation", args[0], args[0], output[0])
            case "native_batch_norm_backward":
                gradient, x = args[0], args[1]
                self._move("normalisation", gradient, gradient, x, x, output[0])
            case "relu":
                self._move("normalisation", args[0], output)
            case "threshold_backward":
                self._move("normalisation", args[0], args[1], output)
            case "add" if output.dim() == 4:
                self._move("normalisation", args[0], args[1], output)
        return output

    def _move(self, work: str, *tensors: torch.Tensor) -> None:
        self.elements[work] += sum(t.numel() for t in tensors) // self.batch


def seen(name: str) -> Seen:
    with torch.device("meta"):
        model = ResidualNet(resolve(name)).train()
        images, labels = torch.empty(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    with Seen(4) as counted:
        F.cross_entropy(model(images), labels).backward()
    return counted


@pytest.mark.parametrize(
    "name",
    ["preact_resnet110", "preact_resnet164", "original_resnet56", "original_resnet164", "resnet110_relu_only_preact"],
)
def test_counts_are_those_of_a_real_step(name: str) -> None:
    real, floors = seen(name), Floors(resolve(name))
    assert floors.operations["convolution"] == real.number["convolution"]
    assert floors.operations["batch_norm"] == real.number["native_batch_norm"]
    assert floors.operations["relu"] == real.number["relu"] == real.number["threshold_backward"]
    assert floors.operations["addition"] + floors.operations["accumulation"] == real.number["add"]
    moved = floors.bytes_per_image("unfused", "fp32", "convolution") / 4
    assert moved == real.elements["convolution"]
    # Option A's padding and the pooling are small and not looked at in the real step.
    moved = floors.bytes_per_image("unfused", "fp32", "normalisation") / 4
    assert real.elements["normalisation"] <= moved < 1.012 * real.elements["normalisation"]
    classifier = 2 * 10 * floors.net.num_classes * 64
    assert floors.forward_flops == pytest.approx(real.flops, abs=classifier)
    parameters = sum(p.numel() for p in ResidualNet(floors.net).parameters())
    assert floors.parameters == parameters


@pytest.mark.parametrize("name", KNOWN)
def test_totals_are_the_known_ones(name: str) -> None:
    flops, unfused, fused, ideal, _ = KNOWN[name]
    floors = Floors(resolve(name))
    assert floors.forward_flops / 1e9 == pytest.approx(flops, abs=0.001)
    assert floors.bytes_per_image("unfused", "fp32") / 1e6 == pytest.approx(unfused, rel=0.005)
    assert floors.bytes_per_image("fused", "bf16") / 1e6 == pytest.approx(fused, rel=0.003)
    assert floors.bytes_per_image("ideal", "bf16") / 1e6 == pytest.approx(ideal, rel=0.004)


@pytest.mark.parametrize("name", KNOWN)
def test_operators_of_a_step_are_the_known_number(name: str) -> None:
    """Two for a convolution, four for BN (with its counter and an allocation), two for ReLU; some for the head."""
    o = Floors(resolve(name)).operations
    body = 2 * o["convolution"] + 4 * o["batch_norm"] + 2 * o["relu"] + o["addition"] + o["accumulation"]
    assert body + 15 == pytest.approx(KNOWN[name][4], abs=5)
    if name != "preact_resnet1001":
        assert seen(name).operations == pytest.approx(KNOWN[name][4], abs=3)


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_are_the_known_ones(name: str) -> None:
    eager, inductor, by_hand, fused = LAUNCHES[name]
    floors = Floors(resolve(name))
    # One less: the images need no gradient. And no counters, which the trainer has none of on the device.
    assert floors.launches("unfused") == eager - 1 - floors.operations["batch_norm"]
    assert floors.launches("fused") == inductor - 1
    assert floors.launches("fused") - 2 * floors.operations["batch_norm"] == by_hand - 1
    assert floors.launches("ideal") == fused


def test_passes_multiply_launches_unless_a_kernel_takes_all_groups() -> None:
    floors = Floors(resolve("preact_resnet20"))
    assert floors.launches("unfused", 2) == 2 * floors.launches("unfused")
    assert floors.launches("ideal", 2) == floors.launches("ideal")
    assert [passes_of(engine, 128, 64) for engine in ("eager", "graph", "compile")] == [2, 2, 1]


@pytest.mark.parametrize("level", LEVELS)
def test_precisions_differ_by_the_size_of_their_elements(level: Level) -> None:
    floors = Floors(resolve("preact_resnet164"))
    moved = {precision: floors.bytes_per_image(level, precision) for precision in BYTES_OF}
    assert moved["fp32"] == moved["tf32"] == 2 * moved["bf16"]
    assert moved["bf16"] < moved["bf16-fp32-stream"] < moved["fp32"]


def test_each_level_moves_less_than_the_one_before() -> None:
    for name in ("preact_resnet110", "original_resnet164", "resnet110_relu_only_preact", "preact_resnet200"):
        floors = Floors(resolve(name))
        unfused, fused, ideal = (floors.bytes_per_image(level, "bf16") for level in LEVELS)
        assert ideal < fused < unfused


def test_a_steps_bytes_hold_optimiser_and_images() -> None:
    floors = Floors(resolve("preact_resnet20"))
    net = floors.bytes_per_image("fused", "bf16")
    assert floors.step_bytes("fused", "bf16", 128) == 128 * (net + 3072 * 5) + 20 * floors.parameters
    more = floors.step_bytes("fused", "bf16", 128, passes=2) - floors.step_bytes("fused", "bf16", 128)
    assert more == 12 * floors.parameters


def test_placed_convolutions_are_all_of_the_nets() -> None:
    placed = placed_convolutions(resolve("preact_resnet164"))
    assert sum(p.number for p in placed) == 166
    assert sum(p.number * p.convolution.macs(p.size) for p in placed) == pytest.approx(
        Floors(resolve("preact_resnet164")).forward_flops / 2, abs=2560
    )
    assert [p.needs_input_gradient for p in placed] == [False] + [True] * (len(placed) - 1)
    shapes = {(p.convolution.kernel, p.convolution.inputs, p.convolution.outputs, p.size) for p in placed}
    wanted = {(3, 16, 16, 32), (3, 32, 32, 16), (3, 64, 64, 8), (1, 64, 16, 32), (1, 16, 64, 32), (1, 128, 32, 16)}
    assert wanted | {(1, 256, 64, 8)} <= shapes


def test_gates_are_not_counted() -> None:
    with pytest.raises(PaperbenchError, match="exclusive_gating"):
        Floors(resolve("resnet110_exclusive_gating"))
