"""Estimates against hand counts: every image of a step, test or pass takes the longer of net and loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paperbench import api
from paperbench.architecture import macs
from paperbench.bench import cost
from paperbench.bench.cost import Cost, estimate
from paperbench.data.imagenet.stream import processors
from paperbench.errors import duration
from paperbench.runs.limits import Limits

CPU = torch.device("cpu")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> api.Plan:
    """One run of ResNet-101 on ImageNet, on a machine whose nets and loader have made-up speeds."""
    monkeypatch.setattr(cost, "_measure_step", lambda run, *_: (2, 2 * macs(run.net, 224) * 1e-9))
    monkeypatch.setattr(cost, "_measure_loader", lambda *_: 500.0)
    return api.plan("table5", tmp_path, cells="original_resnet101/top1", seeds=1, device="cpu", needs_data=False)


def estimated(plan: api.Plan, limits: Limits, to_do: int) -> float:
    ((run, _),) = plan.remaining
    found = estimate([(run, to_do)], CPU, limits)
    assert found
    return found.seconds[run.id]


def test_slow_net_takes_its_multiply_adds(plan: api.Plan) -> None:
    at224, at320 = (macs(plan.runs[0].net, size) * 1e-9 for size in (224, 320))
    steps, means = 600_000 * 256 * at224, 1_281_167 / 500
    tests = (120 * 50_000 + 50_000 + 1_281_167) * at224 / 3 + 50_000 * at320 / 3
    assert estimated(plan, Limits(), 600_000) == pytest.approx(steps + tests + means)


def test_slow_loader_takes_its_crops(plan: api.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training on a CPU has one thread for crops."""
    monkeypatch.setattr(cost, "_measure_step", lambda *_: (2, 1e-9))
    steps = 600_000 * 256 / 500 * processors()
    others = (120 * 50_000 + 2 * 50_000 + 2 * 1_281_167) / 500
    assert estimated(plan, Limits(), 600_000) == pytest.approx(steps + others)


def test_pause_leaves_out_the_end(plan: api.Plan) -> None:
    at224 = macs(plan.runs[0].net, 224) * 1e-9
    steps, tests, mean = 9_000 * 256 * at224, 2 * 50_000 * at224 / 3, 1_281_167 / 500
    assert estimated(plan, Limits(stop_at=10_000), 9_000) == pytest.approx(steps + tests + mean)


def test_mean_images_are_computed_once_for_all_runs(plan: api.Plan) -> None:
    ((run, _),) = plan.remaining
    both = [(run, 5), (replace(run, seed=1), 5)]
    found = estimate(both, CPU, Limits(stop_at=5))
    assert found
    first, second = found.seconds.values()
    assert first - second == pytest.approx(1_281_167 / 500)


def test_years_on_a_cpu_come_with_advice_and_short_runs_without(plan: api.Plan) -> None:
    text = str(estimate(plan.remaining, CPU, Limits()))
    assert " years, going by one step of original_resnet101 on cpu (" in text
    assert "Use a GPU: original_resnet101 takes " in text
    short = [(run, 1) for run, _ in plan.remaining]
    assert "GPU" not in str(estimate(short, CPU, Limits(stop_at=1)))
    assert estimate(short, CPU, Limits(stop_at=1), only_if_long=True) is None


def test_runs_on_small_images_are_not_measured(tmp_path: Path) -> None:
    plan = api.plan("table2", tmp_path, profile="smoke", device="cpu")
    assert estimate(plan.remaining, CPU, Limits()) is None


def test_step_and_loader_are_measured_on_the_runs_own_images(tmp_path: Path) -> None:
    plan = api.plan("table5", tmp_path, profile="smoke", cells="preact_resnet152", device="cpu", stop_at=1)
    found = plan.cost()
    assert isinstance(found, Cost)
    assert "for 16 images" in found.measured
    assert "training images of photograph tiles" in found.measured
    assert duration(found.seconds[plan.runs[0].id]) in plan.listing(found)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1 second"),
        (119, "119 seconds"),
        (120, "2.0 minutes"),
        (7_199, "120 minutes"),
        (9 * 86_400, "9.0 days"),
        (1_900 * 31_557_600, "1,900 years"),
    ],
)
def test_durations_have_the_largest_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert duration(seconds) == text
