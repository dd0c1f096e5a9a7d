"""The health of a training against autograd on the plain net, whole Jacobians, and the steps of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.analysis.cases import Case, analyse, of_net, of_run, subject_of
from paperbench.analysis.health import mean_squared_singular_value, measure_modules
from paperbench.analysis.record import ALL, Conditions, Health
from paperbench.analysis.walk import Subject
from paperbench.data.dataset import ImageDataset
from paperbench.runs.named import read_net
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring, Recipe
from tests.analysis.test_paths import NETS, tiny
from tests.helpers import ROOT
from tests.runs.running import CPU, newest_state, plan_run, tiny_recipe, train

FULL = pytest.mark.full
SOME = [net for net in NETS if "dropout" not in str(net)]


@pytest.mark.parametrize("by_batch", [True, False])
@pytest.mark.parametrize(("name", "kwargs"), NETS)
def test_gradients_and_activations_are_those_of_the_plain_net(name: str, kwargs: Any, by_batch: bool) -> None:
    plain, images, labels = tiny(name, **kwargs)
    rows, gradients = measure_modules(Subject(plain, images, labels, by_batch=by_batch, dtype=torch.float64))
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    for module in plain.double().train(by_batch).modules():
        module.register_forward_hook(lambda module, x, y: seen.update({module: (x[0].detach(), y.detach())}))
    for noise, (unit,) in enumerate(plain.stages.children()):
        unit.register_forward_pre_hook(lambda *_, noise=noise: torch.manual_seed(noise) and None)  # dropout
    F.cross_entropy(plain(images), labels).backward()
    for path, weight in plain.named_parameters():
        torch.testing.assert_close(gradients[path], weight.grad, rtol=1e-9, atol=1e-9)
    for path, module in plain.named_modules():
        if isinstance(module, nn.ReLU):
            by_channel = seen[module][1].transpose(0, 1).flatten(1)
            expected = {"mean": by_channel.mean().item(), "std": by_channel.std(correction=0).item()}
            expected |= {"dead": int((by_channel == 0).all(1).sum()), "channels": len(by_channel)}
            assert rows[path] == pytest.approx(expected, rel=1e-9)
        elif "chi" in rows.get(path, ()):
            x = seen[module][0].flatten(1)
            cosines = torch.corrcoef(torch.cat([x, -x], 1))  # of mean zero
            assert rows[path]["correlation"] == pytest.approx(((cosines.sum() - 3) / 6).item(), abs=1e-9)


@pytest.mark.parametrize(("name", "kwargs"), [SOME[0], *(pytest.param(*net, marks=FULL) for net in SOME[1:])])
def test_chi_is_the_mean_square_of_all_singular_values(name: str, kwargs: Any) -> None:
    at = Subject(*tiny(name, images=2, height=4, **kwargs), by_batch=True, dtype=torch.float64)
    rows, _ = measure_modules(at, probes=200)
    for (facts, module), unit in zip(at.units, at.forward(), strict=True):
        basis = 1e-6 * torch.eye(unit.x.numel(), dtype=torch.float64).reshape(-1, *unit.x.shape)
        jacobian = torch.stack([(module(unit.x + e) - module(unit.x - e)).flatten() / 2e-6 for e in basis], 1)
        leaf = unit.x.requires_grad_()
        y = module(leaf)
        every = torch.eye(y.numel(), dtype=torch.float64).reshape(-1, *y.shape)
        squares = jacobian.square().sum(1) * y.numel() / leaf.numel()
        expected = (torch.linalg.svdvals(jacobian) ** 2).sum().item() / leaf.numel()
        exact = {"chi": expected, "chi_error": squares.std().item() / y.numel() ** 0.5}
        assert mean_squared_singular_value(y, leaf, list(every)) == pytest.approx(exact, rel=1e-6)
        found = rows[f"stages.{facts.stage}.{facts.index}"]
        assert found["chi"] == pytest.approx(expected, abs=4 * found["chi_error"], rel=0)


def test_channels_that_are_zero_are_dead_and_one_image_has_no_correlation() -> None:
    model, *batch = tiny("preact_resnet20", images=1, height=8)
    bn = model.get_submodule("stages.1.0.residual.bn1")
    bn.weight.data[[1, 5]], bn.bias.data[[1, 5]] = 0, torch.tensor([-0.1, 0.1]).double()
    bn.bias.data[[0, 2, 3, 4, *range(6, 32)]] = 9
    rows, _ = measure_modules(Subject(model, *batch, by_batch=True, dtype=torch.float64))
    assert rows["stages.1.0.residual.relu1"]["dead"] == 1
    assert rows["stages.1.0"]["correlation"] is None


def health_of(case: Case) -> tuple[Health, dict[str, float]]:
    health = analyse(case, Conditions(measures=("health",)), CPU).health
    assert health
    return health, {row["name"]: row["update"] for row in health.modules.rows() if row["update"] is not None}


@FULL
@pytest.mark.parametrize("form", ["caffe", "pytorch", "nesterov"])
def test_updates_are_the_steps_of_a_run(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, form: Any
) -> None:
    """With a rate that changes at the last step and after it, and one BN group a batch, so that the first is known."""
    batch_norm = BatchNormSettings(16, 1e-5, 0.1, "moving_average")
    monitoring = Monitoring(log_every=2, test_every=2, checkpoint_every=1, checkpoint_share=1.0)
    changes = {"momentum_form": form, "iterations": 6, "warm_up": None, "drops": Drops((4, 5), 0.1)}
    changes |= {"weight_decay": 0.1, "clip_norm": 0.5, "label_smoothing": 0.2}
    run = plan_run(tiny_recipe(paper_recipe, batch_norm=batch_norm, monitoring=monitoring, **changes), small_dataset)
    case = Case(run.net_name, run.net, run.recipe, run.dataset, run.seed)
    model = subject_of(case, Conditions(), CPU).model
    states, parameters = [model.state_dict()], [name for name, _ in model.named_parameters()]
    first, of_first = health_of(case)
    for iteration in (0, 1, 4, 5):
        directory, log = train(run, tmp_path, stop_at=iteration)
        if not iteration:
            assert health_of(of_run(directory, log.record, small_dataset))[1] == of_first
            continue
        states.append({name.removeprefix("model."): t.double() for name, t in newest_state(directory).items()})
    last, of_last = health_of(of_run(directory, log.record, small_dataset))
    for found, before, after in ((of_first, *states[:2]), (of_last, *states[2:])):
        steps = {name: (after[name] - before[name]).flatten() for name in parameters}
        norms = {name: steps[f"{name}.weight"].norm().item() for name in of_first if name != ALL}
        norms[ALL] = torch.cat(list(steps.values())).norm().item()
        assert found == ({} if form == "nesterov" and found is of_last else pytest.approx(norms, rel=1e-3))
    unknown = "unavailable: Nesterov lacks the last gradient"
    assert (len(of_first), first.update_is) == (9, "the first step's, on these images")
    assert last.update_is == (unknown if form == "nesterov" else "the last step's")
    (line,) = (line for line in directory.history() if line.iteration == 4)
    assert (last.train_error, last.test_error) == (pytest.approx(line.train_error), pytest.approx(line.test_error))
    directory, log = train(run, tmp_path)
    of_file = of_net(read_net(directory.weights_file, tmp_path, "digits"), ROOT)[0]
    for one in (of_run(directory, log.record, small_dataset), of_file):
        health, updates = health_of(one)
        assert (updates, health.update_is) == ({}, "unavailable: no momentum was kept")
        assert (health.test_error is None) == (one is of_file)
