from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from paperbench.bench import plain_loop, runners, throughput, trajectory
from paperbench.bench.figures import NetFigures, VariantFigures
from paperbench.bench.flags import Flags
from paperbench.bench.throughput import bench_recipe, checked_net, measure_net, usable_engines, usable_precisions
from paperbench.bench.trajectory import STEPS
from paperbench.bench.variants import plain_variants
from paperbench.errors import PaperbenchError
from paperbench.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(throughput.IMAGES, "cpu", 64)
    monkeypatch.setitem(plain_loop.WORKERS, "cpu", 1)
    monkeypatch.setattr(runners, "REST_SECONDS", 0.0)
    look_at(5, monkeypatch)


def look_at(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of losses that are compared; fewer take less time."""
    monkeypatch.setattr(trajectory, "STEPS", steps)


def measured(**settings: Any) -> NetFigures:
    values: dict[str, Any] = {
        "engines": ["eager"],
        "precisions": ["fp32"],
        "device": CPU,
        "batch_size": 16,
        "rounds": 2,
        "seconds": 0.01,
        "baselines": False,
        "depth": 8,
        "progress": lambda line: None,
    }
    return measure_net("preact_resnet20", **(values | settings))


def by_label(figures: NetFigures) -> dict[str, VariantFigures]:
    return {variant.label: variant for variant in figures.variants}


def test_every_variant_gets_figures_of_as_many_rounds_and_ratios_to_both_baselines() -> None:
    before, lines = Flags.now(), []  # type: tuple[Flags, list[str]]
    figures = measured(precisions=["fp32", "bf16"], baselines=True, progress=lines.append)
    assert [variant.label for variant in figures.variants] == [
        "plain loop fp32",
        "plain loop bf16",
        "plain loop, on-device fp32",
        "plain loop, on-device bf16",
        "eager fp32",
        "eager bf16",
    ]
    for variant in figures.variants:
        assert (variant.status, variant.detail) == ("measured", None)
        assert len(variant.seconds) == 2
        assert variant.images_per_second is not None
        assert variant.images_per_second.high == pytest.approx(variant.steps * 16 / min(variant.seconds))  # type: ignore[operator]
        assert (variant.peak_allocated, variant.peak_reserved) == (None, None)
    found = by_label(figures)
    bf16, plain, device = (found[name] for name in ("eager bf16", "plain loop fp32", "plain loop, on-device bf16"))
    for ratio, other in ((bf16.over_plain, plain), (bf16.over_on_device, device)):
        assert ratio is not None
        for number, value in enumerate(ratio.rounds):
            ours, theirs = (v.steps / v.seconds[number] for v in (bf16, other))  # type: ignore[operator]
            assert value == pytest.approx(ours / theirs)
    assert plain.over_plain is None
    assert [len(control.rounds) for control in figures.controls] == [2, 2]
    assert [control.label for control in figures.controls] == ["plain loop fp32", "eager fp32"]
    assert figures.noise is not None
    assert sum("round" in line for line in lines) == 2
    assert figures.is_sound
    assert Flags.now() == before


def test_flags_are_those_of_each_variant() -> None:
    found = by_label(measured(baselines=True))
    plain, ours = found["plain loop fp32"].flags, found["eager fp32"].flags
    assert plain == {"convolution": "ieee", "product": "ieee", "benchmark": True, "deterministic": False}
    assert ours == {"convolution": "ieee", "product": "ieee", "benchmark": False, "deterministic": True}


def test_losses_are_those_of_a_trainer_from_the_start() -> None:
    (eager,) = measured().variants
    net = throughput.resolve("preact_resnet20", depth=8)
    trainer = Trainer(net, bench_recipe(16), throughput.random_images(64, 10), 0, "fp32", CPU)
    expected = []
    for _ in range(5):
        trainer.begin_window()
        trainer.step()
        expected.append(trainer.window_metrics().loss)
    assert eager.losses == tuple(expected)


def test_a_long_measurement_begins_the_training_anew() -> None:
    recipe = bench_recipe(16)
    recipe = replace(recipe, iterations=6, drops=replace(recipe.drops, at=()))
    net, images = throughput.resolve("preact_resnet20", depth=8), throughput.random_images(64, 10)
    runner = runners.OurRunner(net, recipe, images, "eager", "fp32", CPU, 5)
    iterations = []
    for _ in range(4):
        runner.step()
        iterations.append(runner._trainer.iteration)
    assert iterations == [6, 1, 2, 3]


def wrong(change: Callable[[Trainer], None], wrong_precision: str = "fp32") -> Callable[..., Trainer]:
    """A `new_trainer` of variants, not of the reference, whose nets of one precision are trained wrongly."""
    original = runners.new_trainer

    def new_trainer(net: Any, recipe: Any, dataset: Any, engine: str, precision: str, device: Any) -> Trainer:
        trainer = original(net, recipe, dataset, engine, precision, device)
        if precision == wrong_precision:
            change(trainer)
        return trainer

    return new_trainer


def skip_every_other_step(trainer: Trainer) -> None:
    step, calls = trainer.step, iter(range(1_000_000))

    def sometimes() -> None:
        if next(calls) % 2:
            kept = [parameter.detach().clone() for parameter in trainer.model.parameters()]
            step()
            with torch.no_grad():
                for parameter, value in zip(trainer.model.parameters(), kept, strict=True):
                    parameter.copy_(value)
        else:
            step()

    trainer.step = sometimes  # type: ignore[method-assign]


def another_start(trainer: Trainer) -> None:
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1.5)


def ten_times_the_rate(trainer: Trainer) -> None:
    trainer.recipe = replace(trainer.recipe, learning_rate=0.01)
    trainer._engine = trainer._made("eager")


def not_finite(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(torch.nan)


@pytest.mark.parametrize("change", [skip_every_other_step, ten_times_the_rate, another_start, not_finite])
def test_a_wrong_step_gets_no_figure_and_the_others_go_on(
    change: Callable[[Trainer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(STEPS, monkeypatch)
    monkeypatch.setattr(runners, "new_trainer", wrong(change))
    figures = measured(precisions=["fp32", "bf16"])
    found = by_label(figures)
    fp32 = found["eager fp32"]
    assert fp32.status == "wrong loss"
    assert (fp32.seconds, fp32.images_per_second) == ((), None)
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
def test_what_the_losses_of_bf16_do_not_show_is_seen_by_how_far_the_parameters_move(
    change: Callable[[Trainer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(3, monkeypatch)
    monkeypatch.setattr(runners, "new_trainer", wrong(change, "bf16"))
    found = by_label(measured(precisions=["fp32", "bf16", "bf16-fp32-stream"], rounds=1))
    bf16, right = found["eager bf16"], found["eager bf16-fp32-stream"]
    assert bf16.status == "wrong loss"
    assert bf16.detail is not None
    assert "times as far as eager fp32's" in bf16.detail
    assert bf16.displacement is not None
    assert bf16.displacement < 0.7
    assert (right.status, found["eager fp32"].displacement) == ("measured", 1.0)
    assert right.displacement == pytest.approx(1, abs=0.05)


def test_engines_keep_the_order_in_which_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "available_engines", lambda device: dict.fromkeys(("eager", "graph", "compile")))
    assert throughput.checked_engines(["graph", "compile", "eager", "graph"], CPU) == ("graph", "compile", "eager")


def test_of_deep_nets_fewer_steps_are_compared_and_the_fastest_is_the_control(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (throughput, trajectory):
        monkeypatch.setattr(module, "DEEP", 8)
    monkeypatch.setattr(trajectory, "DEEP_STEPS", 4)
    trials = iter([2.0, 1.0, 3.0])
    monkeypatch.setattr(throughput, "timed", lambda runner, steps: next(trials))
    figures = measured(precisions=["fp32", "bf16", "bf16-fp32-stream"])
    assert figures.compared_steps == 4
    assert [len(variant.losses or ()) for variant in figures.variants] == [4, 4, 4]
    assert [control.label for control in figures.controls] == ["eager bf16"]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Precisions of ours in memory; bf16 does not fit beside fp32."""
    alive: set[str] = set()
    original = runners.OurRunner

    class Greedy(original):  # type: ignore[misc, valid-type]
        def __init__(
            self, net: Any, recipe: Any, dataset: Any, engine: str, precision: str, device: Any, steps: int
        ) -> None:
            if precision == "bf16" and "fp32" in alive:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            super().__init__(net, recipe, dataset, engine, precision, device, steps)
            alive.add(precision)

        def close(self) -> None:
            alive.discard(self._precision)

    monkeypatch.setattr(throughput, "OurRunner", Greedy)
    yield alive
    assert not alive


def test_what_does_not_fit_beside_others_is_measured_without_them_and_beside_the_baselines_again(
    live: set[str],
) -> None:
    figures = measured(precisions=["fp32", "bf16"], baselines=True)
    assert {(v.label, v.subset) for v in figures.variants if v.kind == "paperbench"} == {
        ("eager fp32", 0),
        ("eager bf16", 1),
    }
    assert sum(v.kind == "plain" and v.precision == "bf16" for v in figures.variants) == 2
    bf16 = by_label(figures)["eager bf16"]
    assert bf16.status == "measured"
    again = next(v for v in figures.variants if (v.kind, v.precision, v.subset) == ("plain", "fp32", 1))
    assert bf16.over_plain is not None
    assert bf16.over_plain.rounds[0] == pytest.approx(
        bf16.steps / bf16.seconds[0] / (again.steps / again.seconds[0])  # type: ignore[operator]
    )
    assert figures.is_sound


@pytest.mark.parametrize("moment", ["build", "trial", "round"])
def test_what_fits_nowhere_is_said_to_and_the_others_go_on(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = runners.OurRunner

    class Greedy(original):  # type: ignore[misc, valid-type]
        begun = 0

        def __init__(
            self, net: Any, recipe: Any, dataset: Any, engine: str, precision: str, device: Any, steps: int
        ) -> None:
            if precision == "bf16" and moment == "build":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            super().__init__(net, recipe, dataset, engine, precision, device, steps)

        def begin(self) -> None:
            if self._precision == "bf16":
                self.begun += 1
                if self.begun == {"build": 0, "trial": 1, "round": 2}[moment]:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            super().begin()

    monkeypatch.setattr(throughput, "OurRunner", Greedy)
    figures = measured(precisions=["bf16", "fp32"], engines=["eager"])
    found = by_label(figures)
    # In the trial, fp32 could make room for it: then it is tried again alone, where it breaks once more.
    assert found["eager bf16"].status == "out of memory"
    assert found["eager bf16"].seconds == ()
    assert found["eager fp32"].status == "measured"
    assert len(figures.variants) == 2
    assert figures.is_sound


def test_an_engine_that_breaks_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(trainer: Trainer) -> None:
        raise RuntimeError("no such kernel in a/folder/of/mine\nand a path: another/file.py")

    monkeypatch.setattr(runners, "new_trainer", wrong(breaks))
    figures = measured(precisions=["fp32", "bf16"])
    found = by_label(figures)
    assert (found["eager fp32"].status, found["eager fp32"].detail) == (
        "failed",
        "RuntimeError: no such kernel in [path]",
    )
    assert found["eager bf16"].status == "measured"
    assert not figures.is_sound


def test_without_a_reference_nothing_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*arguments: object) -> Trainer:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(throughput, "new_trainer", breaks)  # the reference's; variants have the other module's
    (eager,) = measured().variants
    assert (eager.status, eager.images_per_second) == ("not checked", None)


def test_after_the_deadline_nothing_is_begun() -> None:
    figures = measured(precisions=["fp32", "bf16"], baselines=True, deadline=time.monotonic() - 1)
    assert {variant.status for variant in figures.variants} == {"left out"}
    assert figures.is_sound


def test_a_deadline_within_the_rounds_ends_them_after_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = False

    def progress(line: str) -> None:
        nonlocal late
        late = late or "round 1" in line

    monkeypatch.setattr(throughput._Measurement, "_is_late", lambda self: late)
    (eager,) = measured(rounds=5, progress=progress).variants
    assert (eager.status, len(eager.seconds)) == ("measured", 1)


def test_names_are_checked_before_anything_is_built() -> None:
    with pytest.raises(PaperbenchError, match="CUDA graphs need an NVIDIA GPU"):
        measured(engines=["graph"])
    with pytest.raises(PaperbenchError, match=r"Unknown engine 'eagre'\. Did you mean 'eager'\?"):
        measured(engines=["eagre"])
    with pytest.raises(PaperbenchError, match="Ampere"):
        measured(precisions=["tf32"])
    with pytest.raises(PaperbenchError, match="large images"):
        checked_net("preact_resnet18")
    with pytest.raises(PaperbenchError, match="at least 2 images"):
        bench_recipe(1)


def test_on_a_cpu_eager_is_measured_and_compiling_only_if_asked_for() -> None:
    assert usable_engines(CPU) == ("eager",)
    assert "tf32" not in usable_precisions(CPU)
    assert {"fp32", "bf16"} <= set(usable_precisions(CPU))


@pytest.mark.parametrize(("batch_size", "group"), [(128, 64), (64, 64), (256, 64), (32, 32), (100, 100)])
def test_batch_norm_keeps_the_papers_groups_where_they_divide_the_batch(batch_size: int, group: int) -> None:
    recipe = bench_recipe(batch_size)
    assert (recipe.batch_size, recipe.batch_norm.group) == (batch_size, group)


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
    figures = measured(device=device, engines=engines, precisions=precisions, baselines=True, batch_size=128)
    assert {(v.status, v.detail) for v in figures.variants} == {("measured", None)}
    assert all((v.peak_allocated or 0) > 0 for v in figures.variants)
    assert all((v.peak_reserved or 0) > 0 for v in figures.variants)
    assert len([v for v in figures.variants if v.kind == "paperbench"]) == len(engines) * len(precisions)
