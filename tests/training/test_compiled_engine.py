"""The compiled engine compared with the eager one, within bounds, and with itself, bit for bit.

With a cold cache, Inductor takes half a minute for a small net. So only one default test uses it. The others use
backends of torch.compile that generate no code: "aot_eager", which also traces the backward pass, or one that counts
the compiled graphs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import SkipFrame
from torch._dynamo.utils import counters

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError, RunError
from paperbench.models.residual_unit import ResidualUnit
from paperbench.specs.recipe import Drops, Recipe, WarmUp
from paperbench.training import compiling
from paperbench.training import trainer as trainer_module
from paperbench.training.batch_norm import BatchNormAverages, GroupedBatchNorm2d
from paperbench.training.engine import available_engines
from paperbench.training.trainer import Trainer
from tests.helpers import ROOT
from tests.training.trainings import Runs, advance, differences, recipe_of, state_of, take_metrics, through_a_file

CPU, STEPS = torch.device("cpu"), 20


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Reset the compiler, and set torch's recompile limits to zero so that only the engine raises them."""
    config = torch._dynamo.config
    with config.patch(recompile_limit=0, accumulated_recompile_limit=0, fail_on_recompile_limit_hit=False):
        torch._dynamo.reset()
        counters.clear()
        yield
        torch._dynamo.reset()


@pytest.fixture
def inductor() -> None:
    """Skip without the C++ compiler that Inductor needs on a CPU."""
    if why_not := available_engines(CPU)["compile"]:
        pytest.skip(why_not)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Set the backend of torch.compile for new trainers."""

    def use(backend: Any) -> None:
        monkeypatch.setattr(trainer_module, "compile_units", partial(compiling.compile_units, backend=backend))

    return use


@pytest.fixture
def compiled_graphs(use_backend: Callable[[Any], None]) -> list[torch.fx.GraphModule]:
    """The graphs compiled so far, by a backend that runs them unchanged."""
    compiled = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    use_backend(count)
    return compiled


@pytest.fixture
def calm_recipe(paper_recipe: Recipe) -> Recipe:
    """With the learning rate of the paper's warm-up, so that rounding differences grow more slowly than at 0.1."""
    return replace(recipe_of(paper_recipe, 400), warm_up=WarmUp(0.01, 399), drops=Drops((), 0.1))


@pytest.fixture
def runs(calm_recipe: Recipe, tiny_dataset: ImageDataset) -> Runs:
    return Runs(calm_recipe, tiny_dataset, CPU)


def losses(trainer: Trainer, steps: int = STEPS) -> list[float]:
    found = []
    for _ in range(steps):
        trainer.step()
        found.append(take_metrics(trainer).loss)
    return found


BOUNDS = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 5e-2}
"""Relative bounds of the first losses compared with eager ones of the same precision."""


def assert_close_to_eager(runs: Runs, steps: int = STEPS) -> None:
    eager = runs.new("eager")
    expected = losses(eager, steps)
    expected_state = state_of(eager)
    compiled = runs.new("compile")  # resets the global random generators
    assert losses(compiled, steps) == pytest.approx(expected, rel=BOUNDS[runs.precision])
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    found = state_of(compiled)
    rounded = ("window.loss", "window.wrong", "weight", "bias", "running_mean", "running_var", "momentum")
    assert [path for path in differences(found, expected_state) if not any(name in path for name in rounded)] == []


@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize(
    ("net", "depth", "precision"),
    [
        ("preact_resnet110_1layer", 5, "fp32"),
        pytest.param("preact_resnet110_1layer", 5, "bf16", marks=pytest.mark.full),
        pytest.param("preact_resnet20", 8, "fp32", marks=pytest.mark.full),
        pytest.param("preact_resnet164", 11, "bf16", marks=pytest.mark.full),
        pytest.param("resnet110_exclusive_gating", 8, "bf16", marks=pytest.mark.full),
    ],
)
def test_inductor_losses_are_close_to_eager_losses(runs: Runs, net: str, depth: int, precision: str) -> None:
    assert_close_to_eager(replace(runs, net=net, depth=depth, precision=precision))


@pytest.mark.full
@pytest.mark.usefixtures("inductor")
def test_inductor_training_resumes_bit_for_bit(runs: Runs) -> None:
    runs = replace(runs, net="preact_resnet110_1layer", depth=5)
    expected = state_of(advance(runs.new("compile"), 6))
    saved = through_a_file(advance(runs.new("compile"), 3))
    torch.manual_seed(99)
    torch._dynamo.reset()
    resumed = runs.new("compile")
    resumed.load_state_dict(saved)
    assert differences(state_of(advance(resumed, 6)), expected) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("net", "depth", "precision"),
    [("preact_resnet164", 11, "bf16"), ("resnet110_conv_shortcut", 8, "bf16")],
)
def test_traced_losses_are_close_to_eager_losses(
    runs: Runs, use_backend: Callable[[Any], None], net: str, depth: int, precision: str
) -> None:
    use_backend("aot_eager")
    assert_close_to_eager(replace(runs, net=net, depth=depth, precision=precision), steps=8)


@pytest.mark.usefixtures("compiled_graphs")
@pytest.mark.parametrize(
    ("net", "group"), [pytest.param("preact_resnet20", 2, marks=pytest.mark.full), ("resnet110_dropout_shortcut", 6)]
)
def test_three_groups_or_one_per_batch(runs: Runs, net: str, group: int) -> None:
    """With one group, this backend also draws the same dropout noise as the eager engine."""
    settings = replace(runs.recipe.batch_norm, group=group)
    assert_close_to_eager(replace(runs, net=net, recipe=replace(runs.recipe, batch_norm=settings)), steps=8)


@pytest.mark.parametrize(
    ("net", "depth", "number"),
    [
        # The first unit of each later stage, and the other units of each stage. The first unit of the net is another
        # kind if it is pre-activated or increases the width.
        pytest.param("original_resnet20", 14, 5, marks=pytest.mark.full),
        ("preact_resnet20", 20, 6),
        pytest.param("original_resnet164", 29, 6, marks=pytest.mark.full),
    ],
)
def test_each_kind_of_unit_is_compiled_once(
    runs: Runs, compiled_graphs: list[torch.fx.GraphModule], net: str, depth: int, number: int
) -> None:
    runs = replace(runs, net=net, depth=depth)
    trainer = runs.new("compile")
    assert not compiled_graphs
    trainer.step()
    assert len(compiled_graphs) == number
    trainer.test()
    advance(trainer, 3)
    trainer.load_state_dict(trainer.state_dict())
    trainer.step()
    runs.new("compile").step()  # as for another seed
    assert len(compiled_graphs) == number
    assert not counters["graph_break"]


def test_limit_of_kinds_is_per_net(
    runs: Runs, compiled_graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own limit is per process. Compiled units must survive, since captured graphs launch their kernels."""
    monkeypatch.setattr(compiling, "MAX_KINDS", 3)  # at depth 8 every unit is of another kind
    trainers = []
    for net in ("preact_resnet20", "original_resnet20"):
        trainers.append(replace(runs, net=net).new("compile"))
        trainers[-1].step()
    for trainer in trainers:
        trainer.step()
    assert len(compiled_graphs) == 6


def test_too_many_kinds_raise_instead_of_running_eagerly(
    runs: Runs, compiled_graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MAX_KINDS", 2)
    trainer = runs.new("compile")
    with pytest.raises(PaperbenchError, match=r"torch\.compile failed .* can use `--engine eager`"):
        trainer.step()
    assert len(compiled_graphs) == 2


def failing(error: Exception, *, backward: bool = False) -> Callable[..., Any]:
    """A backend that fails while it compiles the forward passes, or the backward passes."""

    def fail(*_: Any) -> Any:
        raise error

    if not backward:
        return fail
    backend: Callable[..., Any] = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph), bw_compiler=fail)
    return backend


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        # As Inductor does for bfloat16 on GPUs before Ampere. torch then runs the unit eagerly.
        (failing(SkipFrame("BF16 is not supported")), "torch skipped a residual unit"),
        (failing(IndexError("no such kernel")), "no such kernel"),
        (failing(ValueError("no such kernel"), backward=True), "ValueError: no such kernel"),
        (failing(OSError(f"{'far/' * 200}a.so: failed: /tmp is mounted noexec")), "mounted noexec"),
    ],
)
def test_unit_that_does_not_compile_is_a_run_error(
    runs: Runs, use_backend: Callable[[Any], None], backend: Callable[..., Any], reason: str
) -> None:
    use_backend(backend)
    with pytest.raises(RunError, match=rf"torch\.compile failed \(.*{reason}.*\)\. A new run .*`--engine eager`"):
        runs.new("compile").step()


def test_unit_that_compiles_in_parts_is_a_run_error(
    runs: Runs, compiled_graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_parts(unit: ResidualUnit, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return unit.residual(x)

    monkeypatch.setattr(ResidualUnit, "forward", in_parts)
    with pytest.raises(RunError, match=r"torch\.compile failed \(Unsupported"):
        runs.new("compile").step()
    assert not compiled_graphs


@pytest.mark.parametrize("backward", [False, True])
def test_out_of_memory_while_compiling_stays_that(
    runs: Runs, use_backend: Callable[[Any], None], backward: bool
) -> None:
    use_backend(failing(torch.OutOfMemoryError("CUDA out of memory"), backward=backward))
    with pytest.raises(torch.OutOfMemoryError):
        runs.new("compile").step()


def test_error_after_the_first_step_is_not_blamed_on_the_compiler() -> None:
    errors = [None, ValueError("a failure of its own")]

    class FailingStep:
        def compute(self, *_: Any) -> None:
            if error := errors.pop(0):
                raise error

        def update(self) -> None: ...
        def clear_gradients(self) -> None: ...

    step = compiling.CompiledStep(FailingStep())
    step.compute(())
    with pytest.raises(ValueError, match="of its own"):
        step.compute(())


FIRST_STEP = """
import torch
from paperbench.runs.limits import Limits, stopping_on_signals
from paperbench.specs.table import load_table
from tests.conftest import ROOT
from tests.helpers import random_dataset
from tests.training.trainings import Runs, recipe_of

table = load_table("table2", ROOT)
recipe = recipe_of(table.recipe_in(table.profiles.named("paper")), 40)
limits = Limits()
with stopping_on_signals(limits):
    trainer = Runs(recipe, random_dataset(16), torch.device("cpu"), "preact_resnet110_1layer", depth=5).new("compile")
    trainer.step()
    print("stepped, then", limits.signal)
"""


@pytest.mark.full
@pytest.mark.usefixtures("inductor")
def test_signal_to_the_process_group_spares_the_compilers(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    command = [sys.executable, "-c", FIRST_STEP]
    alone = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone, start_new_session=True
    ) as process:
        while process.poll() is None and not list(cache.rglob("*.main.cpp")):  # of a unit
            time.sleep(0.02)
        time.sleep(0.5)  # a process that Python starts lets signals in before it enters its session
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert out == f"stepped, then {int(signal.SIGTERM)}\n", err[-2000:]


@pytest.mark.usefixtures("compiled_graphs")
def test_compiled_training_resumes_bit_for_bit(runs: Runs) -> None:
    """In a new trainer, and in one that has compiled already."""
    runs = replace(runs, net="resnet110_dropout_shortcut")
    trainer = advance(runs.new("compile"), 3)
    saved = through_a_file(trainer)
    expected = state_of(advance(trainer, 6))
    trainer.load_state_dict(saved)
    assert differences(state_of(advance(trainer, 6)), expected) == []
    torch.manual_seed(99)
    fresh = runs.new("compile")
    fresh.load_state_dict(saved)
    assert differences(state_of(advance(fresh, 6)), expected) == []


@pytest.mark.usefixtures("compiled_graphs")
def test_eager_and_compiled_resume_each_other(runs: Runs) -> None:
    expected = losses(runs.new("eager"), 12)
    for first, second in (("eager", "compile"), ("compile", "eager")):
        started, losses_found = runs.new(first), []  # type: ignore[arg-type]
        losses_found += losses(started, 6)
        resumed = runs.new(second)  # type: ignore[arg-type]
        resumed.load_state_dict(through_a_file(started))
        losses_found += losses(resumed, 6)
        assert losses_found == pytest.approx(expected, rel=1e-4)
        assert state_of(resumed).keys() == state_of(started).keys()


@pytest.mark.usefixtures("compiled_graphs")
def test_test_and_finish_do_not_affect_training(runs: Runs) -> None:
    expected = state_of(advance(runs.new("compile"), 6))
    trainer = advance(runs.new("compile"), 3)
    tested = trainer.test()
    twin = runs.new("eager")
    twin.load_state_dict(trainer.state_dict())
    assert tested == twin.test()  # both test the net itself, not compiled
    state = state_of(trainer)
    assert trainer.finish() == twin.finish()
    trainer.load_state_dict(state)
    assert differences(state_of(advance(trainer, 6)), expected) == []


@pytest.mark.usefixtures("compiled_graphs")
def test_hooks_run_when_stepping_eagerly(runs: Runs) -> None:
    trainer, seen = runs.new("compile"), []
    trainer.model.stages[1][0].residual.conv2.register_forward_hook(lambda *_: seen.append(1))
    trainer.step()
    assert not seen
    with trainer.stepping_eagerly():
        trainer.step()
    assert len(seen) == 2  # two groups
    trainer.step()
    assert len(seen) == 2


def outcome(layer: nn.BatchNorm2d, x: Tensor, upstream: Tensor, part: int) -> dict[str, Tensor]:
    """Output, gradients and running statistics of a layer that gets `part` images at a time."""
    output = torch.cat([layer(images) for images in x.split(part)])
    dx, *others = torch.autograd.grad(output, (x, layer.weight, layer.bias), upstream)
    if isinstance(layer, GroupedBatchNorm2d):
        averages = BatchNormAverages(layer)
        for row in averages.last_batch():
            averages.move(row)
    weight, bias = (gradient.view(-1, 5).sum(0) for gradient in others)  # per group if grouped
    moved = {"mean": layer.running_mean.clone(), "variance": layer.running_var.clone()}
    return {"output": output, "x": dx, "weight": weight, "bias": bias, **moved}


def random_layer(dtype: torch.dtype) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(5, eps=1e-3, momentum=0.1, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
            tensor.copy_(torch.rand(5, generator=generator) + 0.5)
    return layer


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("images", "group"), [(8, 4), (6, 2), (6, 6)])
def test_grouped_batch_norm_equals_batch_norm_per_group(images: int, group: int, layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 5, 4, 3, generator=generator, dtype=torch.float64) * 3 + 10
    x = x.to(memory_format=layout).requires_grad_()
    upstream = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    expected = outcome(random_layer(torch.float64), x, upstream, group)
    like = random_layer(torch.float64)
    layer = GroupedBatchNorm2d(like, group, images // group)
    found = outcome(layer, x, upstream, images)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert layer.running_mean is like.running_mean
    assert found["output"].is_contiguous(memory_format=layout)


def test_compiled_grouped_batch_norm_has_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x, upstream = torch.randn(2, 8, 5, 4, 4, generator=generator)
    layer = GroupedBatchNorm2d(random_layer(torch.float32), 4, 2)
    expected = outcome(layer, x.requires_grad_(), upstream, 8)
    layer = GroupedBatchNorm2d(random_layer(torch.float32), 4, 2)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    monkeypatch.setattr(torch._dynamo.config, "accumulated_recompile_limit", 1)
    layer.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(outcome(layer, x, upstream, 8), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("group", [4, 8])
def test_grouped_batch_norm_of_bf16_images_computes_in_fp32(group: int) -> None:
    """Only input and output are rounded, compared with float64 on the same images."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(8, 5, 16, 16, generator=generator) + 20).bfloat16().requires_grad_()
    upstream = torch.randn(x.shape, generator=generator).bfloat16()
    exact_x = x.detach().double().requires_grad_()
    expected = outcome(random_layer(torch.float64), exact_x, upstream.double(), group)
    found = outcome(GroupedBatchNorm2d(random_layer(torch.float32), group, 8 // group), x, upstream, 8)
    for name, value in found.items():
        is_rounded = name in ("output", "x")
        assert value.dtype == (torch.bfloat16 if is_rounded else torch.float32)
        tolerance = 2**-8 if is_rounded else 1e-4
        torch.testing.assert_close(value.double(), expected[name], rtol=tolerance, atol=1e-4)


CUDA = torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("net", "depth"), [("preact_resnet20", 14), ("preact_resnet164", 11)])
def test_gpu_losses_are_close_to_eager_losses(runs: Runs, net: str, depth: int, precision: str) -> None:
    """Ten steps: in 20, rounding in BN alone changes the losses of deeper nets by 1e-4."""
    assert_close_to_eager(replace(runs, device=CUDA, net=net, depth=depth, precision=precision), steps=10)


@pytest.mark.gpu
@pytest.mark.parametrize("net", ["preact_resnet20", "resnet110_dropout_shortcut"])
def test_captured_and_eager_compiled_steps_are_bit_equal(runs: Runs, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first step over a change of the learning rate, and from a resumed state."""
    runs = replace(runs, device=CUDA, net=net, recipe=recipe_of(runs.recipe, 40), precision="bf16")
    captured = runs.new("compile")
    states = [state_of(advance(captured, iteration)) for iteration in (1, 2, 20, 40)]
    fresh = runs.new("compile")
    saved = through_a_file(advance(runs.new("compile"), 11))
    fresh.load_state_dict(saved)
    assert differences(state_of(advance(fresh, 40)), states[-1]) == []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_make_graph_engine", lambda self, step, _: self._make_eager_engine(step))
        one_by_one = runs.new("compile")
    found = [state_of(advance(one_by_one, iteration)) for iteration in (1, 2, 20, 40)]
    for mine, theirs in zip(found, states, strict=True):
        assert differences(mine, theirs) == [], mine["iteration"]
