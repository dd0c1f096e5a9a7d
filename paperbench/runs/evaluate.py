"""Test any net: of a run, of a weights file, of timm or of torchvision."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from paperbench.catalogue import DATASETS, Net, resolve
from paperbench.data.dataset import ImageDataset
from paperbench.data.imagenet.batches import read_and_decode, require_images
from paperbench.data.imagenet.crops import central_view, render
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.stream import processors
from paperbench.data.loader import Batch
from paperbench.data.sources import data_directory, load_dataset
from paperbench.errors import PaperbenchError, count, listing, nearest, summarize_error
from paperbench.models import ResidualNet
from paperbench.models.weights_file import check_weights, net_of
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import DataFacts
from paperbench.runs.rerun import evaluate_saved_net, testing_precision
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.experiment import NetReference
from paperbench.specs.mapping import StateMapping, load_mapping
from paperbench.specs.recipe import Evaluation
from paperbench.training.device import choose_device
from paperbench.training.evaluation import EvaluationMetrics, as_memory_allows, evaluate
from paperbench.training.foreign import (
    Normalisation,
    Prepare,
    State,
    check_classes,
    load_state,
    mapped,
    read_state,
    timm_net,
    torchvision_net,
)
from paperbench.training.memory import is_out_of_memory
from paperbench.training.precision import autocast, choose_precision, keep_stream_in_fp32, set_arithmetic

Images = ImageDataset | PhotoDataset

_LIBRARIES = ("timm", "torchvision")
_USUAL = Evaluation(224, 256)
"""The crop for nets of ours if no record says another."""
_AHEAD = 2
"""Batches that are made while the net has another."""


@dataclass(frozen=True)
class Candidate:
    """A net that is ready to be tested.

    Attributes:
        name: The net.
        weights: Where its weights are from.
        inputs: How its input is made from an image.
        net: None if it is none of ours.
        evaluations: The central crops on which it is tested; None is for whole images and other crops.
        test: Tests it: one result per evaluation. Raises a DataError if an image cannot be read.
    """

    name: str
    weights: str
    inputs: str
    net: Net | None
    dataset: Images
    device: torch.device
    precision: str
    evaluations: Sequence[Evaluation | None]
    test: Callable[[], list[EvaluationMetrics]]

    @property
    def data(self) -> DataFacts:
        """The data set, as records have it."""
        of = self.dataset
        return DataFacts(of.name, of.origin, of.canonical, of.fingerprint, of.unverified)

    def describe(self) -> dict[str, str]:
        """Return what is tested, as lines of text by their headings."""
        status = "the original files" if self.data.canonical else "not compared with the original files"
        if not self.data.is_comparable:
            status = "not the data of the paper"
        lines = {"net": self.name, "weights": self.weights, "input": self.inputs}
        lines["data"] = f"{self.dataset.name}: {count(self.dataset.num_test, 'test image')}; {status}"
        if self.net is None and isinstance(self.dataset, PhotoDataset):
            lines["classes"] = "assumed in the order of the data set: its folders, sorted by name"
        return lines

    def is_chance(self, result: EvaluationMetrics) -> bool:
        """Whether a net that guesses the class would hardly be worse."""
        return result.error > 100 - 200 / DATASETS[self.dataset.key].num_classes


@dataclass(frozen=True)
class _Conditions:
    """How to test. Attributes are those of `prepare`, with the device and data directory chosen."""

    dataset: str | None
    data: Path
    device: torch.device
    precision: str | None
    crop: Evaluation | None

    def load(self, key: str) -> Images:
        """Return the images.

        Raises:
            PaperbenchError: They are missing, or a crop of small images was asked for.
        """
        images = load_dataset(key, self.data)
        if isinstance(images, PhotoDataset):
            require_images(images.test)
        elif self.crop:
            raise PaperbenchError(f"The images of {images.name} are tested whole. Omit --crop and --scale.")
        return images

    def candidate(
        self,
        name: str,
        state: State | str,
        inputs: str,
        model: nn.Module,
        images: Images,
        prepare: Prepare,
        evaluation: Evaluation | None,
        trained_in: str | None = None,
    ) -> Candidate:
        """Return a net that is tested in one way, which `prepare` makes and `evaluation` describes."""
        net = model.net if isinstance(model, ResidualNet) else None
        precision = choose_precision(self.precision or trained_in, self.device)
        if precision == "bf16-fp32-stream":
            if not isinstance(model, ResidualNet):
                raise PaperbenchError("Precision bf16-fp32-stream is for nets of paperbench. Use bf16.")
            keep_stream_in_fp32(model)
        test = partial(_test, model, name, images, prepare, precision, self.device)
        return Candidate(name, str(state), inputs, net, images, self.device, precision, (evaluation,), test)


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
        net: A run (its id, or its directory); a weights file that paperbench wrote; a net of ours; "timm:NAME" or
            "torchvision:NAME".
        weights: A file with the weights of a named net.
        pretrained: Whether timm or torchvision downloads the weights.
        mapping: What turns weights of another implementation into those of a net of ours; see `load_mapping`.
        dataset: A key of `DATASETS`; by default that of the run or the net, or ImageNet.
        data: Data directory; by default $PAPERBENCH_DATA, else ./data.
        precision: By default as the net was trained, and for other nets as in `choose_precision`.
        crop: How photographs are tested, in place of the run's evaluations or the library's preprocessing.
        results: The results directory in which a run is looked up.
        warn: Called with a sentence for each GPU that cannot be used.

    Raises:
        PaperbenchError: The net is unknown, or its weights or the images are missing or do not fit.
    """
    if dataset is not None and dataset not in DATASETS:
        raise PaperbenchError(f"Unknown data set {dataset!r}. {nearest(dataset, DATASETS)}")
    is_foreign = net.partition(":")[0] in _LIBRARIES
    if is_foreign and pretrained == (weights is not None):
        raise PaperbenchError(f"{net} needs weights: name a file with --weights, or download them with --pretrained.")
    if pretrained and not is_foreign:
        raise PaperbenchError("--pretrained is for nets of timm and torchvision. Name a file with --weights.")
    if mapping and (is_foreign or not weights):
        raise PaperbenchError("--mapping is for a net of paperbench with a file of weights (--weights).")
    conditions = _Conditions(dataset, data_directory(data), choose_device(device, warn), precision, crop)
    if not is_foreign and (directory := _find_run(net, results)):
        if weights:
            raise PaperbenchError(f"{net} is a run, which has weights. Omit --weights.")
        return _of_run(directory, conditions)
    state = read_state(weights) if weights else None
    if is_foreign:
        return _of_library(net, state, conditions)
    if state is None and Path(net).is_file():
        return _of_file(read_state(Path(net)), None, conditions)
    declared = load_mapping(mapping) if mapping else None
    named = _named(net, declared.arguments if declared else {})
    if state is None:
        raise PaperbenchError(f"{net} needs weights: name a file with --weights.")
    return _of_mapping(net, named, state, declared, conditions) if declared else _of_file(state, named, conditions)


def _find_run(net: str, results: Path) -> RunDirectory | None:
    """Return the directory of a run, by its path or its id."""
    directories = RunDirectory(Path(net).absolute()), Store(results).directory(net)
    return next((one for one in directories if one.record_file.exists()), None)


def _of_run(directory: RunDirectory, conditions: _Conditions) -> Candidate:
    """Return the net of a run, which is tested as after training."""
    record = directory.read_record()
    if record is None or record.result is None:
        raise PaperbenchError(f"{directory.path} holds no finished run. Finish it, or name another.")
    net, recipe = net_and_recipe(record.spec, record.evaluations)
    kind = net.num_classes, recipe.photographs is not None
    keys = [key for key, one in DATASETS.items() if (one.num_classes, one.are_photographs) == kind]
    device, file, images = conditions.device, directory.weights_file, None
    for key in [conditions.dataset] if conditions.dataset else keys:
        with suppress(PaperbenchError):  # another may be at hand
            found = load_dataset(key, conditions.data)
            images = found if found.fingerprint == record.spec.data else images
    if images is None:
        raise PaperbenchError(
            f"{record.run} was trained on {record.data.name}, which is not in {conditions.data}. Name its place with "
            f"--data. To test the net on other images, name {file} instead of the run."
        )
    if conditions.crop:
        conditions.load(images.key)
    evaluations = (conditions.crop,) if conditions.crop else record.evaluations
    precision = choose_precision(conditions.precision or testing_precision(record.spec.precision, device), device)
    test = partial(evaluate_saved_net, record, file, images, device, precision, evaluations)
    name, how = f"{record.net}, run {record.run}", "as in the run's own tests"
    return Candidate(name, file.name, how, net, images, device, precision, evaluations or (None,), test)


def _of_library(net: str, state: State | None, conditions: _Conditions) -> Candidate:
    """Return a net of timm or torchvision, with the weights of a file or downloaded ones."""
    library, _, name = net.partition(":")
    images = conditions.load(conditions.dataset or "imagenet")
    classes = DATASETS[images.key].num_classes
    foreign = (timm_net if library == "timm" else torchvision_net)(name, classes, state, conditions.crop)
    if state:
        load_state(foreign.model, state, classes)
    inputs, prepare, evaluation = f"{foreign.values}; {foreign.preset}", foreign.prepare, foreign.evaluation
    if isinstance(images, ImageDataset):
        inputs, prepare, evaluation = f"whole images; {inputs}", foreign.values, None
    origin = state or f"downloaded by {library}"
    return conditions.candidate(net, origin, inputs, foreign.model, images, prepare, evaluation)


def _of_file(state: State, named: Net | None, conditions: _Conditions) -> Candidate:
    """Return the net of a file that paperbench wrote, whose metadata say what the net is and expects."""
    metadata = state.metadata
    if not {"architecture", "mean", "std"} <= metadata.keys():
        raise PaperbenchError(
            f"{state.file} does not say which net it holds and which input that expects, as files of paperbench do. "
            "Name the net, the file with --weights, and a mapping that says it with --mapping."
        )
    if named:
        check_weights(state.file, named)
    net, arguments = net_of(metadata, state.file)
    if not (key := conditions.dataset or metadata.get("tag")):
        raise PaperbenchError(f"{state.file} was trained on {metadata.get('data')!r}. Name a data set with --dataset.")
    try:
        values = Normalisation.from_lists(*(json.loads(metadata[part]) for part in ("mean", "std")))
    except (ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise PaperbenchError(f"{state.file} has a mean or std that is none ({error}). Name another file.") from error
    name, trained_in = str(NetReference(metadata["architecture"], arguments)), metadata.get("precision", "fp32")
    return _of_ours(name, net, state, values, key, testing_precision(trained_in, conditions.device), conditions)


def _of_mapping(name: str, net: Net, state: State, mapping: StateMapping, conditions: _Conditions) -> Candidate:
    """Return a net of ours with the weights of another implementation."""
    key = conditions.dataset or name.partition(".")[2] or next(iter(mapping.inputs), "")
    if key not in mapping.inputs:
        known = listing([*mapping.inputs])
        raise PaperbenchError(f"Mapping {mapping.mapping} has no input for {key!r}. Choose with --dataset: {known}.")
    values = Normalisation.from_lists(mapping.inputs[key].mean, mapping.inputs[key].std)
    described = f"{NetReference(name, mapping.arguments)}, by mapping {mapping.mapping}"
    return _of_ours(described, net, mapped(state, mapping, net), values, key, None, conditions)


def _of_ours(
    name: str,
    net: Net,
    state: State,
    values: Normalisation,
    key: str,
    trained_in: str | None,
    conditions: _Conditions,
) -> Candidate:
    """Return a net of ours with weights that fit it, and as many classes as the data set."""
    images, evaluation = conditions.load(key), None
    model = ResidualNet(replace(net, num_classes=DATASETS[key].num_classes))
    load_state(model, state, model.num_classes)
    inputs = f"whole images; {values}"
    prepare: Prepare = values
    if isinstance(images, PhotoDataset):
        evaluation = conditions.crop or _USUAL
        prepare, inputs = partial(_cropped, evaluation, values), f"bilinear; {values}"
        if trained_in and bool((values.std == 1).all()):
            inputs += " (in place of the mean image that the run subtracted)"
    return conditions.candidate(name, state, inputs, model, images, prepare, evaluation, trained_in)


def _named(name: str, arguments: Mapping[str, Any]) -> Net:
    try:
        return resolve(name, **arguments)
    except PaperbenchError as error:
        raise PaperbenchError(
            f"{error} Or name a run, a weights file of paperbench, timm:NAME or torchvision:NAME."
        ) from error


def _cropped(evaluation: Evaluation, values: Normalisation, image: Image.Image) -> Tensor:
    """Return the input of a net of ours: a central crop."""
    view = central_view("bilinear", evaluation.crop, evaluation.scale, *image.size)
    return values(Image.fromarray(render(image, view, evaluation.crop, "bilinear")))


def _test(
    model: nn.Module, name: str, images: Images, prepare: Prepare, precision: str, device: torch.device
) -> list[EvaluationMetrics]:
    """Test a net on every test image once.

    Raises:
        DataError: An image cannot be read.
        PaperbenchError: The net refuses images of this size, has not as many classes as the data set, or gives NaN.
    """
    set_arithmetic(precision)
    model.to(device).eval()
    try:
        with torch.no_grad(), autocast(precision, device):
            outputs = model(next(_batches(images, prepare, 1, device)).images)
    except PaperbenchError:
        raise
    except Exception as error:  # of a net of another library
        if is_out_of_memory(error):
            raise
        raise PaperbenchError(
            f"{name} cannot be tested on images of this size ({summarize_error(error)}). Choose another data set, or "
            "--crop and --scale."
        ) from error
    check_classes(name, outputs.shape[-1], DATASETS[images.key].num_classes)
    at_once = 100 if isinstance(images, ImageDataset) else 20
    if device.type == "cuda":
        at_once *= 12

    def test_with(batch_size: int) -> EvaluationMetrics:
        return evaluate(model, _batches(images, prepare, batch_size, device), precision, device)

    result = as_memory_allows(test_with, at_once, device)
    if not math.isfinite(result.loss):  # NaN is no larger than any other output, so it may even count as correct
        raise PaperbenchError(
            f"{name} gives outputs that are not finite numbers. Its weights are damaged, or need another --precision."
        )
    return [result]


def _batches(images: Images, prepare: Prepare, batch_size: int, device: torch.device) -> Iterator[Batch]:
    """Yield the test set in order; threads prepare the images, some batches ahead."""
    labels = torch.from_numpy(images.test.labels if isinstance(images, PhotoDataset) else images.y_test)

    def load(number: int) -> Tensor:
        if isinstance(images, PhotoDataset):
            return prepare(read_and_decode(images.test, number))
        return prepare(Image.fromarray(images.x_test[number]))

    with ThreadPoolExecutor(processors()) as pool:
        waiting: deque[tuple[Iterator[Tensor], Tensor]] = deque()
        for part in torch.arange(len(labels)).split(batch_size):
            waiting.append((pool.map(load, part.tolist()), labels[part]))
            if len(waiting) > _AHEAD:
                yield _stacked(*waiting.popleft(), device)
        while waiting:
            yield _stacked(*waiting.popleft(), device)


def _stacked(images: Iterator[Tensor], labels: Tensor, device: torch.device) -> Batch:
    return Batch(torch.stack([*images]).to(device), labels.to(device))
