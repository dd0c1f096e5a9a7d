from __future__ import annotations

import argparse
import io
import os
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

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
from paperbench.cli.evaluate import print_test
from paperbench.cli.main import build_parser
from paperbench.data.dataset import ImageDataset
from paperbench.data.photos import load_photos
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.runs.evaluate import Candidate, prepare
from paperbench.runs.external import read_externals
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Drops, Evaluation, Monitoring, Recipe
from paperbench.training.foreign import library_net
from tests.cli.conftest import Run
from tests.golden import assert_golden
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


def own_loop(model: nn.Module, transform: Callable[[Image.Image], Tensor]) -> tuple[Tensor, Tensor]:
    """Logits and labels of the embedded photographs, as a user of the library computes them."""
    files = load_photos().test
    images = [Image.open(files.root / path).convert("RGB") for path in files.paths if path.startswith("val")]
    with torch.no_grad():
        return model.eval()(torch.stack([transform(image) for image in images])), torch.from_numpy(files.labels)


def errors_of(logits: Tensor, labels: Tensor) -> list[Any]:
    """Top-1 error, top-5 error and loss, to be compared with those found."""
    order = logits.argsort(1, descending=True)
    found = [100 * float((order[:, :k] != labels[:, None]).all(1).double().mean()) for k in (1, 5)]
    return [pytest.approx(value, rel=1e-6) for value in (*found, float(F.cross_entropy(logits.double(), labels)))]


def assert_printed(name: str, out: str) -> None:
    """Compare with a file all but errors and losses, which differ between processors."""
    assert_golden(name, re.sub(r"(error|loss) [\d.]+", r"\1 NUMBER", out))


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_foreign_net_has_its_librarys_own_errors(library: str, tested: Run, tmp_path: Path) -> None:
    torch.manual_seed(1)
    if library == "torchvision":
        name, model = "mobilenet_v3_small", torchvision.models.mobilenet_v3_small(num_classes=6)
        transform = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT.transforms()
    else:
        name, model = "resnet10t.c3_in1k", timm.create_model("resnet10t.c3_in1k", num_classes=6)
        transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    torch.save(model.state_dict(), "net.pth")
    options = {"weights": Path("net.pth"), "dataset": "photos", "device": "cpu"}
    (found,) = paperbench.evaluate(f"{library}:{name}", **options)
    assert [found.error, found.top5_error, found.loss] == errors_of(*own_loop(model, transform))


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
    assert record
    assert record.result
    for name, options in ((record.run, {"results": trained.path.parents[1]}), (str(trained.path), {})):
        (result,) = paperbench.evaluate(name, data=data, device="cpu", **options)
        assert (result.error, result.loss) == (record.result.test_error, record.result.test_loss)
    code, out, _ = tested(os.path.relpath(trained.path), "--data", data, "--device", "cpu")
    assert code == 0
    assert f"tested  top-1 error {record.result.test_error:.3f} %, " in out
    assert_printed("evaluate_run", out.replace(record.run, "RUN"))


def test_run_is_not_tested_on_other_images(tested: Run, trained: RunDirectory, data: Path, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    images = dict(np.load(data / "cifar10.npz"))
    images["x_test"][0, 0, 0, 0] ^= 1
    np.savez(others / "cifar10.npz", **images)
    for options in (("--data", others), ("--data", data, "--dataset", "digits")):
        code, _, err = tested(trained.path, *options)
        assert (code, str(trained.weights_file) in err) == (2, True)
    code, out, _ = tested(trained.weights_file, "--dataset", "digits", "--device", "cpu")
    assert code == 0
    assert_printed("evaluate_weights", out)


def test_unfinished_run_is_not_tested(tested: Run, tmp_path: Path) -> None:
    directory = write_record(Store(tmp_path / "results"), a_record(status="partial"))
    code, _, err = tested(directory.path.name)
    assert (code, "holds no finished run. Finish it" in " ".join(err.split())) == (2, True)


def test_weights_file_is_tested_with_its_exact_mean_image(trained: RunDirectory, data: Path, tmp_path: Path) -> None:
    file = shutil.copy(trained.weights_file, tmp_path / "copy.safetensors")
    (result,) = paperbench.evaluate(str(file), data=data, device="cpu")
    dataset = load_dataset("cifar10", data)
    assert isinstance(dataset, ImageDataset)
    inputs = (dataset.x_test / 255 - dataset.x_train.mean(0, dtype=np.float64) / 255).transpose(0, 3, 1, 2)
    model = timm.create_model("preact_resnet20", depth=8, pretrained=True, pretrained_cfg_overlay={"file": str(file)})
    with torch.no_grad():
        logits = model.eval()(torch.tensor(inputs, dtype=torch.float32))
    assert [result.error, result.top5_error, result.loss] == errors_of(logits, torch.from_numpy(dataset.y_test))


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
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResidualNet, str]:
    """A net of ours of 110 layers, and a file with its weights as those of another implementation."""
    torch.manual_seed(0)
    model = ResidualNet(resolve("original_resnet110")).eval()
    file = tmp_path_factory.mktemp("theirs") / "theirs.safetensors"
    texts = {"architecture": "original_resnet110", "arguments": "{}", "tag": "cifar10"}
    texts |= {"mean": "[[[0.5]], [[0.4]], [[0.3]]]", "std": "[[[0.2]], [[0.25]], [[0.3]]]"}
    save_file(model.state_dict(), file, texts)
    return model, str(file)


Theirs = tuple[ResidualNet, str]


def test_weights_of_others_have_the_input_that_they_name(theirs: Theirs, data: Path) -> None:
    dataset = load_dataset("cifar10", data)
    assert isinstance(dataset, ImageDataset)
    (result,) = paperbench.evaluate(theirs[1], data=data, device="cpu")
    inputs = (dataset.x_test / 255 - (0.5, 0.4, 0.3)) / (0.2, 0.25, 0.3)
    with torch.no_grad():
        logits = theirs[0](torch.tensor(inputs.transpose(0, 3, 1, 2), dtype=torch.float32))
    _, _, loss = errors_of(logits, torch.from_numpy(dataset.y_test))
    assert result.loss == loss


def test_mapped_weights_have_the_input_of_their_implementation(tested: Run, data: Path) -> None:
    torch.save(ResidualNet(resolve("original_resnet20", shortcut_option="B")).state_dict(), "theirs.pth")
    arguments = ("original_resnet20", "--weights", "theirs.pth", "--mapping", "chenyaofo", "--device", "cpu")
    code, out, _ = tested(*arguments, "--data", data)
    assert code == 0
    assert_printed("evaluate_mapped", out)


ENTRY = ("--seed", "3", "--source", "A. Author")


def enter(candidate: Candidate, *record: str) -> int:
    return print_test(build_parser().parse_args(["evaluate", "net", "--record", *record]), candidate)


@pytest.fixture
def on_original_data(theirs: Theirs, data: Path) -> Candidate:
    """A net of 110 layers, to be tested on images that count as the original files."""
    candidate = prepare(theirs[1], data=data, device="cpu")
    return replace(candidate, dataset=replace(candidate.dataset, canonical=True))


def test_measured_error_is_recorded_as_external(run: Run, on_original_data: Candidate) -> None:
    assert enter(on_original_data, "table2", "original/resnet110", *ENTRY) == 0
    ((result,), _) = read_externals(Path("results"))
    (one,) = on_original_data.test()
    assert (result.cell, result.seed, result.source) == ("original/resnet110", 3, "A. Author")
    assert result.error == round(one.error, 3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (("table2", "preact/resnet110", *ENTRY), "The cell is for preact_resnet110 on the original cifar10, tested on"),
        (("table5", "original_resnet152/top1", *ENTRY), "for original_resnet152 on the original imagenet, tested on 3"),
        (("table2", "original/resnet110", "--seed", "3"), "--record needs --seed and --source"),
        (("table2", "original", *ENTRY), "'original' is not the id of a cell"),
        (("table2", "original/resnet110", "--seed", "-1", "--source", "x"), "--seed must be at least 0"),
    ],
)
def test_error_of_another_experiment_is_not_recorded(
    run: Run, record: tuple[str, ...], message: str, on_original_data: Candidate
) -> None:
    before_the_test = replace(on_original_data, test=lambda: pytest.fail("tested"))
    with pytest.raises(PaperbenchError, match=re.escape(message)):
        enter(before_the_test, *record)
    assert not Path("results").exists()


def test_error_on_other_data_is_not_recorded(theirs: Theirs, tested: Run, data: Path) -> None:
    options = ("--data", data, "--device", "cpu", "--record", "table2", "original/resnet110", *ENTRY)
    code, out, err = tested(theirs[1], *options)
    assert (code, out) == (2, "")
    assert "Nothing can be recorded for table2 original/resnet110" in " ".join(err.split())


def test_cells_error_is_recorded_if_crop_and_data_are_the_cells(on_photos: Run) -> None:
    candidate = prepare(SQUEEZENET[0], weights=Path("net.pth"), dataset="photos", device="cpu")
    candidate = replace(candidate, dataset=replace(candidate.dataset, key="imagenet", canonical=True))
    (one,) = candidate.test()
    for cell, data in (("original_resnet152/top1", "imagenet"), ("original_resnet152_224/top5", "cifar10")):
        other = replace(candidate, dataset=replace(candidate.dataset, key=data))
        with pytest.raises(PaperbenchError, match="Nothing can be recorded"):
            enter(other, "table5", cell, *ENTRY)
    assert enter(candidate, "table5", "original_resnet152_224/top5", *ENTRY) == 0
    ((result,), _) = read_externals(Path("results"))
    assert result.error == pytest.approx(one.top5_error, abs=1e-3) != pytest.approx(one.error, abs=1e-3)


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


def test_progress_is_shown_on_a_terminal(on_photos: Run) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with redirect_stderr(Terminal()) as shown:
        on_photos(*SMALL)
    assert "\rtesting: 12 of 12 images, about " in shown.getvalue()


def test_weights_that_are_not_numbers_have_no_error(on_photos: Run) -> None:
    torch.save({name: tensor * torch.nan for name, tensor in torch.load("net.pth").items()}, "net.pth")
    code, out, err = on_photos()
    assert (code, "tested" in out) == (2, False)
    assert "outputs that are not finite numbers" in " ".join(err.split())


@timm.models.register_model
def net_for_five_images(num_classes: int, **_: Any) -> nn.Module:
    """A net of timm that needs more memory for six."""

    class Net(nn.Linear):
        pretrained_cfg: ClassVar[dict[str, Any]] = {"input_size": (3, 16, 16)}

        def forward(self, images: Tensor) -> Tensor:
            if len(images) > 5:
                raise torch.OutOfMemoryError
            return super().forward(images.mean((2, 3)))

    model = Net(3, num_classes)
    model.num_classes = num_classes
    return model


def test_less_memory_gives_a_result(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 6).state_dict(), tmp_path / "net.pth")
    options = {"weights": tmp_path / "net.pth", "dataset": "photos", "device": "cpu"}
    (result,) = paperbench.evaluate("timm:net_for_five_images", **options)
    assert result.loss > 0


def test_pretrained_weights_without_a_network(tested: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    code, _, err = tested("torchvision:squeezenet1_1", "--pretrained", *ON_PHOTOS)
    assert code == 2
    assert "Connection refused>. If the network is the reason, download the weights" in " ".join(err.split())


def test_downloaded_weights_for_other_classes_are_refused(
    tested: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = Path(torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url).name
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(torchvision.models.squeezenet1_1().state_dict(), tmp_path / "hub" / "checkpoints" / file)
    code, _, err = tested("torchvision:squeezenet1_1", "--pretrained", *ON_PHOTOS)
    assert code == 2
    assert "torchvision:squeezenet1_1 has 1,000 classes, and the data set 6." in " ".join(err.split())


def test_images_of_a_size_that_the_net_refuses(tested: Run) -> None:
    torch.save(timm.create_model("vit_tiny_patch16_224", num_classes=10).state_dict(), "net.pth")
    code, _, err = tested("timm:vit_tiny_patch16_224", "--weights", "net.pth", "--dataset", "digits", "--device", "cpu")
    assert code == 2
    assert "cannot be tested on images of this size" in " ".join(err.split())


def test_preset_is_that_of_the_named_weights(tmp_path: Path) -> None:
    torch.save(torchvision.models.mobilenet_v3_large().state_dict(), tmp_path / "net.pth")
    for name, scale in (("mobilenet_v3_large", 232), ("mobilenet_v3_large.IMAGENET1K_V1", 256)):
        _, how, _ = library_net(f"torchvision:{name}", tmp_path / "net.pth", 1000, None)
        assert how.evaluation == Evaluation(224, scale)
