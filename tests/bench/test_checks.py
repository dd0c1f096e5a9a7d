from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from paperbench.bench import checks
from paperbench.bench.checks import check_batch_norm, check_repetitions
from paperbench.bench.decisions import BatchNormRow

CPU = torch.device("cpu")


def worst(rows: list[BatchNormRow], kernels: str) -> float:
    errors = [row.error for row in rows if row.kernels == kernels]
    assert len(errors) == 2 * len(checks.MEANS) * len(checks.SPREADS)
    return max(float("inf") if error is None else error for error in errors)


def test_batch_norm_is_measured_on_inputs_up_to_1e12(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SHAPE", (8, 4, 8, 8))
    rows = check_batch_norm(CPU, seconds=1e-6)
    assert max(row.mean for row in rows) == 1e12
    assert all(row.milliseconds > 0 for row in rows)
    assert worst(rows, "native") < 1e-2


def test_overflow_of_either_library_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of squares overflows float32 at 1e20."""
    monkeypatch.setattr(checks, "SHAPE", (8, 4, 8, 8))
    monkeypatch.setattr(checks, "MEANS", (1e25,))
    assert {row.error for row in check_batch_norm(CPU, seconds=1e-6)} == {None}


def test_batch_norm_is_timed_as_a_graph_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    tape = SimpleNamespace(warm_up=lambda work: work(), record=lambda _: lambda: calls.append("replay"))
    monkeypatch.setattr(checks, "CudaCapture", lambda _: tape)
    checks._without_host(lambda: calls.append("work"), torch.device("cuda"))()
    checks._without_host(lambda: calls.append("on the host"), CPU)()
    assert calls == ["work", "replay", "on the host"]


@pytest.mark.gpu
def test_batch_norm_of_exploding_nets_is_right_on_a_gpu() -> None:
    assert worst(check_batch_norm(torch.device("cuda")), "native") < 1e-2


class Direct:
    """An executor in this process."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., str], *arguments: object) -> Direct:
        self.result = lambda: function(*arguments)
        return self


def test_training_that_is_repeated_or_resumed_has_equal_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ProcessPoolExecutor", Direct)
    monkeypatch.setattr(checks, "STEPS", 2)
    rows = check_repetitions("preact_resnet20", CPU, 16)
    assert [(row.engine, row.precision) for row in rows] == [("eager", "fp32"), ("eager", "bf16")]
    assert {len(row.states) for row in rows} == {3}
    assert {len(set(row.states)) for row in rows} == {1}


def test_training_that_differs_or_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(range(10))

    def different(*arguments: object) -> str:
        if "bf16" in arguments:
            raise RuntimeError("no such kernel")
        return str(next(made))

    monkeypatch.setattr(checks, "ProcessPoolExecutor", Direct)
    monkeypatch.setattr(checks, "train", different)
    fp32, bf16 = check_repetitions("preact_resnet20", CPU, 16)
    assert (fp32.states, fp32.problem) == (("0", "1", "2"), None)
    assert (bf16.states, bf16.problem) == ((), "RuntimeError: no such kernel")
