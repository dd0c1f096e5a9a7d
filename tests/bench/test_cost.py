"""Estimates against hand counts: every image of a step takes the longer of net and loader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paperbench import api
from paperbench.architecture import macs
from paperbench.bench import cost
from paperbench.bench.cost import Cost, estimate
from paperbench.errors import PaperbenchError, duration
from paperbench.runs.planning import PlannedRun

CPU = torch.device("cpu")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> api.Plan:
    """Two nets on ImageNet, on a machine whose nets and loader have made-up speeds."""
    monkeypatch.setattr(cost, "_measure_step", lambda run, *_: (2, 2 * macs(run.net, 224) * 1e-9, ""))
    monkeypatch.setattr(cost, "_measure_loader", lambda *_: 500.0)
    cells = ["original_resnet101/top1", "preact_resnet200/top1"]
    return api.plan("table5", tmp_path, cells=cells, seeds=1, device="cpu", estimate_only=True)


def test_slow_nets_take_their_multiply_adds(plan: api.Plan) -> None:
    found = estimate([(run, 9_000) for run in plan.runs], CPU)
    assert found
    expected = {run.id: 9_000 * 256 * macs(run.net, 224) * 1e-9 for run in plan.runs}
    assert len(expected) == 2
    assert found.seconds == pytest.approx(expected)


def test_slow_loader_takes_its_crops(plan: api.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_measure_step", lambda *_: (2, 1e-9, ""))
    found = estimate(plan.remaining, CPU)
    assert found
    assert [*found.seconds.values()] == pytest.approx([600_000 * 256 / 500] * 2)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 9), st.integers(1, 3))
def test_devices_are_never_idle_while_a_run_waits(seconds: list[float], devices: int, at_once: int) -> None:
    found = Cost(dict(zip(map(str, seconds), seconds, strict=True)), "")
    longest, share = max(seconds) * at_once, found.total / devices
    assert max(longest, share) <= found.on_devices(devices, at_once) * (1 + 1e-9)
    assert found.on_devices(devices, at_once) <= (share + longest) * (1 + 1e-9)


def test_one_rate_is_enough_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    plan = api.plan("table2", tmp_path, cells="preact", seeds=1, for_other_machine=True, estimate_only=True)
    found = plan.cost({"preact_resnet110": 1000.0})
    assert found
    basic, bottleneck = (found.seconds[run.id] for run in plan.runs)
    assert bottleneck / basic == pytest.approx(macs(plan.runs[1].net, 32) / macs(plan.runs[0].net, 32))


def test_processes_share_the_work(plan: api.Plan) -> None:
    one, eight = (estimate(plan.remaining, CPU, processes=n) for n in (1, 8))
    assert one
    assert eight
    assert eight.total == pytest.approx(one.total / 8)


def test_years_are_said_and_short_runs_can_be_left_out(plan: api.Plan) -> None:
    text = str(estimate(plan.remaining, CPU))
    assert " years for the training steps, going by one step of original_resnet101 on cpu (" in text
    short = [(run, 1) for run, _ in plan.remaining]
    assert estimate(short, CPU, only_if_long=True) is None


@pytest.mark.full
def test_each_family_goes_by_its_cheapest_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(run: PlannedRun, *_: object) -> tuple[int, float, str]:
        measured.append(run.net_name)
        return 64, 0.5, ""

    monkeypatch.setattr(cost, "_measure_step", measure)
    cells = ["cifar10_resnet110/*", "cifar10_resnet1001/*"]
    plan = api.plan("table3", tmp_path, cells=cells, seeds=1, device="cpu", estimate_only=True)
    found = plan.cost()
    assert found
    assert {name.split("_")[1] for name in measured} == {"resnet110", "resnet1001"}
    assert len(measured) == 2
    assert [*found.seconds.values()] == pytest.approx([64_000 * 128 / 128] * 4, rel=0.01)


def test_stated_rates_are_those_of_the_nearest_net(tmp_path: Path) -> None:
    cells = ["cifar10_resnet164/preact", "cifar10_resnet1001/preact"]
    plan = api.plan("table3", tmp_path, cells=cells, seeds=1, device="cpu", estimate_only=True)
    for rates, deep in (({"preact_resnet164": 1000.0}, 1000 * 244.5 / 1487.85), ({"preact_resnet1001": 90.0}, 90)):
        found = plan.cost({"preact_resnet164": 1000.0, **rates})
        assert found
        by_net = {run.net_name: found.seconds[run.id] for run in plan.runs}
        expected = {"preact_resnet164": 8_192_000 / 1000, "preact_resnet1001": 8_192_000 / deep}
        assert by_net == pytest.approx(expected, rel=1e-4)


def test_short_runs_and_small_images_on_a_gpu_are_not_measured(tmp_path: Path) -> None:
    smoke = api.plan("table2", tmp_path, profile="smoke", device="cpu")
    assert estimate(smoke.remaining, CPU, only_if_long=True) is None
    paper = api.plan("table2", tmp_path, device="cpu", estimate_only=True)
    assert estimate(paper.remaining, torch.device("cuda"), only_if_long=True) is None


def test_a_step_on_small_images_is_measured(tmp_path: Path) -> None:
    plan = api.plan("table2", tmp_path, profile="smoke", cells="preact/*", device="cpu")
    found = estimate(plan.remaining, CPU, at_once=2)
    assert found
    assert found.total > 0
    assert "preact_resnet110(depth=14) on cpu (engine eager, 2 at once, " in found.measured


def test_what_fails_is_left_for_a_slower_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run leaves it. Where even one training at a time does not fit, that is said."""
    most, grow = [1], cost.TrainerLoop.grow
    monkeypatch.setattr(cost.TrainerLoop, "grow", lambda self, n: grow(self, n) if n <= most[0] else bytearray(10**18))
    plan = api.plan("table2", tmp_path, profile="smoke", cells="preact/resnet110", device="cpu")
    found = estimate(plan.remaining, CPU, at_once=2)
    assert found
    assert "(engine eager, " in found.measured
    assert "at once" not in found.measured
    most[0] = 0
    with pytest.raises(PaperbenchError, match=r"cpu is out of memory in a step of preact_resnet110"):
        plan.cost()


@pytest.mark.full
def test_step_and_loader_are_measured_on_the_runs_own_images(tmp_path: Path) -> None:
    plan = api.plan("table5", tmp_path, profile="smoke", cells="preact_resnet152", device="cpu", stop_at=1)
    found = plan.cost()
    assert isinstance(found, Cost)
    assert " images)" in found.measured
    assert "training images of photograph tiles" in found.measured
    assert duration(found.total) in " ".join(plan.listing(found).split())


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
