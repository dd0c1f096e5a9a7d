"""The measurement of `ci/first_gpu.sh`, on a CPU, and what its figures decide."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.bench.first_gpu import ALL_LAYERS, CONVOLUTIONS, WAYS, Measurement, Sizes, choose, decide, main
from tests.bench.stubs import stub_training
from tests.helpers import ROOT

CPU = torch.device("cpu")
TINY = Sizes("preact_resnet20", 4, ((2, 4), (4, 2)), 64, 8, 2, 0.0)


@pytest.mark.full
def test_all_parts_have_figures_and_a_failing_one_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    Measurement(file, CPU, 600, TINY).run(["graph", "eager"])
    found = json.loads(file.read_text())
    problems = [name for name, value in found.items() if "step" in name and isinstance(value, str)]
    assert problems == ["first step, graph bf16", "first step, graph fp32"]
    figures = {name: value for name, value in found.items() if isinstance(value, float)}
    assert len(figures) == 3 + 11 * 3 * 2 * 2 + 2 * 5  # launches and copy; layers in every way; steps
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


def test_all_that_decides_comes_first_and_what_compiles_after_the_layers(tmp_path: Path) -> None:
    class Named(Measurement):
        def _put(self, name: str, measure: Callable[[], float]) -> bool:
            self.found.setdefault(name, 1.0)
            return True

    measurement = Named(tmp_path / "first.json", CPU, 600, Sizes())
    measurement.run(["graph", "streams", "compile"])
    names = [name for name, value in measurement.found.items() if isinstance(value, float)]
    compiled = names.index("first step, compile bf16")
    assert names.index("step, streams bf16, 1 at once") < names.index(
        "batch norm, bf16 channels_last, as trained, 16 channels"
    )
    assert sum("convolution by weights" in name for name in names[:compiled]) == 5 * 3
    figures = dict.fromkeys(names[: compiled + 5], 1.0)  # with a step of it, and of two, three and five of another
    assert not any("not measured" in line for line in decide({**figures, "batch": 128}))


def test_nothing_begins_when_the_time_is_up(tmp_path: Path) -> None:
    measurement = Measurement(tmp_path / "first.json", CPU, -1, TINY)
    measurement.run(["eager"])
    assert not any(isinstance(value, float) for value in measurement.found.values())


@pytest.mark.parametrize(("factors", "is_equal"), [((2.0, 2.0), True), ((2.0, 3.0), False)])
def test_equal_trainings_at_once_must_stay_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...], is_equal: bool
) -> None:
    changes = itertools.cycle(factors)  # of the fourth and the fifth trainer
    stub_training(monkeypatch, lambda trainer: trainer.model.weight.data.mul_(next(changes)), "bf16")
    measurement = Measurement(tmp_path / "first.json", CPU, 600, TINY)
    measurement._steps(["eager"], "bf16")
    assert isinstance(measurement.found["step, eager bf16, 3 at once"], float)
    last = measurement.found["step, eager bf16, 5 at once"]
    assert isinstance(last, float) if is_equal else str(last).startswith("WRONG")


LAYERS = [(what, how) for how, (*_, layers) in WAYS.items() for what in layers]


@pytest.mark.parametrize(("what", "how"), LAYERS)
def test_timed_layer_is_what_its_name_says(tmp_path: Path, what: str, how: str) -> None:
    class Kept(Measurement):
        def _milliseconds(self, work: Callable[[], Any], calls: int) -> float:
            switches = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
            assert switches == (how in ("as trained", "by cuDNN"), how == "timed")
            self.result = work()
            return 1.0

    measurement = Kept(tmp_path / "first.json", CPU, 600, TINY)
    measurement._layer(what, how, "bf16", "channels_last", 8, 4)
    images, weights = (2, 8, 4, 4), (8, 8, 3, 3)
    shapes = {
        "batch norm": [images, (8,), (8,)],
        "convolution forward": [images],
        "convolution by data": [images],
        "convolution by weights": [weights],
    }
    result = measurement.result if isinstance(measurement.result, tuple) else [measurement.result]
    assert [tuple(tensor.shape) for tensor in result if tensor is not None] == shapes[what]
    main_result = next(tensor for tensor in result if tensor is not None)
    assert main_result.dtype == torch.bfloat16
    assert main_result.is_contiguous(memory_format=torch.channels_last)


def figures(**speeds: float) -> dict[str, float | str | None]:
    """What a GPU with this many images/s with an engine may have given."""
    steps = {f"step, {engine} bf16, 1 at once": 128_000 / speed for engine, speed in speeds.items()}
    return {"cuda": "13", "batch": 128, **{f"first step, {engine} bf16": 1000.0 for engine in speeds}, **steps}


def test_device_and_speeds_are_shown_and_what_is_missing() -> None:
    _, speed, *lines = decide(figures(graph=12_000.0))
    assert speed == "graph in bf16: 12,000 images/s"
    assert all(line.endswith("not measured") for line in lines)
    assert lines[2].startswith("2 trainings at once by graph")
    device, warning, *_ = decide(figures(graph=12_000.0) | {"device": "H100", "cuda": None})
    assert device.startswith("device H100, torch ")
    assert warning.startswith("A rehearsal")


def layers(
    whats: Sequence[str], milliseconds: tuple[float, float], hows: tuple[str, str], left: int = 3
) -> dict[str, float | str | None]:
    """Two ways of some layers, the second of which may lack stages."""
    return {
        f"{what}, {how}, {channels} channels": value
        for value, how, stages in zip(milliseconds, hows, (3, left), strict=True)
        for what in whats
        for channels in (16, 32, 64)[:stages]
    }


TRAINED, *OTHERS = (f"bf16 channels_last, {how}" for how in WAYS)
FP32 = ("fp32 contiguous, as trained", "fp32 channels_last, as trained")
CUDNN, FREE, TIMED = ((TRAINED, other) for other in OTHERS)
CONV, NORM = CONVOLUTIONS[2:], ALL_LAYERS[:1]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            figures(compile=20_000.0, streams=18_200.0),
            "7.03 ms a step, 0.91 times as fast (from 0.9): take out compile",
        ),
        (figures(compile=20_000.0, streams=17_800.0), "0.89 times as fast (from 0.9): take out streams"),
        (figures(graph=10_000.0) | {"step, graph bf16, 3 at once": 10.0}, "3 trainings at once by graph"),
        (figures(graph=10_000.0) | {"step, graph bf16, 3 at once": 10.0}, "(from 1.2): train several on a GPU"),
        (figures(graph=10_000.0) | {"step, graph bf16, 3 at once": 11.0}, "(from 1.2): train one on a GPU"),
        (
            layers(ALL_LAYERS, (0.02, 0.01), FP32),
            "17.28 -> 8.64 ms a step, 2.00 times as fast (from 1.0): channels_last",
        ),
        (
            layers(CONV, (0.02, 0.01), FREE),
            "precision.py): 4.32 -> 2.16 ms a step, 2.00 times as fast (from 1.25): look",
        ),
        (layers(CONV, (0.02, 0.019), FREE), "from 1.25): keep"),
        (layers(CONVOLUTIONS, (0.02, 0.01), TIMED), "timing (training/precision.py): 12.96 -> 6.48 ms"),
        (layers(NORM, (0.05, 0.04), CUDNN), "(from 1.1): compare it with float64"),
        (layers(NORM, (0.05, 0.049), CUDNN), "(from 1.1): keep torch's"),
        (layers(NORM, (0.05, 0.049), CUDNN, left=2), "batch_norm.py): not measured"),
        (
            figures(graph=12_000.0, compile=24_000.0) | {"first step, compile bf16": 60_000.0},
            "compile pays off (COMPILE_MIN_ITERATIONS): from 11,062 iterations on",
        ),
        (figures(graph=12_000.0, compile=11_000.0), "(COMPILE_MIN_ITERATIONS): never"),
        (figures(graph=12_000.0), "(COMPILE_MIN_ITERATIONS): not measured"),
        ({"step, graph bf16, 5 at once": "WRONG: they differ"}, "step, graph bf16, 5 at once: WRONG: they differ"),
    ],
)
def test_ratio_is_compared_with_its_threshold(more: dict[str, float | str | None], expected: str) -> None:
    assert any(expected in line for line in decide(figures() | more))


@pytest.mark.parametrize(
    ("seconds", "expected"), [(100, ("graph", 0)), (200, ("compile", 0)), (760, ("compile", 1)), (770, ("compile", 2))]
)
def test_engine_that_gets_farthest_is_chosen(seconds: float, expected: tuple[str, int]) -> None:
    """After a minute of compilation, a run takes 352 s: 64,000 * 128 / 24,000, and 3 % for tests."""
    found = figures(graph=12_000.0, compile=24_000.0) | {"first step, compile bf16": 60_000.0}
    assert choose(found, seconds) == expected


def test_summary_lists_runs_without_any_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("choose", str(tmp_path / "missing.json"), "100")
    assert capsys.readouterr().out == "auto 0\n"
    main("summary", str(tmp_path / "missing.json"), str(ROOT / "results" / "smoke"))
    lines = capsys.readouterr().out.splitlines()
    for file in (ROOT / "results" / "smoke" / "runs").glob("*/record.json"):
        record = json.loads(file.read_text())
        shown = f"seed {record['seed']}: finished, {record['iteration']:,} of {record['iteration']:,} iterations, "
        assert any(line.startswith(record["net"]) and shown in line for line in lines)
