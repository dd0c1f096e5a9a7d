"""The health of a training against autograd on the plain net, whole Jacobians, and two states of a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.analysis.cases import Case, analyse, of_run, of_weights, subject_of
from paperbench.analysis.health import mean_squared_singular_value, measure_modules
from paperbench.analysis.record import ALL, Conditions, Health
from paperbench.analysis.walk import Subject
from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.models import ResidualNet
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe
from tests.helpers import ROOT
from tests.models.test_against_reference import randomised
from tests.runs.running import CPU, newest_state, plan_run, tiny_recipe, train

FULL = pytest.mark.full
NETS: list[tuple[str, dict[str, Any]]] = [
    ("original_resnet20", {"shortcut_option": "B"}),
    ("preact_resnet20", {}),
    ("resnet110_bn_after_addition", {}),
    ("resnet110_exclusive_gating", {}),
    ("resnet110_constant_scaling", {"shortcut_scale": 0.0, "residual_scale": 1.0}),
]


def tiny(name: str, images: int = 3, **kwargs: Any) -> tuple[ResidualNet, Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    batch = torch.randn(images, 3, 4, 6, dtype=torch.float64, generator=source)
    return randomised(resolve(name, depth=8, **kwargs)), batch, torch.randint(10, (images,), generator=source)


def subject(model: ResidualNet, images: Tensor, labels: Tensor, *, by_batch: bool = True) -> Subject:
    return Subject(model, images, labels, by_batch=by_batch, dtype=torch.float64)


@pytest.mark.parametrize("by_batch", [True, False])
@pytest.mark.parametrize(("name", "kwargs"), NETS)
def test_gradients_and_activations_are_those_of_the_plain_net(name: str, kwargs: Any, by_batch: bool) -> None:
    model, images, labels = tiny(name, **kwargs)
    rows, gradients = measure_modules(subject(model, images, labels, by_batch=by_batch))
    plain, seen, entering = model.double().train(by_batch), dict[str, Tensor](), dict[str, Tensor]()
    for path, module in plain.named_modules():

        def note(_: nn.Module, x: tuple[Tensor], y: Tensor, path: str = path) -> None:
            entering[path], seen[path] = x[0].detach().flatten(1), y.detach()

        module.register_forward_hook(note)
    F.cross_entropy(plain(images), labels).backward()
    for path, weight in plain.named_parameters():
        torch.testing.assert_close(gradients[path], weight.grad, rtol=1e-9, atol=1e-9)
    relus = [path for path, module in plain.named_modules() if isinstance(module, nn.ReLU)]
    assert {path for path, row in rows.items() if "mean" in row} == {*relus}
    for path in relus:
        by_channel = seen[path].transpose(0, 1).flatten(1)
        assert rows[path]["mean"] == pytest.approx(by_channel.mean().item(), rel=1e-9)
        assert rows[path]["std"] == pytest.approx(by_channel.std(correction=0).item(), rel=1e-9)
        assert (rows[path]["dead"], rows[path]["channels"]) == (int((by_channel == 0).all(1).sum()), len(by_channel))
    for path in ("stages.0.0", "stages.1.0", "stages.2.0"):
        cosines = torch.corrcoef(torch.cat([entering[path], -entering[path]], 1))  # of mean zero
        assert rows[path]["correlation"] == pytest.approx(((cosines.sum() - 3) / 6).item(), abs=1e-9)


@pytest.mark.parametrize(("name", "kwargs"), [NETS[0], *(pytest.param(*net, marks=FULL) for net in NETS[1:])])
def test_chi_is_the_mean_square_of_all_singular_values(name: str, kwargs: Any) -> None:
    at = subject(*tiny(name, images=2, **kwargs))
    rows, _ = measure_modules(at)
    for (facts, module), unit in zip(at.units, at.forward(), strict=True):
        x, step = unit.x, 1e-6
        basis = torch.eye(x.numel(), dtype=torch.float64).reshape(-1, *x.shape)
        jacobian = torch.stack([(module(x + step * e) - module(x - step * e)).flatten() / (2 * step) for e in basis], 1)
        expected = (torch.linalg.svdvals(jacobian) ** 2).sum().item() / x.numel()
        leaf = x.requires_grad_()
        y = module(leaf)
        every = torch.eye(y.numel(), dtype=torch.float64).reshape(-1, *y.shape)
        exact = mean_squared_singular_value(y, leaf, list(every))
        assert exact["chi"] == pytest.approx(expected, rel=1e-6)
        squares = jacobian.square().sum(1) * y.numel() / x.numel()
        assert exact["chi_error"] == pytest.approx(squares.std().item() / y.numel() ** 0.5, rel=1e-6)
        found = rows[f"stages.{facts.stage}.{facts.index}"]["chi"]
        assert found == pytest.approx(expected, rel=0.5)  # of two random probes


def test_channels_that_are_zero_on_all_images_are_dead() -> None:
    model, images, labels = tiny("preact_resnet20")
    bn = model.get_submodule("stages.1.0.residual.bn1")
    bn.weight.data[[1, 5]], bn.bias.data[[1, 5]] = 0, torch.tensor([-0.1, 0.1]).double()
    rows, _ = measure_modules(subject(model, images, labels))
    assert rows["stages.1.0.residual.relu1"]["dead"] == 1


def test_one_image_has_no_correlation() -> None:
    rows, _ = measure_modules(subject(*tiny("preact_resnet20", images=1)))
    assert rows["stages.0.0"]["correlation"] is None


def found_in(case: Case) -> Health:
    health = analyse(case, Conditions(measures=("health",)), CPU).health
    assert health
    return health


def updates(health: Health) -> dict[str, float]:
    return {row["name"]: row["update"] for row in health.modules.rows() if row["update"] is not None}


@pytest.mark.parametrize("form", ["caffe", pytest.param("pytorch", marks=FULL), pytest.param("nesterov", marks=FULL)])
def test_updates_are_the_steps_of_a_run(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, form: Any
) -> None:
    """With a rate that changes at the last step, and one BN group a batch, so that the first step is known as well."""
    batch_norm = BatchNormSettings(16, 1e-5, 0.1, "moving_average")
    monitoring = Monitoring(log_every=2, test_every=2, checkpoint_every=1, checkpoint_share=1.0)
    changes = {"momentum_form": form, "iterations": 6, "warm_up": None, "drops": Drops((4,), 0.1), "weight_decay": 0.1}
    recipe = tiny_recipe(paper_recipe, batch_norm=batch_norm, monitoring=monitoring, **changes)
    run = plan_run(recipe, small_dataset)
    initial = Case(run.net_name, run.net, run.recipe, run.dataset, run.seed)
    states = [dict(subject_of(initial, Conditions(), CPU).model.state_dict())]
    for iteration in (1, 4, 5):
        directory, log = train(run, tmp_path, stop_at=iteration)
        states.append({name.removeprefix("model."): t.double() for name, t in newest_state(directory).items()})

    parameters = [name for name, _ in subject_of(initial, Conditions(), CPU).model.named_parameters()]

    def assert_steps(health: Health, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        found = updates(health)
        assert len(found) == 9  # seven convolutions, the classifier, and all
        every = torch.cat([(after[name] - before[name]).flatten() for name in parameters])
        assert found[ALL] == pytest.approx(every.norm().item(), rel=1e-3)
        for name in found.keys() - {ALL}:
            step = (after[f"{name}.weight"] - before[f"{name}.weight"]).norm().item()
            assert found[name] == pytest.approx(step, rel=1e-3), name

    first = found_in(initial)
    assert_steps(first, states[0], states[1])
    assert first.update_is.startswith("the first step's")
    assert (first.train_error, first.test_error) == (None, None)
    last = found_in(of_run(directory, log.record, small_dataset))
    if form == "nesterov":
        assert (updates(last), last.update_is[:11]) == ({}, "unavailable")
    else:
        assert_steps(last, states[2], states[3])
        assert last.update_is == "the last step's"
    (line,) = (line for line in directory.history() if line.iteration == 4)
    assert (last.train_error, last.test_error) == (line.train_error, line.test_error)
    directory, log = train(run, tmp_path)
    finished = found_in(of_run(directory, log.record, small_dataset))
    of_file = found_in(of_weights(directory.weights_file, tmp_path, ROOT, "digits"))
    for one, reason in ((finished, "finished runs keep no momentum"), (of_file, "weights have no momentum")):
        assert (updates(one), one.update_is) == ({}, f"unavailable: {reason}")
    assert (of_file.train_error, of_file.test_error) == (None, None)
    assert finished.test_error == directory.history()[-1].test_error
