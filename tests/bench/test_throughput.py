from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from paperbench.bench import rounds, soundness, throughput
from paperbench.bench.figures import Flags, NetFigures, VariantFigures
from paperbench.bench.machine import current_flags
from paperbench.bench.setup import (
    Training,
    bench_recipe,
    bench_training,
    checked_engines,
    checked_net,
    random_images,
    usable_engines,
    usable_precisions,
)
from paperbench.bench.throughput import Measurement, plain_variants
from paperbench.errors import PaperbenchError
from paperbench.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shallow")

CPU = torch.device("cpu")
NO_MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB."


def measured(*precisions: str, deadline: float | None = None, **settings: Any) -> NetFigures:
    values: dict[str, Any] = {
        "engines": ("eager",),
        "device": CPU,
        "batch_size": 16,
        "rounds": 2,
        "seconds": 0.01,
        "baselines": False,
    }
    return Measurement("preact_resnet20", precisions=precisions or ("fp32",), **(values | settings)).run(deadline)


def by_label(figures: NetFigures) -> dict[str, VariantFigures]:
    return {found.variant.label: found for found in figures.variants}


def test_every_variant_gets_figures_of_as_many_rounds_and_ratios_to_both_baselines() -> None:
    before, lines = current_flags(), []  # type: tuple[Flags, list[str]]
    figures = measured("fp32", "bf16", baselines=True, progress=lines.append)
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
        assert len(variant.seconds) == 2
        assert variant.images_per_second is not None
        assert variant.images_per_second.high == pytest.approx(variant.steps * 16 / min(variant.seconds))  # type: ignore[operator]
    bf16, plain, device = (found[name] for name in ("eager bf16", "plain loop fp32", "plain loop, on-device bf16"))
    for ratio, other in ((bf16.over_plain, plain), (bf16.over_on_device, device)):
        assert ratio is not None
        for number, value in enumerate(ratio.rounds):
            ours, theirs = (v.steps / v.seconds[number] for v in (bf16, other))  # type: ignore[operator]
            assert value == pytest.approx(ours / theirs)
    assert plain.over_plain is None
    assert [(control.variant.label, len(control.rounds)) for control in figures.controls] == [
        ("plain loop fp32", 2),
        ("eager fp32", 2),
    ]
    assert figures.noise is not None
    assert sum("round" in line for line in lines) == 2
    assert figures.is_sound
    assert plain.flags == Flags("ieee", "ieee", benchmark=True, deterministic=False)
    assert found["eager fp32"].flags == Flags("ieee", "ieee", benchmark=False, deterministic=True)
    assert current_flags() == before


def test_losses_are_those_of_a_trainer_from_the_start() -> None:
    (eager,) = measured().variants
    trainer = Trainer(checked_net("preact_resnet20"), bench_recipe(16), random_images(64, 10), 0, "fp32", CPU)
    expected = []
    for _ in range(5):
        trainer.begin_window()
        trainer.step()
        expected.append(trainer.window_metrics().loss)
    assert eager.losses == tuple(expected)


def test_a_long_measurement_begins_the_training_anew() -> None:
    training = bench_training("preact_resnet20", 16, CPU)
    recipe = replace(training.recipe, iterations=6, drops=replace(training.recipe.drops, at=()))
    runner = rounds.OurRunner(replace(training, recipe=recipe), "eager", "fp32", 5)
    iterations = []
    for _ in range(4):
        runner.step()
        iterations.append(runner._trainer.iteration)
    assert iterations == [6, 1, 2, 3]


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
    monkeypatch.setattr(soundness, "STEPS", 20)
    make_wrong(change, "fp32")
    figures = measured("fp32", "bf16")
    found = by_label(figures)
    fp32 = found["eager fp32"]
    assert (fp32.status, fp32.seconds, fp32.images_per_second) == ("wrong step", (), None)
    assert fp32.detail is not None
    assert fp32.detail.startswith("step ")
    assert fp32.losses is not None
    assert (None in fp32.losses) is (change is not_finite)
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
    monkeypatch.setattr(soundness, "STEPS", 3)
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
def test_what_does_not_fit_into_memory_is_reported_and_the_others_go_on(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Greedy(rounds.OurRunner):
        begun = 0

        def __init__(self, training: Training, engine: str, precision: str, steps: int) -> None:
            if precision == "bf16" and moment == "build":
                raise torch.OutOfMemoryError(NO_MEMORY)
            super().__init__(training, engine, precision, steps)

        def begin(self) -> None:
            self.begun += 1
            if self._precision == "bf16" and self.begun == {"build": 0, "trial": 1, "round": 2}[moment]:
                raise torch.OutOfMemoryError(NO_MEMORY)
            super().begin()

    monkeypatch.setattr(throughput, "OurRunner", Greedy)
    figures = measured("bf16", "fp32")
    found = by_label(figures)
    assert (found["eager bf16"].status, found["eager bf16"].seconds) == ("out of memory", ())
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
    def breaks(*arguments: object) -> None:
        raise torch.OutOfMemoryError(NO_MEMORY)

    monkeypatch.setattr(throughput, "find_reference", breaks)
    (eager,) = measured().variants
    assert (eager.status, eager.images_per_second) == ("not checked", None)


def test_after_the_deadline_nothing_is_begun() -> None:
    figures = measured("fp32", "bf16", baselines=True, deadline=time.monotonic() - 1)
    assert {(variant.status, variant.detail) for variant in figures.variants} == {("skipped", "the time was over")}
    assert figures.is_sound


def test_a_deadline_within_the_rounds_ends_them_after_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = False

    def progress(line: str) -> None:
        nonlocal late
        late = late or "round 1" in line

    monkeypatch.setattr(Measurement, "_is_late", lambda self: late)
    (eager,) = measured(rounds=5, progress=progress).variants
    assert (eager.status, len(eager.seconds)) == ("measured", 1)


def test_engines_keep_the_order_in_which_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = dict.fromkeys(("eager", "graph", "compile"))
    monkeypatch.setattr("paperbench.bench.setup.available_engines", lambda device: everything)
    assert checked_engines(["graph", "compile", "eager", "graph"], CPU) == ("graph", "compile", "eager")


def test_on_a_cpu_eager_is_measured_and_compiling_only_if_asked_for() -> None:
    assert usable_engines(CPU) == ("eager",)
    assert "tf32" not in usable_precisions(CPU)
    assert {"fp32", "bf16"} <= set(usable_precisions(CPU))


@pytest.mark.parametrize(("batch_size", "group"), [(128, 64), (64, 64), (256, 64), (32, 32), (100, 100)])
def test_batch_norm_keeps_the_papers_groups_where_they_divide_the_batch(batch_size: int, group: int) -> None:
    recipe = bench_recipe(batch_size)
    assert (recipe.batch_size, recipe.batch_norm.group) == (batch_size, group)
    with pytest.raises(PaperbenchError, match="at least 2 images"):
        bench_recipe(1)


def test_baselines_are_the_shipped_loop_and_every_precision_with_and_without_a_loader() -> None:
    found = plain_variants(["fp32", "bf16", "bf16-fp32-stream"], as_shipped="tf32")
    assert [(v.kind, v.precision) for v in found] == [
        ("plain", "tf32"),
        ("plain", "fp32"),
        ("plain", "bf16"),
        ("plain-on-device", "fp32"),
        ("plain-on-device", "bf16"),
    ]


@pytest.mark.gpu
def test_on_a_gpu_all_engines_and_precisions_have_figures_and_memory() -> None:
    device = torch.device("cuda")
    engines, precisions = usable_engines(device), usable_precisions(device)
    figures = measured(*precisions, device=device, engines=engines, baselines=True, batch_size=128)
    assert {(v.status, v.detail) for v in figures.variants} == {("measured", None)}
    assert all((v.peak_memory or 0) > 0 for v in figures.variants)
    assert len([v for v in figures.variants if v.variant.kind == "paperbench"]) == len(engines) * len(precisions)
