"""Path lengths against sums over all paths of Jacobians of `tests.reference`; errors against zeroed weights."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial, reduce
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.analysis.cases import Case
from paperbench.analysis.health import measure_modules
from paperbench.analysis.jacobians import jacobians
from paperbench.analysis.paths import gradient_by_length, leave_out, split_gradient
from paperbench.analysis.walk import Subject, measure
from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.options import AnalysisOptions
from paperbench.specs.recipe import Recipe
from tests.models.test_against_reference import randomised
from tests.reference import Parameters, Unit

NETS: list[tuple[str, dict[str, Any]]] = [
    ("original_resnet20", {}),
    ("original_resnet20", {"shortcut_option": "B"}),
    ("resnet110_bn_after_addition", {}),
    ("resnet110_relu_before_addition", {}),
    ("resnet110_relu_only_preact", {}),
    ("preact_resnet20", {}),
    ("resnet110_constant_scaling", {"residual_scale": 0.3}),
    ("resnet110_exclusive_gating", {}),
    ("resnet110_shortcut_only_gating", {"placement": "preact"}),
    ("resnet110_conv_shortcut", {}),
    ("resnet110_dropout_shortcut", {}),
    ("preact_resnet20", {"residual_dropout": 0.3}),
]
every_net = pytest.mark.parametrize(("name", "kwargs"), NETS)


def tiny(name: str, images: int = 3, height: int = 2, **kwargs: Any) -> tuple[ResidualNet, Tensor, Tensor]:
    """A net of three units in float64, and a batch so small that Jacobians are cheap."""
    model = randomised(resolve(name, depth=8, **kwargs))
    source = torch.Generator().manual_seed(5)
    batch = torch.randn(images, 3, height, 4, dtype=torch.float64, generator=source)
    return model, batch, torch.randint(10, (images,), generator=source)


class Held(Parameters):
    """Layers whose statistics and gates are constants to the gradient."""

    def conv(self, name: str, x: Tensor, *args: Any, bias: bool = False, **kwargs: Any) -> Tensor:
        return super().conv(name, x.detach() if bias else x, *args, bias=bias, **kwargs)

    def bn(self, name: str, x: Tensor) -> Tensor:
        if not self.training:
            return super().bn(name, x)
        mean, var = x.detach().mean((0, 2, 3)), x.detach().var((0, 2, 3), correction=0)
        return F.batch_norm(x, mean, var, self.state[f"{name}.weight"], self.state[f"{name}.bias"])


class HeldUnit(Unit):
    """A unit of which only the shortcut has a gradient."""

    def weights(self, x: Tensor) -> Tensor:
        return super().weights(x).detach()


def sums_over_paths(model: ResidualNet, images: Tensor, labels: Tensor, *, training: bool) -> list[Tensor]:
    """Add up the gradients of all 2^3 paths, each a product of matrices, by the length of the path."""
    model = copy.deepcopy(model).train(training).requires_grad_(False)
    state = model.state_dict()
    choices, x = [], model.stem(images)
    shape = x.shape
    for stage in range(3):
        place: Any = (model.net, f"stages.{stage}.0", 16 * 2**stage, 1 + (stage > 0))
        whole, held = Unit(Parameters(state, training), *place), HeldUnit(Held(state, training), *place)

        def jacobian(unit: Unit, x: Tensor = x, stage: int = stage) -> Tensor:
            def function(x: Tensor) -> Tensor:
                torch.manual_seed(stage)  # dropout
                return unit(x, first=stage == 0)

            columns: Any = torch.autograd.functional.jacobian(function, x, vectorize=True)
            return columns.reshape(-1, x.numel())  # type: ignore[no-any-return]

        by_shortcut = jacobian(held)
        choices.append(((0, by_shortcut), (1, jacobian(whole) - by_shortcut)))
        torch.manual_seed(stage)
        x = whole(x, first=stage == 0)
    x.requires_grad_()
    end = model.tail(x).mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    (gradient,) = torch.autograd.grad(F.cross_entropy(end, labels), x)
    sums = [torch.zeros(shape, dtype=torch.float64) for _ in range(4)]
    for path in itertools.product(*choices):
        length = sum(through for through, _ in path)
        product = reduce(lambda g, matrix: matrix.T @ g, [matrix for _, matrix in reversed(path)], gradient.flatten())
        sums[length] += product.view(shape)
    return sums


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    scale = max(part.abs().max().item() for part in theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * scale)


@every_net
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
def test_gradient_of_a_length_is_the_sum_over_its_paths(name: str, kwargs: dict[str, Any], training: bool) -> None:
    model, images, labels = tiny(name, **kwargs)
    subject = Subject(model, images, labels, by_batch=training, dtype=torch.float64)
    ours, theirs = split_gradient(subject, 54), sums_over_paths(model, images, labels, training=training)
    assert_close(ours, theirs)
    assert min(part.norm().item() for part in theirs) > 0


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_longer_paths_are_added_up(longest: int) -> None:
    model, images, labels = tiny("original_resnet20")
    subject = Subject(model, images, labels, by_batch=True, dtype=torch.float64)
    theirs = sums_over_paths(model, images, labels, training=True)
    longer = torch.stack(theirs[longest + 1 :]).sum(0)
    assert_close(split_gradient(subject, longest), [*theirs[: longest + 1], longer])


@pytest.mark.parametrize("longest", [1, 3])
def test_norms_and_shares_are_those_of_the_parts(longest: int) -> None:
    model, images, labels = tiny("preact_resnet20")
    found = gradient_by_length(Subject(model, images, labels, by_batch=True, dtype=torch.float64), longest)
    theirs = torch.stack(sums_over_paths(model, images, labels, training=True)).flatten(1)
    parts, longer = theirs[: longest + 1], theirs[longest + 1 :].sum(0)
    whole = theirs.sum(0)
    assert found.number == (1, 3, 3, 1)[: longest + 1]
    assert found.norm == pytest.approx(parts.norm(dim=1).tolist(), rel=1e-5)
    assert found.share == pytest.approx((parts @ whole / (whole @ whole)).tolist(), rel=1e-5)
    assert found.longer_norm == pytest.approx(longer.norm().item(), rel=1e-5)
    assert found.longer_share == pytest.approx((longer @ whole / (whole @ whole)).item(), rel=1e-5)


def test_parts_add_up_to_the_whole_gradient_of_a_deeper_net() -> None:
    model = randomised(resolve("preact_resnet110", depth=20))
    images, labels = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.tensor([3, 7])
    subject = Subject(model, images, labels, by_batch=True, dtype=torch.float64)
    x = model.train().stem(images).detach().requires_grad_()
    loss = F.cross_entropy(model.fc(model.tail(model.stages(x)).mean((2, 3))), labels)
    (whole,) = torch.autograd.grad(loss, x)
    parts = split_gradient(subject, 54)
    assert len(parts) == 10
    assert_close([torch.stack(parts).sum(0)], [whole])
    found = gradient_by_length(subject, 4)
    assert math.fsum(found.share) + found.longer_share == pytest.approx(1, rel=1e-4)


def zeroed(model: ResidualNet, unit: int) -> ResidualNet:
    """A copy of a net of three units in which the last layers of F in one unit give zero."""
    changed = copy.deepcopy(model)
    last = [layer for layer in changed.stages[unit][0].residual if not isinstance(layer, nn.ReLU)][-1]
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return changed


@every_net
def test_errors_without_a_unit_are_those_of_zeroed_weights(name: str, kwargs: dict[str, Any]) -> None:
    model, images, labels = tiny(name, images=110, height=4, **kwargs)  # several chunks
    model.eval()
    with torch.no_grad():
        intact = model(images).argmax(1)
        labels = torch.where(torch.arange(110) % 5 == 0, labels, intact)
        expected = [(zeroed(model, unit)(images).argmax(1) != labels).double().mean().item() for unit in range(3)]
    found = leave_out(Subject(model, images, labels, by_batch=False, dtype=torch.float64))
    assert found.whole == pytest.approx(100 * (intact != labels).double().mean().item())
    assert found.without == pytest.approx([100 * error for error in expected])
    assert any(error != found.whole for error in found.without)


@pytest.mark.parametrize(
    "measure", [measure, gradient_by_length, leave_out, measure_modules, jacobians, partial(jacobians, small=0)]
)
def test_net_is_bit_equal_afterwards(measure: Any) -> None:
    model, images, labels = tiny("resnet110_dropout_shortcut")
    subject = Subject(model.float(), images, labels, by_batch=measure is not leave_out, dtype=torch.float64)
    nets = model, subject.model
    before = [copy.deepcopy(net.state_dict()) for net in nets]
    draws = torch.get_rng_state()
    measure(subject)
    for net, state in zip(nets, before, strict=True):
        assert all(torch.equal(tensor, state[key]) for key, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws)
    assert model.training
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize(("trained", "batch_norm"), [(False, "averages"), (True, "batch")])
def test_units_are_left_out_only_of_trained_nets_in_tests(
    trained: bool, batch_norm: Any, paper_recipe: Recipe, small_dataset: ImageDataset
) -> None:
    state = {} if trained else None
    case = Case("preact_resnet20", resolve("preact_resnet20"), paper_recipe, small_dataset, seed=0, state=state)
    with pytest.raises(PaperbenchError, match=r"left out of trained nets, in tests\. Name a run"):
        case.spec(AnalysisOptions(images=4, batch_norm=batch_norm, measures=("left_out",)))
