from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
import torchvision.transforms.functional as TF
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import paperbench
from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.photos import load_photos
from paperbench.data.sources import load_dataset
from paperbench.models import ResidualNet
from paperbench.runs import evaluate as module
from paperbench.runs import named
from paperbench.runs.external import read_externals
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Drops, Evaluation, Monitoring, Recipe
from paperbench.training.evaluation import evaluate
from paperbench.training.foreign import library_net
from tests.cli.conftest import Run
from tests.helpers import a_record, random_dataset, write_record
from tests.runs.running import photographs_recipe, plan_run, tiny_recipe, train

ON_PHOTOS = ("--dataset", "photos", "--device", "cpu")
SQUEEZENET = ("torchvision:squeezenet1_1", "--weights", "net.pth", "--device", "cpu")


@pytest.fixture
def tested(run: Run) -> Run:
    """Run `paperbench evaluate`; returns exit status, stdout and stderr."""
    return partial(run, "evaluate")


@pytest.fixture
def on_photos(tested: Run) -> Run:
    """Test a small net of torchvision, with the weights in net.pth, on the embedded photographs."""
    torch.save(torchvision.models.squeezenet1_1(num_classes=6).state_dict(), "net.pth")
    return partial(tested, *SQUEEZENET, "--dataset", "photos")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with 100 + 40 random images as CIFAR-10."""
    directory, images = tmp_path_factory.mktemp("data"), random_dataset(32)
    parts = {part: getattr(images, part) for part in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(directory / "cifar10.npz", **parts)
    return directory


@pytest.fixture(scope="module")
def trained(paper_recipe: Recipe, data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    recipe = tiny_recipe(paper_recipe)
    dataset = load_dataset("cifar10", data)
    assert isinstance(dataset, ImageDataset)
    return train(plan_run(recipe, dataset), tmp_path_factory.mktemp("results"))[0]


class Spy:
    """Keeps the logits of the nets that are tested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logits = torch.empty(0)
        monkeypatch.setattr(module, "evaluate", self._evaluate)

    def _evaluate(self, model: nn.Module, batches: Iterable[Any], *others: Any) -> Any:
        kept = list(batches)
        with torch.no_grad():
            self.logits = torch.cat([model.eval()(batch.images) for batch in kept])
        return evaluate(model, kept, *others)


def own_loop(model: nn.Module, transform: Callable[[Image.Image], Tensor]) -> tuple[Tensor, Tensor]:
    """Logits and labels of the embedded photographs, as a user of the library computes them."""
    files = load_photos().test
    images = [Image.open(files.root / path).convert("RGB") for path in files.paths if path.startswith("val")]
    with torch.no_grad():
        return model.eval()(torch.stack([transform(image) for image in images])), torch.from_numpy(files.labels)


def numbers(out: str) -> list[float]:
    """The errors and the loss of the first line of results."""
    line = next(line for line in out.splitlines() if line.startswith("tested"))
    return [float(word) for word in line.replace(",", "").split() if word.replace(".", "").isdigit() and "." in word]


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_foreign_net_has_its_librarys_own_logits(
    library: str, tested: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    if library == "torchvision":
        name, model = "mobilenet_v3_small", torchvision.models.mobilenet_v3_small(num_classes=6)
        transform = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT.transforms()
    else:
        name, model = "resnet10t.c3_in1k", timm.create_model("resnet10t.c3_in1k", num_classes=6)
        transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    torch.save(model.state_dict(), tmp_path / "net.pth")
    spy, (expected, labels) = Spy(monkeypatch), own_loop(model, transform)
    monkeypatch.setattr("paperbench.streams.SECONDS_TO_FIRST", 0.0)
    code, out, err = tested(f"{library}:{name}", "--weights", "net.pth", *ON_PHOTOS)
    assert (code, err) == (0, "testing: 12 of 12 images, about 0 seconds left\n")
    assert torch.equal(spy.logits, expected)
    order = expected.argsort(1, descending=True)
    found = [100 * float((order[:, :k] != labels[:, None]).all(1).double().mean()) for k in (1, 5)]
    assert numbers(out) == pytest.approx([*found, float(F.cross_entropy(expected.double(), labels))], abs=1e-3)
    assert "not the data of the paper" in out


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v3_small", "timm:mobilenetv3_small_050"])
@pytest.mark.parametrize("scale", [96, 118])
def test_crop_and_scale_replace_the_librarys(name: str, scale: int, tmp_path: Path) -> None:
    """96 / (96 / 118) is rounded to less than 118."""
    library, _, net = name.partition(":")
    model = timm.create_model(net) if library == "timm" else torchvision.models.get_model(net)
    torch.save(model.state_dict(), tmp_path / "net.pth")
    _, how, _ = library_net(name, tmp_path / "net.pth", 1000, Evaluation(96, scale))
    assert how.evaluation == Evaluation(96, scale)
    assert how.crop
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (140, 150, 3), dtype=np.uint8))
    mode = Image.Resampling.BILINEAR if library == "torchvision" else Image.Resampling.BICUBIC
    resized = TF.center_crop(image.resize((150 * scale // 140, scale), mode), [96, 96])
    np.testing.assert_array_equal(how.crop(image), np.asarray(resized))


def test_run_is_tested_bit_for_bit_as_recorded(tested: Run, trained: RunDirectory, data: Path) -> None:
    record = trained.read_record()
    assert record is not None
    assert record.result is not None
    for name, options in ((record.run, {"results": trained.path.parents[1]}), (str(trained.path), {})):
        (result,) = paperbench.evaluate(name, data=data, device="cpu", **options)
        assert (result.error, result.loss) == (record.result.test_error, record.result.test_loss)
    code, out, _ = tested(os.path.relpath(trained.path), "--data", data, "--device", "cpu")
    assert code == 0
    assert numbers(out)[0] == pytest.approx(record.result.test_error)


def test_run_is_not_tested_on_other_images(tested: Run, trained: RunDirectory, data: Path, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    images = dict(np.load(data / "cifar10.npz"))
    images["x_test"][0, 0, 0, 0] ^= 1
    np.savez(others / "cifar10.npz", **images)
    code, _, err = tested(trained.path, "--data", others)
    assert code == 2
    assert str(trained.weights_file) in err
    assert tested(trained.weights_file, "--data", others, "--device", "cpu")[0] == 0
    assert tested(trained.path, "--data", data, "--dataset", "digits", "--device", "cpu")[0] == 2
    assert "handwritten digits" in tested(trained.weights_file, "--dataset", "digits", "--device", "cpu")[1]


def test_unfinished_run_is_not_tested(tested: Run, tmp_path: Path) -> None:
    directory = write_record(Store(tmp_path / "results"), a_record(status="partial"))
    code, _, err = tested(directory.path.name)
    assert (code, "holds no finished run. Finish it" in " ".join(err.split())) == (2, True)


def test_weights_file_is_tested_with_its_exact_mean_image(
    trained: RunDirectory, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shutil.copy(trained.weights_file, tmp_path / "copy.safetensors")
    spy, record = Spy(monkeypatch), trained.read_record()
    (result,) = paperbench.evaluate(str(file), data=data, device="cpu")
    assert record is not None
    assert record.result is not None
    assert result.error == record.result.test_error
    assert result.loss == pytest.approx(record.result.test_loss, rel=1e-5)
    dataset = load_dataset("cifar10", data)
    assert isinstance(dataset, ImageDataset)
    inputs = (dataset.x_test / 255 - dataset.x_train.mean(0, dtype=np.float64) / 255).transpose(0, 3, 1, 2)
    model = timm.create_model("preact_resnet20", depth=8, pretrained=True, pretrained_cfg_overlay={"file": str(file)})
    with torch.no_grad():
        torch.testing.assert_close(spy.logits, model.eval()(torch.tensor(inputs, dtype=torch.float32)))


@pytest.mark.full
def test_both_evaluations_of_a_run_on_photographs(tmp_path: Path) -> None:
    monitoring = Monitoring(log_every=1, test_every=2, checkpoint_every=2, checkpoint_share=1.0)
    recipe = photographs_recipe(iterations=2, drops=Drops((1,), 0.1), monitoring=monitoring)
    directory, log = train(plan_run(recipe, load_photos(), "preact_resnet18", depth=18), tmp_path)
    assert log.record.result is not None
    recorded = [(one.top1, one.top5, one.loss) for one in log.record.result.evaluations]
    found = paperbench.evaluate(str(directory.path), device="cpu")
    assert [(one.error, one.top5_error, one.loss) for one in found] == recorded
    assert len({one.loss for one in found}) == 2
    (alone,) = paperbench.evaluate(str(directory.weights_file), device="cpu", crop=recipe.evaluations["large"])
    assert alone.loss == pytest.approx(recorded[1][2], rel=0.05)  # with the channels' means


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResidualNet, tuple[str, ...]]:
    """A net of ours of 110 layers, and the arguments that test its weights as those of another implementation."""
    torch.manual_seed(0)
    model = ResidualNet(resolve("original_resnet110")).eval()
    file = tmp_path_factory.mktemp("theirs") / "theirs.safetensors"
    texts = {"architecture": "original_resnet110", "arguments": "{}", "tag": "cifar10"}
    texts |= {"mean": "[[[0.5]], [[0.4]], [[0.3]]]", "std": "[[[0.2]], [[0.25]], [[0.3]]]"}
    save_file(model.state_dict(), file, texts)
    return model, (str(file), "--device", "cpu")


Theirs = tuple[ResidualNet, tuple[str, ...]]


def test_weights_of_others_have_the_input_that_they_name(
    theirs: Theirs, tested: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy, dataset = Spy(monkeypatch), load_dataset("cifar10", data)
    assert isinstance(dataset, ImageDataset)
    code, out, _ = tested(*theirs[1], "--data", data)
    assert code == 0
    assert "original_resnet110, theirs.safetensors\n" in out
    inputs = (dataset.x_test / 255 - (0.5, 0.4, 0.3)) / (0.2, 0.25, 0.3)
    with torch.no_grad():
        logits = theirs[0](torch.tensor(inputs.transpose(0, 3, 1, 2), dtype=torch.float32))
    torch.testing.assert_close(spy.logits, logits, rtol=1e-3, atol=1e-4)


def test_mapped_weights_have_the_input_of_their_implementation(tested: Run, data: Path) -> None:
    torch.save(ResidualNet(resolve("original_resnet20", shortcut_option="B")).state_dict(), "theirs.pth")
    arguments = ("original_resnet20", "--weights", "theirs.pth", "--mapping", "chenyaofo", "--device", "cpu")
    code, out, _ = tested(*arguments, "--data", data)
    assert code == 0
    assert "original_resnet20(shortcut_option='B'), theirs.pth by mapping chenyaofo\n" in out
    assert "mean (0.4914, 0.4822, 0.4465), std (0.2023, 0.1994, 0.201)" in out


@pytest.fixture
def canonical(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the random images count as the original files."""
    images = dataclasses.replace(load_dataset("cifar10", data), canonical=True)
    for one in (module, named):
        monkeypatch.setattr(one, "load_dataset", lambda *_: images)


ENTRY = ("--seed", 3, "--source", "A. Author")


def test_measured_error_is_recorded_as_external(theirs: Theirs, tested: Run, canonical: None) -> None:
    code, out, err = tested(*theirs[1], "--record", "table2", "original/resnet110", *ENTRY)
    assert (code, err) == (0, "")
    ((result,), _) = read_externals(Path("results"))
    assert (result.cell, result.seed, result.source) == ("original/resnet110", 3, "A. Author")
    assert result.error == numbers(out)[0]
    assert "Recorded table2 original/resnet110, seed 3" in out


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            ("table2", "preact/resnet110", *ENTRY),
            "The cell is for preact_resnet110 on the original cifar10, tested on whole images.",
        ),
        (
            ("table5", "original_resnet152/top1", *ENTRY),
            "The cell is for original_resnet152 on the original imagenet, tested on 320x320 crop",
        ),
        (("table2", "original/resnet110", "--seed", 3), "--record needs --seed and --source"),
        (("table2", "original", *ENTRY), "'original' is not the id of a cell"),
        (("table2", "original/resnet110", "--seed", -1, "--source", "x"), "--seed must be at least 0"),
    ],
)
def test_error_of_another_experiment_is_not_recorded(
    record: tuple[object, ...], message: str, theirs: Theirs, tested: Run, canonical: None
) -> None:
    code, out, err = tested(*theirs[1], "--record", *record)
    assert (code, out) == (2, ""), "before the test"
    assert message in " ".join(err.split())
    assert not Path("results").exists()


def test_error_on_other_data_is_not_recorded(theirs: Theirs, tested: Run, data: Path) -> None:
    code, out, err = tested(*theirs[1], "--data", data, "--record", "table2", "original/resnet110", *ENTRY)
    assert (code, out) == (2, "")
    assert "Nothing can be recorded for table2 original/resnet110" in " ".join(err.split())


def test_cells_error_is_recorded_if_the_crop_is_the_cells(tested: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    images = dataclasses.replace(load_photos(), key="imagenet", canonical=True)
    monkeypatch.setattr(module, "load_dataset", lambda *_: images)
    model: Any = torchvision.models.squeezenet1_1()
    model.classifier[1].bias.data[:5] = torch.tensor([900.0, 800.0, 700.0, 600.0, 500.0])
    torch.save(model.state_dict(), "net.pth")
    code, out, err = tested(*SQUEEZENET, "--record", "table5", "original_resnet152/top1", *ENTRY)
    assert (code, out) == (2, "")
    assert "tested on 320x320 crop" in " ".join(err.split())
    code, out, _ = tested(*SQUEEZENET, "--record", "table5", "original_resnet152_224/top5", *ENTRY)
    ((result,), _) = read_externals(Path("results"))
    assert code == 0
    assert result.error == pytest.approx(numbers(out)[1], abs=1e-3) != pytest.approx(numbers(out)[0], abs=1e-3)


def test_error_on_another_data_set_is_not_recorded(tested: Run, canonical: None) -> None:
    torch.save(torchvision.models.squeezenet1_1(num_classes=10).state_dict(), "net.pth")
    code, out, err = tested(*SQUEEZENET, "--dataset", "cifar10", "--record", "table4", "resnet164/cifar100", *ENTRY)
    assert (code, out) == (2, "")
    assert "on the original cifar100" in " ".join(err.split())


def test_image_damaged_after_indexing_is_named(on_photos: Run) -> None:
    photos = load_photos()
    place = photos.test.root / photos.test.paths[photos.test.container[7]]
    before = place.read_bytes()
    try:
        place.write_bytes(before[:-1])
        code, out, err = on_photos()
    finally:
        place.write_bytes(before)
    assert (code, "tested" in out) == (2, False)
    assert place.name in err


SMALL = ("--crop", 48, "--scale", 48)


def test_checkpoint_has_the_loss_of_its_weights_and_says_which_these_are(on_photos: Run) -> None:
    plain, state = on_photos(*SMALL)[1], torch.load("net.pth")
    average = {name: tensor / 2 for name, tensor in state.items()}
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"args": argparse.Namespace(lr=1), "state_dict": wrapped, "state_dict_ema": average}, "net.pth")
    note = "net.pth (its state_dict.module, not averaged; its average state_dict_ema is not used)"
    assert on_photos(*SMALL)[1] == plain.replace("net.pth", note)


def test_weights_that_are_not_numbers_have_no_error(on_photos: Run) -> None:
    torch.save({name: tensor * torch.nan for name, tensor in torch.load("net.pth").items()}, "net.pth")
    code, out, err = on_photos()
    assert (code, "tested" in out) == (2, False)
    assert "outputs that are not finite numbers" in " ".join(err.split())


def test_less_memory_gives_the_same_result(on_photos: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, forward = on_photos(*SMALL)[1], torchvision.models.SqueezeNet.forward

    def short_of_memory(model: Any, images: Tensor) -> Tensor:
        if len(images) > 5:
            raise torch.OutOfMemoryError
        return forward(model, images)

    monkeypatch.setattr(torchvision.models.SqueezeNet, "forward", short_of_memory)
    code, out, _ = on_photos(*SMALL)
    assert code == 0
    assert numbers(out) == pytest.approx(numbers(expected), rel=1e-5)


def test_pretrained_weights_without_a_network(tested: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> Any:
        raise OSError("Name or service not known")

    monkeypatch.setattr(torchvision.models.SqueezeNet, "__init__", no_network)
    code, _, err = tested("torchvision:squeezenet1_1", "--pretrained", *ON_PHOTOS)
    assert code == 2
    assert "Name or service not known. If the network is the reason, download the weights" in " ".join(err.split())


def test_images_of_a_size_that_the_net_refuses(tested: Run) -> None:
    torch.save(timm.create_model("vit_tiny_patch16_224", num_classes=10).state_dict(), "net.pth")
    code, _, err = tested("timm:vit_tiny_patch16_224", "--weights", "net.pth", "--dataset", "digits", "--device", "cpu")
    assert code == 2
    assert "cannot be tested on images of this size" in " ".join(err.split())


def test_downloaded_weights_for_other_classes_are_refused(tested: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.models.SqueezeNet, "load_state_dict", lambda *_: None)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: {})
    code, _, err = tested("torchvision:squeezenet1_1", "--pretrained", *ON_PHOTOS)
    assert code == 2
    assert "torchvision:squeezenet1_1 has 1,000 classes, and the data set 6." in " ".join(err.split())


def test_preset_is_that_of_the_named_weights(tmp_path: Path) -> None:
    torch.save(torchvision.models.mobilenet_v3_large().state_dict(), tmp_path / "net.pth")
    for name, scale in (("mobilenet_v3_large", 232), ("mobilenet_v3_large.IMAGENET1K_V1", 256)):
        _, how, _ = library_net(f"torchvision:{name}", tmp_path / "net.pth", 1000, None)
        assert how.evaluation == Evaluation(224, scale)
