"""Exported runs compute in timm what the run's net does; exported curves hold each history line once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

import paperbench
from paperbench.data.digits import load_digits
from paperbench.data.imagenet.batches import CentralCrops, read_and_decode
from paperbench.data.imagenet.draws import NO_WORDS
from paperbench.data.photos import load_photos
from paperbench.errors import PaperbenchError
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import ChannelValues, Drops, Monitoring, Recipe
from paperbench.tensor_file import read_tensor_file
from paperbench.training.trainer import Trainer
from tests.cli.conftest import Run
from tests.helpers import a_record, write_record
from tests.runs.running import CPU, photographs_recipe, plan_run, tiny_recipe, train

timm_data: Any = timm.data
net_of = partial(timm.create_model, "local-dir:net", pretrained=True)


def runs_own(run: PlannedRun, directory: RunDirectory) -> Trainer:
    """Return a trainer with the net that the run has saved, and the feed of its tests."""
    trainer = Trainer(run.net, run.recipe, run.dataset, run.seed, "fp32", CPU)
    weights, _ = read_tensor_file(directory.weights_file.read_bytes())
    trainer.model.load_state_dict(weights)
    trainer.model.eval()
    return trainer


def through_timm(images: Sequence[Image.Image], model: Any) -> Tensor:
    transform = timm_data.create_transform(**timm_data.resolve_data_config({}, model=model), is_training=False)
    return torch.stack([transform(image) for image in images]).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["per_pixel_mean", "channel_mean_std"])
def test_timm_computes_the_logits_of_the_run(paper_recipe: Recipe, tmp_path: Path, run: Run, kind: Any) -> None:
    digits = load_digits()
    planned = plan_run(tiny_recipe(paper_recipe, input=kind), digits)
    directory, log = train(planned, tmp_path)
    assert run("export", directory.path, "--out", "net")[0] == 0
    model, own, wrong = net_of().eval(), runs_own(planned, directory), 0
    images = [Image.fromarray(pixels) for pixels in digits.x_test]
    for number, batch in enumerate(own.feed.test(None, 100)):
        logits = model(through_timm(images[100 * number : 100 * number + 100], model))
        expected = own.model(batch.images)
        torch.testing.assert_close(logits, expected, rtol=0, atol=0 if kind == "per_pixel_mean" else 1e-5)
        wrong += int((logits.argmax(1) != batch.labels).sum())
    result = log.record.result
    assert result
    assert 100 * wrong / len(images) == result.test_error
    (again,) = paperbench.evaluate("net/model.safetensors", device="cpu")
    assert (again.error, again.loss) == (result.test_error, pytest.approx(result.test_loss, rel=1e-6))


def test_features_and_scripts_subtract_the_mean_image(paper_recipe: Recipe, tmp_path: Path, run: Run) -> None:
    planned = plan_run(tiny_recipe(paper_recipe), load_digits())
    directory, _ = train(planned, tmp_path)
    run("export", directory.path, "--out", "net")
    own, x = runs_own(planned, directory), torch.rand(2, 3, 32, 32)
    subtracted = x - own.feed.mean
    expected = own.model.forward_intermediates(subtracted)[1]
    torch.testing.assert_close(net_of(features_only=True).eval()(x), expected)
    torch.testing.assert_close(net_of().eval().forward_features(x), own.model.forward_features(subtracted))
    torch.testing.assert_close(torch.jit.script(net_of().eval())(x), own.model(subtracted))
    with pytest.raises(PaperbenchError, match="an image of 1 channels"):
        net_of(in_chans=1)
    config = Path("net/config.json")
    config.write_text(config.read_text().replace("preact_resnet20", "original_resnet20"))
    with pytest.raises(PaperbenchError, match="holds a different net"):
        net_of()


@pytest.mark.full
@pytest.mark.parametrize("values", ["per_pixel_mean", ChannelValues((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))])
def test_photographs_reach_the_net_as_in_the_runs_test(tmp_path: Path, run: Run, values: Any) -> None:
    monitoring = Monitoring(log_every=1, test_every=2, checkpoint_every=2, checkpoint_share=1.0)
    recipe = photographs_recipe(iterations=2, drops=Drops((1,), 0.1), monitoring=monitoring)
    assert recipe.photographs
    if isinstance(values, ChannelValues):
        recipe = replace(
            recipe, input=values, silent=(), photographs=replace(recipe.photographs, mean_image_scale=None)
        )
    photos, first = load_photos(), recipe.evaluations["small"]
    planned = plan_run(recipe, photos, "preact_resnet18", depth=18)
    directory, log = train(planned, tmp_path)
    result = log.record.result
    assert result
    assert run("export", directory.path, "--out", "net")[0] == 0
    model, own = net_of().eval().to(memory_format=torch.channels_last), runs_own(planned, directory)
    images = [read_and_decode(photos.test, number) for number in range(12)]
    assert recipe.photographs
    crops = CentralCrops(photos.test, recipe.photographs, first, batch_size=12)
    pixels = torch.stack([torch.tensor(crops.cropped(image, NO_WORDS)) for image in images]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(model.pretrained_cfg[one]).view(3, 1, 1) for one in ("mean", "std"))
    squares = [image.crop((0, 0, 85, 85)) for image in images]  # timm rounds the longer side down
    found = through_timm(squares, model) * std + mean
    expected = torch.stack([torch.tensor(crops.cropped(image, NO_WORDS)) for image in squares]).permute(0, 3, 1, 2)
    assert (255 * found - expected).abs().max() < 2.01  # see `crops.render`
    (batch,) = own.feed.test(first, 12)
    x = ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)
    assert torch.equal(model(x), own.model(batch.images))
    (again,) = paperbench.evaluate("net/model.safetensors", device="cpu", crop=first)
    assert (again.error, again.loss) == (result.test_error, pytest.approx(result.test_loss, rel=1e-6))


def test_what_is_no_export_is_refused_in_one_line(trained: Path, run: Run) -> None:
    (directory,) = Store(trained).directories()
    record = directory.read_record()
    assert record
    function = {"function": "nets.py:net", "code": "0" * 64, "arguments": {}, "num_classes": 10, "size": 32}
    spec = replace(record.spec, net=function)
    paused = write_record(Store(trained), a_record(status="partial"))
    own = write_record(Store(trained), replace(record, spec=spec, run=spec.run_id(record.seed)))

    def refusal(name: Path, out: str = "net") -> str:
        code, printed, err = run("export", name, "--out", out)
        assert (code, printed, err.count("\n")) == (2, "", 1)
        return err

    assert "holds no finished run" in refusal(paused.path)
    assert "a function of your own" in refusal(own.path)
    Path("mine").mkdir()
    Path("mine/README.md").write_text("Mine.")
    assert "holds other files" in refusal(directory.path, "mine")
    assert Path("mine/README.md").read_text() == "Mine."
    weights = directory.weights_file.read_bytes()
    directory.weights_file.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "their sha256 differ" in refusal(directory.path)
    directory.weights_file.unlink()
    assert "No such file" in refusal(directory.path)
    assert not Path("net").exists()


def test_export_can_be_repeated_but_not_beside_other_files(trained: Path, run: Run) -> None:
    (directory,) = Store(trained).directories()
    export = ("export", directory.path.name, "--results", trained, "--out", "net")
    assert [run(*export)[0], run(*export)[0]] == [0, 0]
    Path("net/notes.txt").touch()
    assert run(*export)[0] == 2


def test_curves_hold_each_line_once_and_grow(trained: Path, run: Run) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (directory,) = Store(trained).directories()
    lines, record = directory.history(), directory.read_record()
    assert record
    assert record.result
    directory.write_record(
        replace(record, status="partial", result=None, files=replace(record.files, weights_sha256=None))
    )
    shutil.copytree(directory.path, trained / "runs" / "begun").joinpath("record.json").unlink()

    def exported(shown: Sequence[HistoryLine]) -> bytes:
        directory.history_file.write_bytes(history_bytes(shown))
        code, _, err = run("export", "--curves", "tensorboard", "--results", trained, "--out", "curves")
        assert (code, err.count("\n"), "begun has no record yet" in err) == (0, 1, True)
        (file,) = Path("curves").glob("*/*")
        read = EventAccumulator(str(file)).Reload()
        for tag, name in (("train/loss", "train_loss"), ("test/error", "test_error"), ("lr", "lr")):
            found = [(one.step, one.value, one.wall_time) for one in read.Scalars(tag)]
            there = [line for line in shown if getattr(line, name) is not None]
            assert found == [(line.iteration, pytest.approx(getattr(line, name)), line.seconds) for line in there]
        return file.read_bytes()

    early = exported(lines[:3])
    late = exported(lines)
    assert late.startswith(early)
    assert exported(lines[:3]) == early  # it went back to a checkpoint
    directory.write_record(record)
    final = exported(lines)
    assert final.startswith(late)
    assert final != late


def test_curves_without_tensorboard_say_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paperbench.report.tensorboard", None)
    code, _, err = run("export", "--curves", "tensorboard", "--out", "curves")
    assert (code, err.count("\n")) == (2, 1)
    assert "`pip install tensorboard`" in err
