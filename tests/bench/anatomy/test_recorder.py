from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from paperbench.bench.anatomy.recorder import Recorded, Recorder


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rows_are_there_as_soon_as_they_are_known(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    with open(file, "w") as stream:
        recorder = Recorder(stream, float("inf"))
        recorder.add({"a": 1, "bad": float("nan"), "list": (float("inf"), 2.0)})
        found = Recorded(file)
        assert found.rows == [{"a": 1, "bad": None, "list": [None, 2.0]}]
        assert not found.is_complete
        recorder.end()
    assert Recorded(file).is_complete


def test_the_broken_last_line_of_a_killed_process_costs_that_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text('{"row": {"a": 1}}\n{"row": {"b"')
    assert Recorded(file).rows == [{"a": 1}]
    assert Recorded(tmp_path / "never written").rows == []


def test_a_figure_that_fails_is_left_out_with_its_reason_and_the_next_one_is_measured() -> None:
    stream, released = io.StringIO(), []

    def fail() -> dict[str, float]:
        raise RuntimeError("CUDA out of memory. Tried to allocate\nmore lines")

    recorder = Recorder(stream, float("inf"), release=lambda: released.append(True))
    assert not recorder.attempt({"what": 1}, fail)
    assert recorder.attempt({"what": 2}, lambda: {"value": 3.0})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines == [
        {"left_out": {"what": 1}, "why": "RuntimeError: CUDA out of memory. Tried to allocate"},
        {"row": {"what": 2, "value": 3.0}},
    ]
    assert released == [True]


def test_a_device_that_computes_no_more_ends_the_part() -> None:
    def fail() -> dict[str, float]:
        raise RuntimeError("an illegal memory access was encountered")

    stream = io.StringIO()
    recorder = Recorder(stream, float("inf"), is_usable=lambda: False)
    with pytest.raises(RuntimeError, match="illegal memory"):
        recorder.attempt({"what": 1}, fail)
    assert "illegal memory" in stream.getvalue()


def test_nothing_is_begun_after_the_deadline() -> None:
    stream, clock = io.StringIO(), Clock()
    recorder = Recorder(stream, 10.0, clock)
    clock.now = 9.0
    assert recorder.attempt({"n": 1}, dict)
    assert not recorder.attempt({"n": 2}, dict, needs=2.0)
    clock.now = 10.5
    assert not recorder.attempt({"n": 3}, dict)
    assert [json.loads(line).get("why") for line in stream.getvalue().splitlines()] == [None, *["no time left"] * 2]
