from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.runs.planning import PlannedRun, run_spec
from paperbench.runs.record import Result
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe, WarmUp
from tests.runs.running import plan_run, tiny_recipe, train


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        values: dict[str, str] = opened.metadata()
    return values


def load_net(directory: RunDirectory) -> nn.Module:
    """Load the net as a user would who has only the file."""
    values, file = metadata(directory.weights_file), str(directory.weights_file)
    name = f"{values['architecture']}.{values['tag']}" if values["tag"] else values["architecture"]
    arguments = json.loads(values["arguments"])
    model: nn.Module = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": file}, **arguments)
    return model.eval()


def images(dataset: ImageDataset, mean: Any, std: Any) -> Tensor:
    """Return the test images (N, 3, H, W), normalised."""
    pixels = torch.from_numpy(dataset.x_test).permute(0, 3, 1, 2) / 255
    return (pixels - torch.tensor(mean)) / torch.tensor(std)


@torch.no_grad()
def error(model: nn.Module, dataset: ImageDataset, inputs: Tensor) -> float:
    return 100 * float((model(inputs).argmax(1) != torch.from_numpy(dataset.y_test)).double().mean())


@torch.no_grad()
def loss(model: nn.Module, dataset: ImageDataset, inputs: Tensor, *, bf16: bool = False) -> float:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        logits = model(inputs.contiguous(memory_format=torch.channels_last))
    return float(F.cross_entropy(logits.double(), torch.from_numpy(dataset.y_test)))


def result_of(directory: RunDirectory) -> Result:
    record = directory.read_record()
    assert record is not None
    assert record.result is not None
    return record.result


@pytest.mark.parametrize(
    ("net", "at_test"), [("preact_resnet20", "reestimated"), ("original_resnet164", "moving_average")]
)
def test_timm_loads_the_tested_net(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, at_test: Any, net: str
) -> None:
    recipe = tiny_recipe(paper_recipe, batch_norm=BatchNormSettings(8, 1e-5, 0.1, at_test))
    directory, _ = train(plan_run(recipe, small_dataset, net), tmp_path)
    result, values = result_of(directory), metadata(directory.weights_file)
    assert {**json.loads(values["result"]), "evaluations": ()} == dataclasses.asdict(result)
    inputs = images(small_dataset, json.loads(values["mean"]), json.loads(values["std"]))
    assert error(load_net(directory), small_dataset, inputs) == result.test_error
    found = loss(load_net(directory), small_dataset, inputs)
    assert found == pytest.approx(result.test_loss, rel=1e-5)
    if at_test == "reestimated":
        assert found != pytest.approx(result.moving_average_test_loss, rel=5e-3), "the two statistics differ"
    described = ("architecture", "tag", "run", "seed", "data", "data_fingerprint")
    expected = (net, "cifar10", directory.path.name, "0", small_dataset.name, small_dataset.fingerprint)
    assert tuple(values[key] for key in described) == expected
    assert json.loads(values["arguments"]) == {"depth": 11 if "164" in net else 8}


def test_bfloat16_run_is_tested_in_bfloat16(paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path) -> None:
    directory, _ = train(plan_run(tiny_recipe(paper_recipe), small_dataset, precision="bf16"), tmp_path)
    values, result = metadata(directory.weights_file), result_of(directory)
    assert values["precision"] == "bf16"
    model = load_net(directory).to(memory_format=torch.channels_last)
    inputs = images(small_dataset, json.loads(values["mean"]), json.loads(values["std"]))
    assert loss(model, small_dataset, inputs, bf16=True) == pytest.approx(result.test_loss, rel=1e-6)
    assert loss(model, small_dataset, inputs) != pytest.approx(result.test_loss, rel=1e-6)


def test_metadata_hold_mean_and_deviation_of_training_images(
    paper_recipe: Recipe, expected: RunDirectory, small_dataset: ImageDataset, tmp_path: Path
) -> None:
    pixels = small_dataset.x_train.astype(np.float64) / 255
    values = metadata(expected.weights_file)
    mean = np.array(json.loads(values["mean"]))
    np.testing.assert_allclose(mean, pixels.mean(axis=0).transpose(2, 0, 1), rtol=1e-7)
    assert json.loads(values["std"]) == [[[1.0]]] * 3
    directory, _ = train(plan_run(tiny_recipe(paper_recipe, input="channel_mean_std"), small_dataset), tmp_path)
    values = metadata(directory.weights_file)
    np.testing.assert_allclose(np.array(json.loads(values["mean"]))[:, 5, 7], pixels.mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(np.ravel(json.loads(values["std"])), pixels.std(axis=(0, 1, 2)), rtol=1e-6)
    inputs = images(small_dataset, json.loads(values["mean"]), json.loads(values["std"]))
    assert error(load_net(directory), small_dataset, inputs) == result_of(directory).test_error


def test_cifar100_weights_have_their_tag(paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path) -> None:
    dataset = dataclasses.replace(small_dataset, key="cifar100", y_train=small_dataset.y_train + 90)
    run = plan_run(tiny_recipe(paper_recipe), dataset)
    net = dataclasses.replace(run.net, num_classes=100)
    spec = run_spec(net, run.recipe, dataset.fingerprint, "paper", "fp32")
    directory, _ = train(dataclasses.replace(run, net=net, spec=spec), tmp_path)
    assert metadata(directory.weights_file)["tag"] == "cifar100"
    assert load_net(directory).get_classifier().out_features == 100  # type: ignore[operator]


def test_deleted_weights_are_rewritten_from_the_checkpoint(run: PlannedRun, finished: RunDirectory) -> None:
    weights = finished.weights_file.read_bytes()
    finished.weights_file.unlink()
    finished.record_file.unlink()
    _, log = train(run, finished.path.parents[1])
    assert log.steps == []
    assert finished.weights_file.read_bytes() == weights


def test_diverged_run_deletes_earlier_weights(run: PlannedRun, tmp_path: Path) -> None:
    """A session was killed after it wrote the weights, and the final test of the next one is not finite."""
    late: dict[str, Any] = {"learning_rate": 1e30, "warm_up": WarmUp(0.01, 19), "drops": Drops((), 0.1)}
    broken = plan_run(dataclasses.replace(run.recipe, **late), run.dataset)
    directory = Store(tmp_path).directory(broken.id, lambda: None)
    directory.writer.write(directory.weights_file, b"of an earlier attempt")
    _, log = train(broken, tmp_path)
    assert log.record.status == "diverged"
    assert not directory.weights_file.exists()


def test_timm_refuses_weights_of_another_net(finished: RunDirectory, tmp_path: Path) -> None:
    """The names and shapes of the parameters are equal."""
    overlay = {"file": str(finished.weights_file)}
    with pytest.raises(PaperbenchError, match=r"holds a different net .* Ask for 'preact_resnet20', depth=8, or"):
        timm.create_model(
            "preact_resnet20", depth=8, transition_shortcut="raw", pretrained=True, pretrained_cfg_overlay=overlay
        )
    with pytest.raises(PaperbenchError, match="holds a different net"):
        timm.create_model("preact_resnet20", pretrained=True, pretrained_cfg_overlay=overlay)
    more = timm.create_model("preact_resnet20", depth=8, num_classes=7, pretrained=True, pretrained_cfg_overlay=overlay)
    assert more(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    for values in ({"architecture": "resnet50"}, {"architecture": "preact_resnet20", "arguments": "[7]"}):
        foreign = tmp_path / "foreign.safetensors"
        save_file({"x": torch.zeros(1)}, foreign, values)
        with pytest.raises(PaperbenchError, match="holds a net that paperbench does not know"):
            timm.create_model("preact_resnet20", pretrained=True, pretrained_cfg_overlay={"file": str(foreign)})
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(finished.weights_file.read_bytes()[:1000])
    with pytest.raises(PaperbenchError, match="cannot be read as weights"):
        timm.create_model("preact_resnet20", depth=8, pretrained=True, pretrained_cfg_overlay={"file": str(torn)})


def test_timm_configuration_has_the_channel_means_of_cifar10(cifar10: ImageDataset, finished: RunDirectory) -> None:
    configured = timm.data.resolve_model_data_config(load_net(finished))
    measured = cifar10.x_train.mean(axis=(0, 1, 2), dtype=np.float64) / 255
    np.testing.assert_allclose(configured["mean"], measured, atol=0.002)
