"""The compiled engine against the eager one, within bounds; against itself, bit for bit.

Inductor takes half a minute for a small net where its cache on disk is cold. So it compiles one here, and more with
`--full`; what does not depend on it is tested with backends of torch.compile that generate no code: "aot_eager", which
traces the backward pass too, or one that only counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import Drops, Recipe, WarmUp
from paperbench.training import compiling
from paperbench.training import trainer as trainer_module
from paperbench.training.batch_norm import GroupedBatchNorm2d, MovingAverages
from paperbench.training.engine import EagerEngine, available_engines
from paperbench.training.trainer import Trainer
from tests.training.trainings import Runs, advance, differences, recipe_of, state_of, take_metrics, through_a_file

CPU, STEPS = torch.device("cpu"), 20


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Nothing is compiled yet, nothing may be but what the engine asks for, and the process gets its settings back."""
    config = torch._dynamo.config
    with config.patch(recompile_limit=0, accumulated_recompile_limit=0, fail_on_recompile_limit_hit=False):
        torch._dynamo.reset()
        counters.clear()
        yield
        torch._dynamo.reset()


@pytest.fixture
def inductor() -> None:
    """What the engine compiles by. On a CPU it needs a compiler of its own."""
    if why := available_engines(CPU)["compile"]:
        pytest.skip(why)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let trainers made from now on compile by another backend."""

    def use(backend: Any) -> None:
        monkeypatch.setattr(trainer_module, "compile_units", partial(compiling.compile_units, backend=backend))

    return use


@pytest.fixture
def kinds(use_backend: Callable[[Any], None]) -> list[torch.fx.GraphModule]:
    """What has been compiled so far: computed as it stands, but counted."""
    compiled = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    use_backend(count)
    return compiled


@pytest.fixture
def calm_recipe(paper_recipe: Recipe) -> Recipe:
    """At the rate of the paper's warm-up, so that what is rounded otherwise does not grow as fast as at 0.1."""
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


BOUNDS = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 5e-2, "bf16-fp32-stream": 5e-2}
"""Relative, of each of the first 20 losses against eager ones of the same precision."""


def assert_follows_eager(runs: Runs, steps: int = STEPS) -> None:
    eager = runs.new("eager")
    expected = losses(eager, steps)
    expected_state = state_of(eager)
    compiled = runs.new("compile")  # which sets the random generators that all of them draw from
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
        ("preact_resnet110_1layer", 5, "bf16"),
        ("preact_resnet20", 8, "fp32"),
        ("preact_resnet164", 11, "bf16-fp32-stream"),
        ("resnet110_exclusive_gating", 8, "bf16"),
    ],
)
def test_compiled_units_follow_the_eager_ones(runs: Runs, full: bool, net: str, depth: int, precision: str) -> None:
    if not full and (depth, precision) != (5, "fp32"):
        pytest.skip("--full: Inductor takes its time")
    assert_follows_eager(replace(runs, net=net, depth=depth, precision=precision))


@pytest.mark.usefixtures("inductor")
def test_a_compiled_training_continues_from_its_checkpoint(runs: Runs) -> None:
    runs = replace(runs, net="preact_resnet110_1layer", depth=5)
    expected = state_of(advance(runs.new("compile"), 6))
    saved = through_a_file(advance(runs.new("compile"), 3))
    torch.manual_seed(99)
    torch._dynamo.reset()
    again = runs.new("compile")
    again.load_state_dict(saved)
    assert differences(state_of(advance(again, 6)), expected) == []


@pytest.mark.parametrize(
    ("net", "depth", "precision"),
    [
        ("preact_resnet164", 11, "bf16"),
        ("resnet110_conv_shortcut", 8, "bf16-fp32-stream"),
    ],
)
def test_bottlenecks_and_projections_too(
    runs: Runs, use_backend: Callable[[Any], None], net: str, depth: int, precision: str
) -> None:
    use_backend("aot_eager")
    assert_follows_eager(replace(runs, net=net, depth=depth, precision=precision))


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(("net", "group"), [("preact_resnet20", 2), ("resnet110_dropout_shortcut", 6)])
def test_the_batch_may_be_three_groups_or_one(runs: Runs, net: str, group: int) -> None:
    """With one, the noise too is the eager engine's, if the backend does not draw it by means of its own."""
    settings = replace(runs.recipe.batch_norm, group=group)
    assert_follows_eager(replace(runs, net=net, recipe=replace(runs.recipe, batch_norm=settings)))


@pytest.mark.parametrize(
    ("net", "depth", "number"),
    [
        # The first unit of each later stage and the others of each stage; the very first besides, if it is another:
        # pre-activated, or where it widens.
        ("original_resnet20", 14, 5),
        ("preact_resnet20", 20, 6),
        ("original_resnet164", 29, 6),
    ],
)
def test_each_kind_of_unit_is_compiled_once(
    runs: Runs, full: bool, kinds: list[torch.fx.GraphModule], net: str, depth: int, number: int
) -> None:
    if depth > 20 and not full:
        pytest.skip("--full: three layers a unit, three units a stage")
    runs = replace(runs, net=net, depth=depth)
    trainer = runs.new("compile")
    assert not kinds
    trainer.step()
    assert len(kinds) == number
    trainer.test()
    advance(trainer, 3)
    trainer.load_state_dict(trainer.state_dict())
    trainer.step()
    runs.new("compile").step()  # as another seed's
    assert len(kinds) == number
    assert not counters["graph_break"]


def test_several_nets_in_one_process(
    runs: Runs, kinds: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's limit is for all of them together. What is compiled stays: graphs on a GPU launch it."""
    monkeypatch.setattr(compiling, "MAX_KINDS", 3)  # at a depth of 8 every unit is of a kind of its own
    trainers = []
    for net in ("preact_resnet20", "original_resnet20"):
        trainers.append(replace(runs, net=net).new("compile"))
        trainers[-1].step()
    for trainer in trainers:
        trainer.step()
    assert len(kinds) == 6


def test_too_many_kinds_are_an_error_rather_than_eager(
    runs: Runs, kinds: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MAX_KINDS", 2)
    trainer = runs.new("compile")
    with pytest.raises(PaperbenchError, match=r"torch\.compile failed .* Use `--engine eager`"):
        trainer.step()
    assert len(kinds) == 2


@pytest.mark.usefixtures("kinds")
def test_states_lead_a_compiled_training(runs: Runs) -> None:
    """Into a fresh trainer, and into one that has compiled already."""
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


@pytest.mark.usefixtures("kinds")
def test_eager_and_compiled_go_on_where_the_other_stopped(runs: Runs) -> None:
    expected = losses(runs.new("eager"), 12)
    for first, second in (("eager", "compile"), ("compile", "eager")):
        begun, found = runs.new(first), []  # type: ignore[arg-type]
        found += losses(begun, 6)
        again = runs.new(second)  # type: ignore[arg-type]
        again.load_state_dict(through_a_file(begun))
        found += losses(again, 6)
        assert found == pytest.approx(expected, rel=1e-4)
        assert state_of(again).keys() == state_of(begun).keys()


@pytest.mark.usefixtures("kinds")
def test_testing_and_finishing_in_between_disturb_nothing(runs: Runs) -> None:
    expected = state_of(advance(runs.new("compile"), 6))
    trainer = advance(runs.new("compile"), 3)
    tested = trainer.test()
    twin = runs.new("eager")
    twin.load_state_dict(trainer.state_dict())
    assert tested == twin.test()  # the net itself, not compiled, in either case
    state = state_of(trainer)
    assert trainer.finish() == twin.finish()
    trainer.load_state_dict(state)
    assert differences(state_of(advance(trainer, 6)), expected) == []


@pytest.mark.usefixtures("kinds")
def test_hooks_see_the_modules_when_steps_are_eager(runs: Runs) -> None:
    trainer, seen = runs.new("compile"), []
    trainer.model.stages[1][0].residual.conv2.register_forward_hook(lambda *_: seen.append(1))
    trainer.step()
    assert not seen
    with trainer.stepping_eagerly():
        trainer.step()
    assert len(seen) == 2  # groups
    trainer.step()
    assert len(seen) == 2


def outcome(layer: nn.BatchNorm2d, x: Tensor, upstream: Tensor, part: int) -> dict[str, Tensor]:
    """Output, gradients and averages by name, of a layer that takes so many images at once."""
    output = torch.cat([layer(images) for images in x.split(part)])
    if isinstance(layer, GroupedBatchNorm2d):
        MovingAverages([layer]).update()
    dx, *others = torch.autograd.grad(output, (x, layer.weight, layer.bias), upstream)
    weight, bias = (gradient.view(-1, 5).sum(0) for gradient in others)  # of grouped ones by group
    averages = {"mean": layer.running_mean.clone(), "variance": layer.running_var.clone()}
    return {"output": output, "x": dx, "weight": weight, "bias": bias, **averages}


def random_layer(dtype: torch.dtype) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(5, eps=1e-3, momentum=0.1, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
            tensor.copy_(torch.rand(5, generator=generator) + 0.5)
    return layer


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("images", "group"), [(8, 4), (6, 2), (6, 6)])
def test_grouped_batch_norm_is_batch_norm_of_one_group_after_another(
    images: int, group: int, layout: torch.memory_format
) -> None:
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


@pytest.mark.parametrize("group", [4, 8])
def test_grouped_batch_norm_of_bf16_images_computes_in_fp32(group: int) -> None:
    """What is rounded is what goes in and comes out; float64 on the same images says how much that may be."""
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
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "bf16-fp32-stream"])
@pytest.mark.parametrize(("net", "depth"), [("preact_resnet20", 14), ("preact_resnet164", 11)])
def test_on_a_gpu_too(runs: Runs, net: str, depth: int, precision: str) -> None:
    """Fewer steps, as deeper nets part faster: to 1e-4 in 20 steps even where rounding in BN is all the difference."""
    assert_follows_eager(replace(runs, device=CUDA, net=net, depth=depth, precision=precision), steps=10)


@pytest.mark.gpu
@pytest.mark.parametrize("net", ["preact_resnet20", "resnet110_dropout_shortcut"])
def test_capturing_compiled_units_changes_no_bit(runs: Runs, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a change of the rate, from the first step on, and from a state in the middle."""
    runs = replace(runs, device=CUDA, net=net, recipe=recipe_of(runs.recipe, 40), precision="bf16")
    captured = runs.new("compile")
    states = [state_of(advance(captured, iteration)) for iteration in (1, 2, 20, 40)]
    fresh = runs.new("compile")
    saved = through_a_file(advance(runs.new("compile"), 11))
    fresh.load_state_dict(saved)
    assert differences(state_of(advance(fresh, 40)), states[-1]) == []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_make_graph_engine", lambda self, step: EagerEngine(step, self._batches))
        one_by_one = runs.new("compile")
    found = [state_of(advance(one_by_one, iteration)) for iteration in (1, 2, 20, 40)]
    for mine, theirs in zip(found, states, strict=True):
        assert differences(mine, theirs) == [], mine["iteration"]
