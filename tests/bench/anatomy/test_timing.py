from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paperbench.bench.anatomy import timing
from paperbench.bench.anatomy.timing import GraphTimer, WallTimer, calls_for


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_wall_timer_finds_what_a_call_takes() -> None:
    clock = Clock()

    def body(seconds: float) -> Any:
        def call() -> None:
            clock.now += seconds

        return call

    found = WallTimer(1.0, 5, clock).time([body(0.01), body(0.03)])
    assert found.seconds == pytest.approx(0.02)
    assert found.low == pytest.approx(found.high)


def test_a_slow_sample_does_not_move_the_median() -> None:
    clock, calls = Clock(), []

    def call() -> None:
        calls.append(1)
        clock.now += 1.0 if len(calls) <= 3 else 0.01  # first calls and the first sample are slow

    found = WallTimer(0.01, 5, clock).time([call])
    assert found.seconds == pytest.approx(0.01)
    assert found.high == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("sample", "call", "bodies", "expected"),
    [(0.003, 1e-5, 1, 300), (0.003, 1e-5, 64, 320), (0.003, 1.0, 4, 4), (1.0, 1e-9, 3, 1000), (0.003, 0.0, 1, 1000)],
)
def test_calls_fill_a_sample_and_use_every_body(sample: float, call: float, bodies: int, expected: int) -> None:
    assert calls_for(sample, call, bodies) == expected


class FakeCuda:
    """Those functions of torch.cuda that the timer uses, with the order in which they were called.

    The work itself is done on the CPU; a body's call takes `seconds` of this GPU, when it is not being captured.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.calls = seconds, 0.0, list[str]()
        self.capturing = False
        self.captured = 0

    def body(self) -> torch.Tensor:
        if self.capturing:
            self.captured += 1
            self.calls.append("captured call")
        else:
            self.now += self.seconds
            self.calls.append("call")
        return torch.ones(1)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outer = self

        class Stream:
            def __init__(self, device: torch.device) -> None: ...

            def wait_stream(self, other: Any) -> None:
                outer.calls.append("wait")

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = outer.now

            def synchronize(self) -> None: ...

            def elapsed_time(self, other: Any) -> float:
                return 1000 * float(other.at - self.at)

        class Graph:
            def replay(self) -> None:
                assert not outer.capturing
                outer.calls.append("replay")
                outer.now += outer.captured * outer.seconds

            def reset(self) -> None:
                outer.calls.append("reset")

        @contextmanager
        def graph(one: Graph, stream: Stream) -> Any:
            assert isinstance(stream, Stream)
            outer.capturing = True
            yield
            outer.capturing = False

        @contextmanager
        def on(stream: Stream) -> Any:
            yield

        fake = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            CUDAGraph=Graph,
            graph=graph,
            stream=on,
            current_stream=Stream,
            synchronize=lambda device: outer.calls.append("synchronize"),
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=60 * 2**20),
        )
        monkeypatch.setattr(timing.torch, "cuda", fake)


def test_the_graph_timer_warms_up_captures_and_times_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(seconds=1e-4)
    cuda.install(monkeypatch)
    found = GraphTimer(torch.device("cuda"), 0.003, 5).time([cuda.body, cuda.body])
    assert found.seconds == pytest.approx(1e-4)
    order = [call for number, call in enumerate(cuda.calls) if number == 0 or call != cuda.calls[number - 1]]
    assert order == ["wait", "call", "synchronize", "captured call", "replay", "synchronize", "reset"]
    assert cuda.captured == 30
    assert cuda.calls.count("replay") == GraphTimer.WARM_UPS + 2 * 5  # one untimed before each


def test_calls_take_turns_over_more_than_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(1e-4).install(monkeypatch)
    timer = GraphTimer(torch.device("cuda"), 0.003, 5)
    assert timer.sets(8e6) * 8e6 >= 2 * 60 * 2**20
    assert timer.sets(1e9) == 2
    assert timer.sets(1.0) == timing.MOST_SETS


@pytest.mark.gpu
def test_the_graph_timer_times_a_copy_on_a_gpu() -> None:
    device = torch.device("cuda")
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    found = GraphTimer(device, 0.01, 5).time([lambda: target.copy_(source)])
    assert 1e11 < 2 * source.nbytes / found.seconds < 2e13
    assert torch.equal(source, target)
