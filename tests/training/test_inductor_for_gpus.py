"""The code that the compile engine generates for NVIDIA GPUs, checked without one."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.training.gpu_lowering import Capability, Lowered, compile_kernels, lower_units

Case = tuple[tuple[tuple[str, int], str], Capability, Lowered]

pytestmark = pytest.mark.full

BASIC, BOTTLENECK = ("preact_resnet20", 14), ("preact_resnet164", 20)  # two units in each stage

# Of the first and the other units of each stage. A BN layer takes up to seven, the addition one. Large images need one
# more for their mean and variance. Where a unit of option A changes dimensions in bf16, a product that BN sums is
# written in another layout and read once.
MOST_KERNELS = {
    (BASIC, "bf16"): [17, 17, 18, 15, 17, 15],
    (BASIC, "fp32"): [17, 17, 16, 15, 15, 15],
    (BOTTLENECK, "bf16"): [25, 25, 23, 22, 22, 22],
    (BOTTLENECK, "tf32"): [25, 25, 23, 22, 22, 22],
}
OTHER_LAYOUTS = {(BASIC, "bf16"): {(128, 16, 32, 32), (128, 32, 16, 16)}}


@pytest.fixture(
    scope="module",
    params=[
        (BOTTLENECK, "tf32", (9, 0)),
        (BOTTLENECK, "bf16", (8, 0)),
        (BASIC, "fp32", (7, 5)),
        (BASIC, "bf16", (9, 0)),
    ],
    ids=["bottleneck-tf32-sm90", "bottleneck-bf16-sm80", "basic-fp32-sm75", "basic-bf16-sm90"],
)
def case(request: pytest.FixtureRequest) -> Case:
    net, precision, capability = request.param
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=0, accumulated_recompile_limit=0):
        found = lower_units(*net, precision, capability)
    torch._dynamo.reset()
    return (net, precision), capability, found


def test_each_kind_of_unit_launches_few_kernels(case: Case) -> None:
    trained, _, found = case
    assert all(number <= most for number, most in zip(found.launches(), MOST_KERNELS[trained], strict=True))


def test_values_of_images_are_channels_last(case: Case) -> None:
    """A buffer in another layout would be copied before the next convolution, or by it."""
    found = case[2].image_strides()
    assert len(found) >= 3  # one per stage
    others = {shape for shape, strides in found if len(shape) != 4 or strides[1] != 1}
    assert others == OTHER_LAYOUTS.get(case[0], set())


def test_no_kernel_adds_atomically(case: Case) -> None:
    assert [name for name, source in case[2].kernels.items() if "tl.atomic" in source] == []


def test_kernels_compile_and_no_reduction_is_chosen_by_timing(case: Case) -> None:
    _, capability, found = case
    compiled = compile_kernels(found.kernels, capability)
    assert {kernel.configurations for kernel in compiled if kernel.is_reduction} == {1}
    assert all(kernel.cubin for kernel in compiled)
    assert max(kernel.shared_memory for kernel in compiled) <= 48 * 2**10
