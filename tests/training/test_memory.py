from __future__ import annotations

import pytest
import torch

from paperbench.catalogue import resolve
from paperbench.training.memory import step_memory

CPU = torch.device("cpu")


def kept_by_hand(batch_size: int, bytes_each: int) -> int:
    """What a forward pass of the original ResNet-20 leaves for the backward pass.

    Of each of its 19 convolutions: what it puts out, which BN needs, and what BN and ReLU, or addition and ReLU, make
    of that; and the images.
    """
    layers = {16 * 32 * 32: 1 + 6, 32 * 16 * 16: 6, 64 * 8 * 8: 6}
    maps = sum(2 * number * size for size, number in layers.items())
    return batch_size * (maps + 3 * 32 * 32) * bytes_each


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp32", 4), ("bf16", 2)])
def test_a_step_takes_what_was_counted_by_hand(precision: str, bytes_each: int) -> None:
    taken = step_memory(resolve("original_resnet20"), 128, precision, CPU)  # type: ignore[arg-type]
    expected = kept_by_hand(128, bytes_each) + 3 * 4 * 269_722
    assert expected < taken < 1.08 * expected


def test_the_rest_grows_with_the_images() -> None:
    net = resolve("preact_resnet20")
    small, large = (step_memory(net, batch_size, "fp32", CPU) for batch_size in (16, 64))
    assert large - small == pytest.approx(3 * (small - 2 * 4 * 269_722), rel=0.1)


def test_recomputing_the_units_keeps_their_inputs_and_one_unit() -> None:
    net = resolve("preact_resnet110")
    usual = step_memory(net, 128, "fp32", CPU)
    thrifty = step_memory(net, 128, "fp32", CPU, grad_checkpointing=True)
    inputs = 128 * 4 * 18 * (16 * 32 * 32 + 32 * 16 * 16 + 64 * 8 * 8)
    assert inputs < thrifty < inputs + 3 * 4 * 1_727_962 + 12 * 128 * 4 * 16 * 32 * 32
    assert thrifty < usual / 3


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_gpu_takes_is_what_is_counted_and_some_workspace(checkpointing: bool) -> None:
    net = resolve("preact_resnet110")
    measured, counted = (
        step_memory(net, 128, "fp32", torch.device(device), grad_checkpointing=checkpointing)
        for device in ("cuda", "cpu")
    )
    assert 0.95 * counted < measured < 1.5 * counted
