"""The code that the compile engine generates for NVIDIA GPUs, checked without one."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.training.gpu_lowering import Capability, Compiled, Lowered, compile_kernels, lower_units

Case = tuple[tuple[str, int], Capability, Lowered]

pytestmark = pytest.mark.full

BASIC, BOTTLENECK = ("preact_resnet20", 14), ("preact_resnet164", 20)  # two units in each stage

# Of the first and the other units of each stage. A BN layer takes up to seven, the addition one. Large images need one
# more for their mean and variance.
MOST_KERNELS = {BASIC: [17, 17, 16, 15, 15, 15], BOTTLENECK: [25, 25, 23, 22, 22, 22]}


@pytest.fixture(
    scope="module",
    params=[(BOTTLENECK, "fp32", (9, 0)), (BOTTLENECK, "bf16", (8, 0)), (BASIC, "fp32", (7, 5))],
    ids=["bottleneck-fp32-sm90", "bottleneck-bf16-sm80", "basic-fp32-sm75"],
)
def case(request: pytest.FixtureRequest) -> Case:
    net, precision, capability = request.param
    return net, capability, lowered(net, precision, capability)


def lowered(net: tuple[str, int], precision: str, capability: Capability, *, combo_kernels: bool = False) -> Lowered:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=0, accumulated_recompile_limit=0):
        found = lower_units(*net, precision, capability, combo_kernels=combo_kernels)
    torch._dynamo.reset()
    return found


def check_reductions(compiled: list[Compiled]) -> None:
    assert {kernel.configurations for kernel in compiled if kernel.is_reduction} == {1}
    assert all(kernel.cubin for kernel in compiled)
    assert max(kernel.shared_memory for kernel in compiled) <= 48 * 2**10


def test_each_kind_of_unit_launches_few_kernels(case: Case) -> None:
    net, _, found = case
    assert all(number <= most for number, most in zip(found.launches(), MOST_KERNELS[net], strict=True))


def test_values_of_images_are_channels_last(case: Case) -> None:
    """A buffer in another layout would be copied before the next convolution, or by it."""
    found = case[2].image_strides()
    assert len(found) >= 3  # one per stage
    assert [entry for entry in found if len(entry[0]) != 4 or entry[1][1] != 1] == []


def test_no_kernel_adds_atomically(case: Case) -> None:
    assert [name for name, source in case[2].kernels.items() if "tl.atomic" in source] == []


def test_kernels_compile_and_no_reduction_is_chosen_by_timing(case: Case) -> None:
    _, capability, found = case
    check_reductions(compile_kernels(found.kernels, capability))


def test_combo_kernels_are_fewer_and_not_chosen_by_timing() -> None:
    found = lowered(BOTTLENECK, "bf16", (9, 0), combo_kernels=True)
    most = [number - 3 for number in MOST_KERNELS[BOTTLENECK]]  # the two sums of each backward pass of BN
    assert all(number <= bound for number, bound in zip(found.launches(), most, strict=True))
    check_reductions(compile_kernels(found.kernels, (9, 0)))
