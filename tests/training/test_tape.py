"""The tape has the restrictions of CUDA graphs. The tests of the graph engine check that it replays steps exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.training.tape import CaptureError, Tape


def test_recording_has_no_effect_and_freezes_python_values() -> None:
    """So an engine with the learning rate as a Python float differs from the eager one."""
    weight, rate, made = torch.ones(3, requires_grad=True), [1.0], []

    def step() -> None:
        loss = weight.square().sum()
        loss.backward()
        made.append(loss.detach())
        with torch.no_grad():
            weight.add_(torch.ones(3), alpha=rate[0])

    replay = Tape().record(step)
    assert torch.equal(weight, torch.ones(3))
    assert made[0].isnan()
    rate[0] = 100.0
    replay()
    assert torch.equal(weight, torch.full((3,), 2.0))
    assert made == [torch.tensor(3.0)]


def test_replays_use_the_current_generator_state() -> None:
    noise = torch.zeros(5)
    torch.manual_seed(1)
    expected = torch.rand(5)
    torch.manual_seed(1)
    replay = Tape().record(lambda: noise.uniform_())
    assert torch.equal(torch.rand(5), expected)  # recording did not use the generator
    torch.manual_seed(1)
    replay()
    assert torch.equal(noise, expected)
    replay()
    assert not torch.equal(noise, expected)


def test_calls_side_by_side_have_no_order() -> None:
    """So they must not share memory."""
    seen, own, shared = torch.zeros(2), torch.zeros(2), torch.zeros(1)
    tape = Tape()

    def call(number: int, memory: Tensor) -> None:
        memory.fill_(number + 1)
        seen[number].copy_(memory[0])

    for memories, expected in (([own[:1], own[1:]], [1, 2]), ([shared, shared], [1, 1])):
        calls = [partial(call, *one) for one in enumerate(memories)]
        tape.record(partial(tape.side_by_side, calls))()
        assert seen.tolist() == expected


HOST_READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "numpy": lambda x: x.numpy(),
    "mask": lambda x: x[x > 0],
    "from the host": lambda x: x + torch.tensor(2.0),
    "another generator": lambda x: torch.rand(3, generator=torch.Generator()),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_host_reads_and_host_values_are_refused(name: str) -> None:
    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    HOST_READS[name](x.clone())
    with pytest.raises(CaptureError):
        Tape().record(lambda: HOST_READS[name](x))


def test_replaced_buffer_is_detected() -> None:
    tape, layer, x = Tape(), nn.BatchNorm1d(2), torch.randn(8, 2)
    replay = tape.record(lambda: layer(x).sum().backward())
    replay()
    recorded = layer.running_mean
    assert tape.uses(layer.weight)
    assert tape.uses(layer.running_mean)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))  # in place
    assert tape.uses(layer.running_mean)
    layer.running_mean = torch.zeros(2)
    replay()  # writes to the old buffer, like a CUDA graph
    assert not tape.uses(layer.running_mean)
    assert not layer.running_mean.any()
    del recorded
    with pytest.raises(CaptureError, match="was freed"):
        replay()
