"""Test any net: of a run, of a weights file, of timm or of torchvision."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from paperbench.catalogue import DATASETS, AnyNet, resolve
from paperbench.data.dataset import ImageDataset, Pixels
from paperbench.data.imagenet.batches import CentralCrops
from paperbench.data.imagenet.draws import Words
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.stream import CropStream
from paperbench.data.loader import Batch
from paperbench.data.sources import data_directory, load_dataset
from paperbench.errors import PaperbenchError, listing, nearest, summarize_error
from paperbench.models import ResidualNet
from paperbench.processors import processors
from paperbench.runs.named import Images, find_finished_run, images_of, read_net, resolve_net
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.rerun import evaluate_saved_net, testing_precision
from paperbench.runs.store import Store
from paperbench.runs.weights import input_of
from paperbench.specs.recipe import Evaluation, Photographs
from paperbench.streams import watched
from paperbench.training.device import choose_device
from paperbench.training.evaluation import EvaluationMetrics, as_memory_allows, evaluate
from paperbench.training.foreign import IMPLEMENTATIONS, Preprocessing, library_net, load_state, read_state
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import choose_precision, set_arithmetic

_HINT = (
    " Name a run, a weights file, timm:NAME or torchvision:NAME. Nets of paperbench (`paperbench models`) need "
    "--weights and --mapping."
)


@dataclass(frozen=True)
class Candidate:
    """A net that is ready to be tested.

    Attributes:
        name: The net, and where its weights are from.
        inputs: How its input is made from an image.
        net: None if it is none of ours.
        evaluations: The central crops on which it is tested; None is for whole images and other crops.
        test: Tests it: one result per evaluation. Raises a DataError if an image cannot be read.
    """

    name: str
    inputs: str
    net: AnyNet | None
    dataset: Images
    device: torch.device
    precision: str
    evaluations: Sequence[Evaluation | None]
    test: Callable[[], list[EvaluationMetrics]]


def prepare(
    net: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    mapping: str | None = None,
    dataset: str | None = None,
    data: Path | None = None,
    device: str = "auto",
    precision: str | None = None,
    crop: Evaluation | None = None,
    results: Path = Path("results"),
    warn: Callable[[str], None] = lambda _: None,
) -> Candidate:
    """Load a net and the images to test it on.

    Args:
        net: A run (its id, or its directory); a weights file that paperbench wrote; the name of a net of ours, with
            `weights` and `mapping`; or "timm:NAME" or "torchvision:NAME", with `weights` or `pretrained`.
        weights: A file with the weights of a named net.
        pretrained: Whether timm or torchvision downloads the weights.
        mapping: The implementation that the weights are from, if not ours: one of `foreign.IMPLEMENTATIONS`.
        dataset: A key of `DATASETS`; by default that of the run, the file or the mapping, or ImageNet.
        data: Data directory; by default $PAPERBENCH_DATA, else ./data.
        precision: By default the run's, and for other nets as in `choose_precision`.
        crop: How photographs are tested, in place of the run's evaluations or the library's preprocessing.
        results: The results directory in which a run is looked up.
        warn: Called with a sentence for each GPU that cannot be used.
    """
    is_foreign = net.startswith(("timm:", "torchvision:"))
    if is_foreign and (mapping or pretrained == (weights is not None)):
        raise PaperbenchError(f"{net} needs either a file of weights (--weights) or --pretrained, and no --mapping.")
    if not is_foreign and (pretrained or (weights is None) != (mapping is None)):
        raise PaperbenchError(
            "Nets of paperbench need a file of weights and a mapping (--weights, --mapping). Runs, and files that "
            "paperbench wrote, need neither; --pretrained is for nets of timm and torchvision."
        )
    on, where = choose_device(device, warn), data_directory(data)
    if not (is_foreign or weights or Path(net).is_file()):
        run, record = find_finished_run(net, Store(results), _HINT)
        images = images_of(run, record, where, dataset)
        _check_crop(images, crop)
        own, _ = net_and_recipe(record.spec, record.evaluations)
        evaluations = (crop,) if crop else record.evaluations
        chosen = choose_precision(precision or testing_precision(record.spec.precision, on), on)
        again = partial(evaluate_saved_net, record, run.weights_file, images, on, chosen, evaluations)
        name = f"{record.net}, run {record.run}"
        return Candidate(name, "as in the run's own tests", own, images, on, chosen, evaluations or (None,), again)
    chosen = choose_precision(precision, on)
    if is_foreign:
        images = load_dataset(dataset or "imagenet", where)
        _check_crop(images, crop)
        model, how, source = library_net(net, weights, DATASETS[images.key].num_classes, crop)
        name = f"{net}, {source}"
    else:
        name, images, model, how = _ours(net, weights, mapping, dataset, where, crop)
    evaluation = how.evaluation if isinstance(images, PhotoDataset) else None
    test = partial(_test, model, name, images, how, chosen, on)
    ours = model.net if isinstance(model, ResidualNet) else None
    return Candidate(name, how.text, ours, images, on, chosen, (evaluation,), test)


def _check_crop(images: Images, crop: Evaluation | None, *, has_crop: bool = True) -> None:
    """Refuse a crop of small images; and photographs without one, unless `has_crop` says that they are cropped."""
    if bool(crop) if isinstance(images, ImageDataset) else not (crop or has_crop):
        needed = "whole. Omit" if crop else "on a crop. Add"
        raise PaperbenchError(f"The images of {images.name} are tested {needed} --crop and --scale.")


def _ours(
    net: str, weights: Path | None, mapping: str | None, dataset: str | None, where: Path, crop: Evaluation | None
) -> tuple[str, Images, ResidualNet, Preprocessing]:
    """Return a net's name, images, model and preprocessing: of a file of paperbench, or of `net` and a mapped file."""
    if mapping and mapping not in IMPLEMENTATIONS:
        raise PaperbenchError(
            f"Unknown mapping {mapping!r}. {nearest(mapping, IMPLEMENTATIONS)} For another implementation, save a file "
            "that says which net and which input it has: see docs/nets.md."
        )
    file, declared, side = weights or Path(net), IMPLEMENTATIONS[mapping] if mapping else None, crop.crop if crop else 0
    if declared:
        built = resolve(net, **declared.arguments)
        if declared.pads_both_sides and (built.shortcut, built.shortcut_option) != ("identity", "A"):
            raise PaperbenchError(f"Mapping {mapping} is for nets whose shortcuts are padded with zeros.")
        key = dataset or net.partition(".")[2] or next(iter(declared.inputs), "")
        if key not in declared.inputs:
            known = listing([*declared.inputs])
            raise PaperbenchError(f"Mapping {mapping} has no input for {key!r}. Choose with --dataset: {known}.")
        tensors, _, entry = read_state(file)
        named = replace(resolve_net(net, declared.arguments, where, key), tensors=tensors, entry=entry)
        how = Preprocessing.of_channels(*declared.inputs[key], "", side, None, crop)
    else:
        named = read_net(file, where, dataset)
        mean, std = input_of(named.metadata, file)
        how = Preprocessing(mean, std, "mean and std of its training", side, None, crop)
    _check_crop(named.dataset, crop, has_crop=False)
    model = ResidualNet(named.net)
    load_state(model, named.tensors, file, mapping)
    by = f" by mapping {mapping}" if mapping else ""
    return f"{named.reference}, {file.name}{named.entry}{by}", named.dataset, model, how


def _test(
    model: nn.Module, name: str, images: Images, how: Preprocessing, precision: str, device: torch.device
) -> list[EvaluationMetrics]:
    """Test a net on every test image once."""
    set_arithmetic(precision)
    model.to(device)

    def test_with(batch_size: int) -> EvaluationMetrics:
        return evaluate(model, _batches(images, how, batch_size, device), precision, device)

    try:
        result = as_memory_allows(test_with, 20 if device.type == "cpu" else 250, device)
    except Exception as error:  # of a net of another library
        if is_out_of_memory(error) or isinstance(error, PaperbenchError):
            raise
        raise PaperbenchError(
            f"{name} cannot be tested on images of this size ({summarize_error(error)}). Choose another data set, or "
            "--crop and --scale."
        ) from error
    if not math.isfinite(result.loss):  # NaN is no larger than any other output, so it may even count as correct
        raise PaperbenchError(
            f"{name} gives outputs that are not finite numbers. Its weights are damaged, or need another --precision."
        )
    return [result]


class _Crops(CentralCrops):
    """The test images as a net wants them."""

    def __init__(self, dataset: PhotoDataset, how: Preprocessing, batch_size: int) -> None:
        settings = Photographs("pillow", "bilinear", how.side, shorter_side=(how.side, how.side))
        evaluation = how.evaluation or Evaluation(how.side, how.side)
        super().__init__(dataset.test, settings, evaluation, batch_size=batch_size)
        self._crop = how.crop

    def cropped(self, image: Image.Image, words: Words) -> Pixels:
        return self._crop(image) if self._crop else super().cropped(image, words)


def _batches(images: Images, how: Preprocessing, batch_size: int, device: torch.device) -> Iterator[Batch]:
    """Yield the test set in order."""
    mean, std = how.mean.to(device), how.std.to(device)

    def batch(pixels: Tensor, labels: Tensor) -> Batch:
        values = pixels.to(device).permute(0, 3, 1, 2).contiguous() / 255
        return Batch((values - mean) / std, labels.to(device))

    if isinstance(images, ImageDataset):
        parts = (torch.from_numpy(array).split(batch_size) for array in (images.x_test, images.y_test))
        yield from map(batch, *parts)
    else:
        with CropStream(_Crops(images, how, batch_size), threads=processors()) as stream:
            shown = watched(
                stream, sys.stderr, "testing", "images", lambda crops: len(crops.labels), total=images.num_test
            )
            for crops in shown:
                yield batch(crops.pixels, crops.labels)
