"""The measurement of `ci/first_gpu.sh`, on a CPU, and what its figures decide."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from paperbench.bench.first_gpu import Measurement, choose, decide, main
from tests.bench.stubs import stub_training
from tests.helpers import ROOT

CPU = torch.device("cpu")
TINY = ("preact_resnet20", 4, 0.0)


def test_all_parts_have_figures_and_a_failing_one_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_training(monkeypatch, lambda trainer: 1 / 0, "bf16")
    file = tmp_path / "first.json"
    Measurement(file, CPU, 600, TINY).run("eager")
    found = json.loads(file.read_text())
    assert [name for name, value in found.items() if "step" in name and isinstance(value, str)] == ["first step, bf16"]
    figures = {name: value for name, value in found.items() if isinstance(value, float)}
    assert len(figures) == 5  # of fp32
    assert min(figures.values()) > 0


def test_only_what_is_missing_is_measured_and_everything_on_another_device(tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    first = Measurement(file, CPU, 600, TINY)
    assert first._put("whole", lambda: 1.0)
    assert not first._put("failed", lambda: 1 / 0)
    again = Measurement(file, CPU, 600, TINY)
    assert again._put("whole", lambda: pytest.fail("measured again"))
    assert again._put("failed", lambda: 2.0)
    file.write_text(json.dumps({**json.loads(file.read_text()), "device": "another"}))
    assert not {"whole", "failed"} & Measurement(file, CPU, 600, TINY).found.keys()


def test_nothing_begins_when_the_time_is_up(tmp_path: Path) -> None:
    measurement = Measurement(tmp_path / "first.json", CPU, -1, TINY)
    measurement.run("eager")
    assert not any(isinstance(value, float) for value in measurement.found.values())


@pytest.mark.parametrize(("factors", "is_equal"), [((2.0, 2.0), True), ((2.0, 3.0), False)])
def test_equal_trainings_at_once_must_stay_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...], is_equal: bool
) -> None:
    changes = itertools.cycle(factors)  # of the fourth and the fifth trainer
    stub_training(monkeypatch, lambda trainer: trainer.model.weight.data.mul_(next(changes)), "bf16")
    measurement = Measurement(tmp_path / "first.json", CPU, 600, TINY)
    measurement._steps("eager", "bf16")
    assert isinstance(measurement.found["step, bf16, 3 at once"], float)
    last = measurement.found["step, bf16, 5 at once"]
    assert isinstance(last, float) if is_equal else str(last).startswith("WRONG")


FOUND = {"cuda": "13", "batch": 128, "step, bf16, 1 at once": 10.0}


def test_device_speeds_failures_and_what_several_gain_are_shown() -> None:
    _, *lines = decide({**FOUND, "step, bf16, 3 at once": 5.0, "step, tf32, 1 at once": "WRONG: they differ"})
    assert lines == [
        "bf16: 12,800 images/s",
        "3 trainings at once: 10.00 -> 5.00 ms a step, 2.00 times as fast (from 1.2): use `--at-once 3`",
        "step, tf32, 1 at once: WRONG: they differ",
    ]
    *_, line = decide({**FOUND, "step, bf16, 3 at once": 9.0})
    assert line.endswith("train one at a time")
    device, warning, *_ = decide({**FOUND, "device": "H100", "cuda": None})
    assert device.startswith("device H100, torch ")
    assert warning.startswith("A rehearsal")


def test_most_complete_runs_and_then_the_shortest_step_are_chosen() -> None:
    """A run takes 659 s: 64,000 steps of 10 ms, and 3 % for tests; two at once 1,055 s, and three 1,186 s."""
    assert [choose(FOUND, seconds) for seconds in (658, 660, 1319)] == [(1, 0), (1, 1), (1, 2)]
    found = {**FOUND, "step, bf16, 2 at once": 8.0, "step, bf16, 3 at once": 6.0}
    chosen = {658: (3, 0), 660: (1, 1), 1056: (2, 2), 1185: (2, 2), 1187: (3, 3)}
    assert {seconds: choose(found, seconds) for seconds in chosen} == chosen


def test_summary_lists_runs_without_any_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("choose", str(tmp_path / "missing.json"), "100")
    assert capsys.readouterr().out == "1 0\n"
    main("summary", str(tmp_path / "missing.json"), str(ROOT / "results" / "smoke"))
    lines = capsys.readouterr().out.splitlines()
    for file in (ROOT / "results" / "smoke" / "runs").glob("*/record.json"):
        record = json.loads(file.read_text())
        shown = f"seed {record['seed']}: finished, {record['iteration']:,} of {record['iteration']:,} iterations, "
        assert any(line.startswith(record["net"]) and shown in line for line in lines)
