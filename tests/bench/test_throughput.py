from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.bench import soundness, throughput
from paperbench.bench.figures import NetFigures, Variant, VariantFigures
from paperbench.bench.plain_loop import PlainLoop
from paperbench.bench.setup import Training, bench_recipe, bench_training, machine_facts, random_images
from paperbench.bench.throughput import Contender, OurLoop, bench_variants, measure_net
from paperbench.catalogue import resolve
from paperbench.errors import PaperbenchError
from paperbench.runs.environment import environment_facts
from paperbench.training.engine import ENGINES
from paperbench.training.precision import PRECISIONS
from paperbench.training.trainer import Trainer
from paperbench.typed import to_json

pytestmark = pytest.mark.usefixtures("shallow")

CPU = torch.device("cpu")
NO_MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB."


def measured(
    *precisions: str,
    baselines: bool = False,
    rounds: int = 2,
    deadline: float = float("inf"),
    say: Callable[[str], None] = lambda line: None,
) -> NetFigures:
    variants = bench_variants(["eager"], precisions or ("fp32",), CPU)
    if not baselines:
        variants = [variant for variant in variants if variant.kind == "paperbench"]
    return measure_net(bench_training("preact_resnet20", 16, CPU), variants, rounds, 0.01, deadline, say)


def by_label(figures: NetFigures) -> dict[str, VariantFigures]:
    return {found.variant.label: found for found in figures.variants}


def test_every_variant_gets_figures_of_as_many_rounds_and_ratios_to_both_baselines() -> None:
    lines: list[str] = []
    figures = measured("fp32", "bf16", baselines=True, rounds=3, say=lines.append)
    found = by_label(figures)
    assert list(found) == [
        "plain loop fp32",
        "plain loop bf16",
        "plain loop, on-device fp32",
        "plain loop, on-device bf16",
        "eager fp32",
        "eager bf16",
    ]
    for variant in figures.variants:
        assert (variant.status, variant.detail, variant.peak_memory) == ("measured", None, None)
        assert len(variant.step_seconds) == 3
        assert variant.images_per_second == pytest.approx(16 / sorted(variant.step_seconds)[1])
        assert (variant.first_step_seconds or 0) > 0
    bf16, plain, device = (found[name] for name in ("eager bf16", "plain loop fp32", "plain loop, on-device bf16"))
    for ratio, other in ((bf16.over_plain, plain), (bf16.over_on_device, device)):
        assert ratio is not None
        rounds = sorted(theirs / ours for theirs, ours in zip(other.step_seconds, bf16.step_seconds, strict=True))
        assert ratio.median == pytest.approx(rounds[1])
    assert plain.over_plain is None
    assert [label for label, variant in found.items() if variant.control] == ["plain loop fp32", "eager fp32"]
    assert len(plain.control) == 3
    assert figures.noise is not None
    assert sum("round" in line for line in lines) == 3
    assert figures.is_sound


def test_all_take_turns_each_round_begins_one_later_and_two_are_timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    original = Contender.take_turn

    def take_turn(self: Contender, *, is_control: bool) -> None:
        turns.append(self.figures.variant.label + is_control * " again")
        original(self, is_control=is_control)

    monkeypatch.setattr(Contender, "take_turn", take_turn)
    measured("fp32", baselines=True, rounds=3)
    names = ["plain loop fp32", "plain loop, on-device fp32", "eager fp32"]
    again = {"plain loop fp32 again", "eager fp32 again"}
    assert turns[:3] == names
    assert set(turns[3:5]) == again
    assert turns[5:10] == turns[1:5] + turns[:1]
    assert turns[10:] == turns[2:5] + turns[:2]


def test_only_the_steps_of_a_turn_are_timed_and_the_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now, under_way = 0.0, 0.0

    class Fake(PlainLoop):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            pass

        def prepare(self) -> None:
            nonlocal now, under_way
            now, under_way = now + 100, 1000.0  # left on the device by untimed steps

        def step(self) -> float:
            nonlocal under_way
            under_way += 0.5
            return 0.0

        def rest(self) -> None:
            nonlocal now
            now += 100

    def wait(device: torch.device) -> None:
        nonlocal now, under_way
        now, under_way = now + under_way, 0.0

    monkeypatch.setattr(throughput, "PlainLoop", Fake)
    monkeypatch.setattr(throughput, "wait_for", wait)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now)
    training = bench_training("preact_resnet20", 16, CPU)
    variant = Variant("plain-on-device", "eager", "fp32")
    contender = Contender(variant, training, list, lambda: pytest.fail("not ours"), pytest.fail)
    contender.build(seconds=3.2)
    contender.take_turn(is_control=False)
    contender.take_turn(is_control=True)
    assert (contender.figures.step_seconds, contender.figures.control) == ((0.5,), (0.5,))
    assert contender.steps == 7


def test_losses_are_those_of_a_trainer_from_the_start() -> None:
    (eager,) = measured().variants
    net = resolve("preact_resnet20", depth=8)
    trainer = Trainer(net, bench_recipe(16), random_images(64, 10), 0, "fp32", CPU)
    expected = []
    for _ in range(5):
        trainer.reset_training_metrics()
        trainer.step()
        expected.append(trainer.training_metrics().loss)
    assert eager.losses == tuple(expected)


def test_a_long_measurement_begins_the_training_anew() -> None:
    training = bench_training("preact_resnet20", 16, CPU)
    recipe = replace(training.recipe, iterations=2, drops=replace(training.recipe.drops, at=()))
    loop = OurLoop(replace(training, recipe=recipe), "eager", "fp32")
    iterations = []
    for _ in range(4):
        loop.step()
        iterations.append(loop.trainer.iteration)
    assert iterations == [1, 2, 1, 2]


Change = Callable[[Trainer], None]


@pytest.fixture
def make_wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change, str], None]:
    """Changes the trainers of variants of one precision, not the reference's, which are the first two."""
    original, made = Training.trainer, iter(range(1_000))

    def make(change: Change, wrong_precision: str) -> None:
        def trainer(self: Training, engine: str, precision: str) -> Trainer:
            found = original(self, engine, precision)
            if next(made) >= 2 and precision == wrong_precision:
                change(found)
            return found

        monkeypatch.setattr(Training, "trainer", trainer)

    return make


def skip_every_other_step(trainer: Trainer) -> None:
    step, calls = trainer.step, iter(range(1_000_000))

    def sometimes() -> None:
        kept = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        step()
        if next(calls) % 2:
            with torch.no_grad():
                for parameter, value in zip(trainer.model.parameters(), kept, strict=True):
                    parameter.copy_(value)

    trainer.step = sometimes  # type: ignore[method-assign]


def another_start(trainer: Trainer) -> None:
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1.5)


def ten_times_the_rate(trainer: Trainer) -> None:
    trainer.recipe = replace(trainer.recipe, learning_rate=0.01)
    trainer._optimiser.set_rate(0.01)


def not_finite(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(torch.nan)


@pytest.mark.parametrize("change", [skip_every_other_step, ten_times_the_rate, another_start, not_finite])
def test_a_wrong_step_gets_no_figure_and_the_others_go_on(
    change: Change, make_wrong: Callable[[Change, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "STEPS", 20)
    make_wrong(change, "fp32")
    figures = measured("fp32", "bf16")
    found = by_label(figures)
    fp32 = found["eager fp32"]
    assert (fp32.status, fp32.step_seconds, fp32.images_per_second) == ("wrong step", (), None)
    assert fp32.detail is not None
    assert fp32.detail.startswith("step ")
    assert (fp32.losses is None) is (change is not_finite)
    assert found["eager bf16"].status == "measured"
    assert not figures.is_sound


def halved_gradients(trainer: Trainer) -> None:
    step = trainer._optimiser.step
    trainer._optimiser.step = lambda found: step([g / 2 for g in found])  # type: ignore[method-assign]


def frozen(trainer: Trainer) -> None:
    trainer._optimiser.step = lambda found: None  # type: ignore[method-assign]


def no_momentum(trainer: Trainer) -> None:
    step = trainer._optimiser.step

    def without(found: Sequence[torch.Tensor]) -> None:
        for buffer in trainer._optimiser.momentum:
            buffer.zero_()
        step(found)

    trainer._optimiser.step = without  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [halved_gradients, frozen, no_momentum])
def test_what_the_losses_of_bf16_do_not_show_is_seen_by_the_length_of_the_updates(
    change: Change, make_wrong: Callable[[Change, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "STEPS", 3)
    make_wrong(change, "bf16")
    found = by_label(measured("fp32", "bf16", "bf16-fp32-stream", rounds=1))
    bf16, right = found["eager bf16"], found["eager bf16-fp32-stream"]
    assert bf16.status == "wrong step"
    assert bf16.detail is not None
    assert "times as long as eager fp32's" in bf16.detail
    assert bf16.update_norm is not None
    assert bf16.update_norm < 0.7
    assert (right.status, found["eager fp32"].update_norm) == ("measured", 1.0)
    assert right.update_norm == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("moment", ["build", "trial", "round"])
def test_what_does_not_fit_into_memory_is_named_and_the_others_go_on(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Greedy(OurLoop):
        begun = 0

        def __init__(self, training: Training, engine: str, precision: str) -> None:
            if precision == "bf16" and moment == "build":
                raise torch.OutOfMemoryError(NO_MEMORY)
            super().__init__(training, engine, precision)

        def prepare(self) -> None:
            self.begun += 1
            if self._precision == "bf16" and self.begun == {"build": 0, "trial": 1, "round": 2}[moment]:
                raise torch.OutOfMemoryError(NO_MEMORY)
            super().prepare()

    monkeypatch.setattr(throughput, "OurLoop", Greedy)
    figures = measured("bf16", "fp32")
    found = by_label(figures)
    assert (found["eager bf16"].status, found["eager bf16"].step_seconds) == ("out of memory", ())
    assert "Name fewer --engines or --precisions" in (found["eager bf16"].detail or "")
    assert found["eager fp32"].status == "measured"
    assert figures.is_sound


def test_an_engine_that_breaks_is_named_and_the_others_go_on(make_wrong: Callable[[Change, str], None]) -> None:
    def breaks(trainer: Trainer) -> None:
        raise RuntimeError("no such kernel in a/folder/of/mine\nand a path: another/file.py")

    make_wrong(breaks, "fp32")
    figures = measured("fp32", "bf16")
    found = by_label(figures)
    assert (found["eager fp32"].status, found["eager fp32"].detail) == (
        "failed",
        "RuntimeError: no such kernel in [path]",
    )
    assert found["eager bf16"].status == "measured"
    assert not figures.is_sound


def test_without_a_reference_nothing_of_ours_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def breaks(*arguments: object) -> None:
        made.append(arguments)
        raise torch.OutOfMemoryError(NO_MEMORY)

    monkeypatch.setattr(throughput, "find_reference", breaks)
    figures = measured("fp32", "bf16")
    for eager in figures.variants:
        assert (eager.status, eager.images_per_second) == ("failed", None)
        assert eager.detail == f"eager fp32, to compare with: OutOfMemoryError: {NO_MEMORY}"
    assert len(made) == 1
    assert not figures.is_sound


@pytest.mark.parametrize(("factor", "status"), [(1, "measured"), (1 + 2**-7, "wrong step")])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_must_have_the_very_losses_of_eager_in_its_precision(
    monkeypatch: pytest.MonkeyPatch, precision: str, factor: float, status: str
) -> None:
    original = Training.trainer

    def trainer(self: Training, engine: str, precision: str) -> Trainer:
        found = original(self, "eager", precision)
        if engine == "graph":
            found.model.fc.weight.data.mul_(factor)
        return found

    monkeypatch.setattr(Training, "trainer", trainer)
    monkeypatch.setitem(soundness.TOLERANCE, "fp32", 0.05)
    variants = [Variant("paperbench", "graph", precision)]
    training = bench_training("preact_resnet20", 16, CPU)
    (graph,) = measure_net(training, variants, 1, 0.01, float("inf"), lambda line: None).variants
    assert graph.status == status
    assert status == "measured" or "they must be equal bit for bit" in str(graph.detail)


def test_after_the_deadline_nothing_is_begun() -> None:
    figures = measured("fp32", "bf16", baselines=True, deadline=0.0)
    assert {(variant.status, variant.detail) for variant in figures.variants} == {("skipped", "the time was over")}
    assert figures.is_sound
    assert not figures.has_figures


def test_a_deadline_within_the_rounds_ends_them_after_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def say(line: str) -> None:
        nonlocal now
        now += "round 1" in line

    monkeypatch.setattr(throughput.time, "monotonic", lambda: now)
    (eager,) = measured(rounds=5, deadline=0.5, say=say).variants
    assert (eager.status, len(eager.step_seconds)) == ("measured", 1)


def test_unless_asked_for_others_eager_is_measured_on_a_cpu_in_every_precision_that_it_has() -> None:
    ours = [variant for variant in bench_variants([], [], CPU) if variant.kind == "paperbench"]
    assert {variant.engine for variant in ours} == {"eager"}
    assert {variant.precision for variant in ours} == set(PRECISIONS) - {"tf32"}


def test_plain_loops_are_the_shipped_one_and_every_precision_with_and_without_a_loader_and_ours_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throughput, "choose_precision", lambda wanted, device: wanted or "tf32")
    monkeypatch.setattr("paperbench.training.engine.available_engines", lambda device: dict.fromkeys(ENGINES))
    found = bench_variants(["graph", "compile", "graph"], ["fp32", "bf16", "bf16-fp32-stream"], CPU)
    assert [(v.kind, v.precision) for v in found[:5]] == [
        ("plain", "tf32"),
        ("plain", "fp32"),
        ("plain", "bf16"),
        ("plain-on-device", "fp32"),
        ("plain-on-device", "bf16"),
    ]
    assert [v.label for v in found[5:8]] == ["graph fp32", "compile fp32", "graph bf16"]


@pytest.mark.parametrize(("batch_size", "group"), [(128, 64), (64, 64), (256, 64), (32, 32), (100, 100)])
def test_batch_norm_keeps_the_papers_groups_where_they_divide_the_batch(batch_size: int, group: int) -> None:
    recipe = bench_recipe(batch_size)
    assert (recipe.batch_size, recipe.batch_norm.group) == (batch_size, group)
    with pytest.raises(PaperbenchError, match="at least 2 images"):
        bench_recipe(1)


def test_facts_are_those_of_the_machine_and_name_neither_host_nor_path() -> None:
    found = machine_facts(CPU)
    assert (found.environment, found.gpu) == (environment_facts(CPU), None)
    for secret in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert secret not in to_json(found)


@pytest.mark.gpu
def test_on_a_gpu_all_engines_and_precisions_have_figures_and_memory() -> None:
    device = torch.device("cuda")
    variants = bench_variants([], [], device)
    figures = measure_net(
        bench_training("preact_resnet20", 128, device), variants, 2, 0.01, float("inf"), lambda line: None
    )
    assert {(v.status, v.detail) for v in figures.variants} == {("measured", None)}
    assert all((v.peak_memory or 0) > 0 for v in figures.variants)
