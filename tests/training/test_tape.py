"""The tape against the same steps run one after another, and against what CUDA refuses to capture."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.tape import CaptureError, Tape

REPLAYS = 4


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def assert_replays_are_repetitions(make: Callable[[], tuple[Callable[[], None], list[Tensor]]]) -> None:
    """`make` gives a step and the tensors that it changes; twice the same, and independent of each other."""
    (eager, expected), (recorded, found) = make(), make()
    untouched = [t.detach().clone() for t in found]
    torch.manual_seed(5)
    tape = Tape()
    replay = tape.record(recorded)
    assert all(map(same_bits, found, untouched))
    torch.manual_seed(5)
    trace = []
    for _ in range(REPLAYS):
        eager()
        trace.append([t.detach().clone() for t in expected])
    torch.manual_seed(5)
    for values in trace:
        replay()
        assert all(map(same_bits, found, values))
    assert not all(map(same_bits, trace[-1], trace[-2]))  # else nothing would have been compared


def test_linear_regression_by_hand() -> None:
    def make() -> tuple[Callable[[], None], list[Tensor]]:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(8, 3, generator=generator), torch.randn(8, generator=generator)
        weight, loss = torch.zeros(3, requires_grad=True), torch.zeros((), dtype=torch.float64)

        def step() -> None:
            error = (x @ weight - y).square().mean()
            (gradient,) = torch.autograd.grad(error, weight)
            with torch.no_grad():
                weight.sub_(0.1 * gradient)
            loss.add_(error.detach())

        return step, [weight, loss]

    assert_replays_are_repetitions(make)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_small_net_with_batch_norm_dropout_and_fused_sgd(bf16: bool, nesterov: bool) -> None:
    def make() -> tuple[Callable[[], None], list[Tensor]]:
        generator = torch.Generator().manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(4, 5, 3)
        ).to(memory_format=torch.channels_last)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        rate = torch.tensor(0.1)
        optimiser = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=nesterov, fused=True)
        momentum = [torch.zeros_like(p) for p in net.parameters()]
        for parameter, buffer in zip(net.parameters(), momentum, strict=True):
            optimiser.state[parameter]["momentum_buffer"] = buffer
        images, labels = torch.randn(6, 3, 8, 8, generator=generator), torch.tensor([0, 1, 2, 3, 4, 0])
        loss, wrong = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)

        def step() -> None:
            optimiser.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
                logits = net(images).mean((2, 3)).float()
            now = F.cross_entropy(logits, labels)
            now.backward()
            optimiser.step()
            loss.add_(now.detach())
            wrong.add_((logits.detach().argmax(1) != labels).sum())
            rate.mul_(0.5)  # what is on the device may change

        return step, [*net.state_dict().values(), *momentum, loss, wrong, rate]

    assert_replays_are_repetitions(make)


def test_views_and_writing_through_them() -> None:
    def make() -> tuple[Callable[[], None], list[Tensor]]:
        table = torch.arange(12.0).view(3, 4)
        row = table[1]

        def step() -> None:
            column = table.t()[2]
            column += row[:3] * 2
            fresh = torch.zeros(2, 4)
            fresh[0].copy_(table[2])
            fresh.view(-1)[4:].add_(1)
            table.index_copy_(0, torch.arange(2), fresh)  # into the first two rows
            row.add_(table.sum())

        return step, [table]

    assert_replays_are_repetitions(make)


def test_lists_of_tensors() -> None:
    def make() -> tuple[Callable[[], None], list[Tensor]]:
        values = [torch.ones(3), torch.full((2, 2), 2.0), torch.tensor(3.0)]
        results = [torch.zeros_like(v) for v in values]

        def step() -> None:
            torch._foreach_mul_(values, 1.5)
            sums = torch._foreach_add(values, values, alpha=0.25)
            torch._foreach_copy_(results, sums)
            torch._foreach_mul_(values, sums[2])
            first, second = values[1].split(1)
            results[1].add_(torch.cat([second, first]))

        return step, [*values, *results]

    assert_replays_are_repetitions(make)


def test_places_that_depend_on_counters_on_the_device() -> None:
    def make() -> tuple[Callable[[], None], list[Tensor]]:
        table, counter, total = torch.arange(10.0).square(), torch.zeros((), dtype=torch.int64), torch.zeros(2)

        def step() -> None:
            total.add_(table[torch.stack((counter, counter + 1))])
            counter.add_(1)

        return step, [counter, total]

    assert_replays_are_repetitions(make)


def test_gradients_that_gather_over_two_passes() -> None:
    def make() -> tuple[Callable[[], None], list[Tensor]]:
        weight, sums = torch.ones(3, requires_grad=True), torch.zeros(3)

        def step() -> None:
            weight.grad = None
            for factor in (2.0, 3.0):
                (factor * weight.square()).sum().backward()
            sums.add_(weight.grad)
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.01)

        return step, [weight, sums]

    assert_replays_are_repetitions(make)


def test_values_of_python_are_frozen() -> None:
    """So that an engine whose learning rate were a float would fail against the eager one."""
    x, rate, calls = torch.zeros(()), [1.0], []

    def step() -> None:
        calls.append(rate[0])
        x.add_(torch.ones(()), alpha=rate[0])

    replay = Tape().record(step)
    rate[0] = 100.0
    replay()
    replay()
    assert x == 2
    assert calls == [1.0]


def test_random_numbers_go_on_from_where_the_generator_stands() -> None:
    noise = torch.zeros(5)
    torch.manual_seed(1)
    expected = torch.rand(5)
    torch.manual_seed(1)
    replay = Tape().record(lambda: noise.uniform_())
    assert torch.equal(torch.rand(5), expected)  # recording drew none
    torch.manual_seed(1)
    replay()
    assert torch.equal(noise, expected)
    replay()
    assert not torch.equal(noise, expected)


def test_recording_has_no_effect_and_leaves_garbage() -> None:
    weight, counter = torch.ones(3, requires_grad=True), torch.zeros((), dtype=torch.int64)
    made = []

    def step() -> None:
        loss = weight.square().sum()
        loss.backward()
        counter.add_(1)
        made.append(loss.detach())
        with torch.no_grad():
            weight.mul_(2)

    replay = Tape().record(step)
    assert torch.equal(weight, torch.ones(3))
    assert counter == 0
    assert made[0].isnan()
    replay()
    assert torch.equal(weight, torch.full((3,), 2.0))
    assert counter == 1
    assert made[0] == 3


def test_the_warm_up_has_its_effects() -> None:
    counter = torch.zeros(())
    Tape().warm_up(lambda: counter.add_(1))
    assert counter > 1


def test_a_failing_step_has_no_effect() -> None:
    x = torch.ones(3)

    def step() -> None:
        x.mul_(torch.rand(()))
        x.sum().item()

    state = torch.get_rng_state()
    with pytest.raises(CaptureError):
        Tape().record(step)
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)
    x.sum().item()  # no longer forbidden


HOST_READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x[0] > 0 else 2,
    "list": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "assignment under a mask": lambda x: x.__setitem__(x > 0, torch.zeros(())),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "isfinite all": lambda x: x.isfinite().all().item(),
    "repeats": lambda x: x.repeat_interleave(torch.tensor([1, 2, 1, 1])),
    "from the host": lambda x: x + torch.tensor(2.0),
    "float learning rate as a new tensor": lambda x: x.mul_(torch.as_tensor(0.1)),
    "a generator of one's own": lambda x: torch.rand(3, generator=torch.Generator()),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_what_waits_for_the_device_or_comes_from_the_host_is_refused(name: str) -> None:
    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    HOST_READS[name](x.clone())
    with pytest.raises(CaptureError):
        Tape().record(lambda: HOST_READS[name](x))


def test_the_default_generator_may_be_named() -> None:
    x = torch.zeros(3)
    Tape().record(lambda: x.uniform_(generator=torch.default_generator))()
    assert x.abs().sum() > 0


def _run(layer: nn.Module, x: Tensor) -> None:
    layer(x).sum().backward()


def test_memory_that_is_gone_is_told() -> None:
    tape, x = Tape(), torch.ones(3)
    replay = tape.record(lambda: x.add_(torch.ones(3)))
    replay()
    x = torch.ones(3)  # the closure goes with it, as the tape keeps neither
    with pytest.raises(CaptureError, match="was freed"):
        replay()


def test_a_rebound_buffer_is_told() -> None:
    tape, layer, x = Tape(), nn.BatchNorm1d(2), torch.randn(8, 2)
    replay = tape.record(lambda: _run(layer, x))
    replay()
    recorded = layer.running_mean
    assert tape.uses(layer.weight)
    assert tape.uses(layer.running_mean)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))  # in place
    assert tape.uses(layer.running_mean)
    layer.running_mean = torch.zeros(2)
    replay()  # into the old buffer, as a CUDA graph would
    assert not tape.uses(layer.running_mean)
    assert not layer.running_mean.any()
    del recorded
    with pytest.raises(CaptureError, match="was freed"):
        replay()


def test_views_of_a_recorded_tensor_are_the_recorded_one() -> None:
    tape, x = Tape(), torch.ones(4)
    tape.record(lambda: x.add_(1))
    assert tape.uses(x[2:])
    assert not tape.uses(x.clone())
    assert not tape.uses(torch.ones(4))


def test_what_the_recording_made_is_filled_by_each_replay() -> None:
    weight = torch.ones(3, requires_grad=True)
    replay = Tape().record(lambda: weight.square().sum().backward())
    gradient = weight.grad
    weight.grad = None  # the graph's memory lasts as long as the graph
    for scale in (1.0, 3.0):
        with torch.no_grad():
            weight.fill_(scale)
        replay()
        assert torch.equal(gradient, torch.full((3,), 2 * scale))
    assert weight.grad is None


def test_autocast_of_the_moment_is_recorded() -> None:
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    result = torch.zeros(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        replay = Tape().record(lambda: result.copy_(a @ b))
    replay()
    assert torch.equal(result, (a.bfloat16() @ b.bfloat16()).float())
    exact = Tape().record(lambda: result.copy_(a @ b))
    with torch.autocast("cpu", torch.bfloat16):
        exact()
    assert torch.equal(result, a @ b)
