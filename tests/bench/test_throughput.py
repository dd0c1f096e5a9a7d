from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paperbench.bench import throughput, timing
from paperbench.bench.figures import NetFigures, Variant, VariantFigures
from paperbench.bench.setup import Training, bench_training, machine_facts
from paperbench.bench.throughput import TrainerLoop, VariantRunner, bench_variants, measure_net
from paperbench.bench.timing import Rounds, Way
from paperbench.runs.environment import environment_facts
from paperbench.training.engines import ENGINES
from paperbench.training.precision import PRECISIONS
from paperbench.typed import to_json
from tests.bench.stubs import StubTrainer, stub_training

CPU = torch.device("cpu")
ADVICE = "Name fewer --engines, --precisions or --at-once."
NO_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.fixture(autouse=True)
def _stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_training(monkeypatch)


def measured(
    *precisions: str,
    baselines: bool = False,
    rounds: int = 2,
    deadline: float = float("inf"),
    log: Callable[[str], None] = lambda line: None,
) -> NetFigures:
    variants = bench_variants(["eager"], precisions or ("fp32",), CPU)
    if not baselines:
        variants = [variant for variant in variants if variant.kind == "paperbench"]
    return measure_net(bench_training("preact_resnet20", 16, CPU), variants, Rounds(rounds, 1e-5, log, deadline))


def by_label(figures: NetFigures) -> dict[str, VariantFigures]:
    return {found.variant.label: found for found in figures.variants}


def test_every_variant_has_figures_and_ratios_to_both_baselines() -> None:
    lines: list[str] = []
    figures = measured("fp32", "bf16", baselines=True, rounds=3, log=lines.append)
    found = by_label(figures)
    assert list(found) == [
        "plain loop fp32",
        "plain loop bf16",
        "on-device loop fp32",
        "on-device loop bf16",
        "eager fp32",
        "eager bf16",
    ]
    for variant in figures.variants:
        assert (variant.status, variant.detail, variant.peak_memory) == ("measured", None, None)
        assert len(variant.step_seconds) == 3
        assert variant.images_per_second == pytest.approx(16 / sorted(variant.step_seconds)[1])
        assert (variant.first_step_seconds or 0) > 0
    bf16, plain, device = (found[name] for name in ("eager bf16", "plain loop fp32", "on-device loop bf16"))
    for ratio, other in ((bf16.over_plain, plain), (bf16.over_on_device, device)):
        assert ratio is not None
        rounds = sorted(theirs / ours for theirs, ours in zip(other.step_seconds, bf16.step_seconds, strict=True))
        assert ratio.median == pytest.approx(rounds[1])
    assert plain.over_plain is None
    assert [label for label, variant in found.items() if variant.control] == ["plain loop fp32", "eager fp32"]
    assert len(plain.control) == 3
    assert bf16.losses == (11.0, 5.5, 2.75, 1.375, 0.6875)
    assert figures.noise is not None
    assert sum("round" in line for line in lines) == 3
    assert figures.is_sound


def test_rounds_interleave_ways_and_rotate_their_order() -> None:
    order: list[tuple[str, int]] = []

    def way(name: str, seconds: float) -> Way:
        return lambda times: order.append((name, times)) or times * seconds

    ways = {"a": way("a", 0.5), "b": way("b", 1.0), "c": way("c", math.inf)}
    found = Rounds(4, 2.2, deadline=0.0).race(ways, least=2)
    assert order == [("a", 2), ("b", 2), ("c", 2), ("a", 5), ("b", 3), ("c", 2)]
    assert found == {"a": (0.5,), "b": (1.0,), "c": (math.inf,)}
    order.clear()
    Rounds(3, 0.0).race({"a": way("a", 1.0), "b": way("b", 1.0)})
    assert "".join(name for name, _ in order) == "ab" + "ab" + "ba" + "ab"


def test_only_steps_are_timed_including_the_devices_work(monkeypatch: pytest.MonkeyPatch, training: Training) -> None:
    now, queued = 0.0, 0.0

    class FakeLoop:
        def prepare(self) -> None:
            nonlocal now, queued
            now, queued = now + 100, 1000.0  # the device still works on untimed steps

        def step(self) -> float:
            nonlocal queued
            queued += 0.5
            return 0.0

        def pause(self) -> None:
            nonlocal now
            now += 100

    def synchronize(device: torch.device) -> None:
        nonlocal now, queued
        now, queued = now + queued, 0.0

    monkeypatch.setattr(timing, "synchronize", synchronize)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    runner = VariantRunner(Variant("plain-on-device", "eager", "fp32"), training, list, pytest.fail)
    runner.loop = FakeLoop()  # type: ignore[assignment]
    assert runner.time(7) == 3.5


def test_long_measurement_restarts_the_training(training: Training) -> None:
    recipe = replace(training.recipe, iterations=2, drops=replace(training.recipe.drops, at=()))
    loop = TrainerLoop(CPU, lambda: replace(training, recipe=recipe).trainer("eager", "fp32"))
    loop.grow(2)
    iterations = []
    for _ in range(4):
        loop.step()
        iterations.append([trainer.iteration for trainer in loop.trainers.values()])
    assert iterations == [[1, 1], [2, 2], [1, 1], [2, 2]]


@pytest.mark.parametrize(("factors", "status"), [((2.0, 2.0), "measured"), ((2.0, 3.0), "wrong step")])
def test_trainings_at_once_share_the_time_and_must_stay_equal(
    monkeypatch: pytest.MonkeyPatch, training: Training, factors: tuple[float, ...], status: str
) -> None:
    changes = iter(factors)
    stub_training(monkeypatch, lambda trainer: scale(next(changes))(trainer))
    runner = VariantRunner(Variant("paperbench", "eager", "fp32", 2), training, list, pytest.fail)
    runner.build()
    assert runner.time(3) > 0
    runner.finish((2.0, 4.0, 3.0), ())
    assert (runner.figures.variant.label, runner.figures.status) == ("eager fp32, 2 at once", status)
    assert runner.figures.images_per_second == (2 * 16 / 3 if status == "measured" else None)


def scale(factor: float) -> Callable[[StubTrainer], None]:
    return lambda trainer: trainer.model.weight.data.mul_(factor)


def fail(trainer: StubTrainer) -> None:
    raise RuntimeError("no such kernel in /a/folder/of/mine\nand a path: another/file.py")


def lasts(steps: int) -> Callable[[StubTrainer], None]:
    return lambda trainer: setattr(trainer, "lasts", steps)


@pytest.mark.parametrize(
    ("change", "status", "detail"),
    [
        pytest.param(scale(torch.nan), "wrong step", "a loss of the first steps is not finite", id="wrong step"),
        pytest.param(fail, "failed", "RuntimeError: no such kernel in [path]", id="failed"),
        *(
            pytest.param(
                lasts(steps),
                "out of memory",
                f"{NO_MEMORY} {ADVICE}",
                id=moment,
            )
            for steps, moment in ((0, "build"), (5, "trial"), (11, "round"))
        ),
    ],
)
def test_failing_variant_is_not_timed_and_others_are(
    change: Callable[[StubTrainer], None], status: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_training(monkeypatch, change)
    figures = measured("fp32", "bf16")
    fp32, bf16 = figures.variants
    assert (fp32.status, fp32.detail, fp32.step_seconds, fp32.images_per_second) == (status, detail, (), None)
    assert fp32.losses is None or status == "out of memory"
    assert bf16.status == "measured"
    assert figures.is_sound == (status == "out of memory")


GRAPHS = [Variant("paperbench", "graph", "bf16")] * 2


def test_failing_eager_is_tried_once_and_fails_what_is_compared(
    monkeypatch: pytest.MonkeyPatch, training: Training
) -> None:
    calls: list[str] = []

    def change(trainer: StubTrainer) -> None:
        calls.append(trainer.engine)
        trainer.lasts = 0

    stub_training(monkeypatch, change, "bf16")
    figures = measure_net(training, GRAPHS, Rounds(1, 1e-5))
    for graph in figures.variants:
        assert (graph.status, graph.images_per_second) == ("failed", None)
        assert graph.detail == f"the first steps of eager bf16 failed: {NO_MEMORY}"
    assert calls == ["eager"]
    assert not figures.is_sound


@pytest.mark.parametrize(("factor", "status"), [(1, "measured"), (1 + 2**-22, "wrong step")])
def test_graph_must_have_eagers_exact_losses(
    monkeypatch: pytest.MonkeyPatch, training: Training, factor: float, status: str
) -> None:
    stub_training(monkeypatch, lambda trainer: scale(factor if trainer.engine == "graph" else 1)(trainer), "bf16")
    graph, _ = measure_net(training, GRAPHS, Rounds(1, 1e-5)).variants
    assert graph.status == status
    assert status == "measured" or "they must be bitwise equal" in str(graph.detail)


def test_nothing_starts_after_the_deadline() -> None:
    figures = measured("fp32", "bf16", baselines=True, deadline=0.0)
    assert {(variant.status, variant.detail) for variant in figures.variants} == {("skipped", "no time left")}
    assert figures.is_sound


def test_deadline_ends_the_rounds_after_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def log(line: str) -> None:
        nonlocal now
        now += "round 1" in line

    monkeypatch.setattr(timing.time, "monotonic", lambda: now)
    (eager,) = measured(rounds=5, deadline=0.5, log=log).variants
    assert (eager.status, len(eager.step_seconds)) == ("measured", 1)


def test_default_on_a_cpu_is_eager_in_every_precision() -> None:
    ours = [variant for variant in bench_variants([], [], CPU) if variant.kind == "paperbench"]
    assert {variant.engine for variant in ours} == {"eager"}
    assert {variant.precision for variant in ours} == set(PRECISIONS) - {"tf32"}


def test_plain_loops_cover_the_shipped_and_every_measured_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "choose_precision", lambda wanted, device: wanted or "tf32")
    monkeypatch.setitem(ENGINES, "graph", ENGINES["graph"]._replace(why_not=lambda _: None))
    found = bench_variants(["graph", "eager", "graph"], ["fp32", "bf16", "fp32"], CPU)
    assert [(v.kind, v.precision) for v in found[:5]] == [
        ("plain", "tf32"),
        ("plain", "fp32"),
        ("plain", "bf16"),
        ("plain-on-device", "fp32"),
        ("plain-on-device", "bf16"),
    ]
    assert [v.label for v in found[5:8]] == ["graph fp32", "eager fp32", "graph bf16"]


@pytest.mark.parametrize(("batch_size", "group"), [(256, 64), (32, 32), (100, 100)])
def test_batch_norm_uses_the_papers_groups_if_they_divide_the_batch(batch_size: int, group: int) -> None:
    recipe = bench_training("preact_resnet20", batch_size, CPU).recipe
    assert (recipe.batch_size, recipe.batch_norm.group) == (batch_size, group)


def test_machine_facts_have_no_host_name_or_path() -> None:
    found = machine_facts(CPU)
    assert (found.environment, found.gpu) == (environment_facts(CPU), None)
    for secret in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert secret not in to_json(found)
