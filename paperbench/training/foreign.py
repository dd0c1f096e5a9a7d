"""Nets of timm and torchvision with their own preprocessing, and state dicts of other implementations."""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import to_tensor

from paperbench.architecture import units
from paperbench.catalogue import NETS, Net
from paperbench.errors import PaperbenchError, nearest, summarize_error
from paperbench.files import MAX_TENSOR_FILE_BYTES, format_read_error, read_at_most
from paperbench.specs.mapping import StateMapping
from paperbench.specs.recipe import Evaluation
from paperbench.tensor_file import check_fit, read_tensor_file
from paperbench.training.memory import is_out_of_memory

Prepare = Callable[[Image.Image], Tensor]
"""Makes a net's input, (3, H, W) float32, from an image."""


@dataclass(frozen=True)
class Normalisation:
    """Makes the input (pixels - mean) / std of a net from a whole image, for pixels in [0, 1].

    Attributes:
        mean, std: (3, 1, 1), or (3, H, W).
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def from_lists(cls, mean: Any, std: Any) -> Normalisation:
        """Return the normalisation with numbers by channel, or nested lists.

        Raises:
            ValueError, TypeError: They are none.
        """
        values = [torch.tensor(numbers, dtype=torch.float32) for numbers in (mean, std)]
        values = [value[:, None, None] if value.dim() == 1 else value for value in values]
        if any(value.dim() != 3 or len(value) != 3 for value in values):
            raise ValueError("not one number or image for each of three channels")
        return cls(*values)

    def __call__(self, image: Image.Image) -> Tensor:
        pixels: Tensor = to_tensor(image)
        return (pixels - self.mean) / self.std

    def __str__(self) -> str:
        if self.mean.shape[1:] != (1, 1):
            return "minus the mean image of the training set"
        numbers = (", ".join(f"{value:.4g}" for value in values.flatten()) for values in (self.mean, self.std))
        return "mean {}, std {}".format(*numbers)


_NESTING = ("state_dict", "model_state_dict", "model", "net")
"""Keys under which training scripts save a state dict beside other values."""
_PREFIX = "module."
"""What DataParallel puts before every name."""


@dataclass(frozen=True)
class State:
    """The tensors of a weights file.

    Attributes:
        metadata: Those of a safetensors file.
        sha256: Of the file.
    """

    file: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    sha256: str

    def __str__(self) -> str:
        return f"{self.file.name} (sha256 {self.sha256[:16]}...)"


def read_state(file: Path) -> State:
    """Read a safetensors file, or what `torch.save` wrote, without running the code in it.

    Raises:
        PaperbenchError: The file cannot be read, or holds no state dict.
    """
    metadata: dict[str, str] = {}
    loaded: Any
    try:
        data = read_at_most(file, MAX_TENSOR_FILE_BYTES)
        if data[8:9] == b"{":
            loaded, metadata = read_tensor_file(data)
        else:
            if data[:2] == b"PK":  # torch.save compresses nothing
                with zipfile.ZipFile(io.BytesIO(data)) as parts:
                    if sum(part.file_size for part in parts.infolist()) > MAX_TENSOR_FILE_BYTES:
                        raise ValueError("its parts are too large")
            loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except OSError as error:
        raise PaperbenchError(format_read_error(file, error, "Name a file of weights.")) from error
    except Exception as error:  # what a damaged file raises is not documented
        # torch's own words on a pickle recommend to run what is in it
        why = "not only tensors" if isinstance(error, pickle.UnpicklingError) else summarize_error(error)
        raise PaperbenchError(
            f"{file} cannot be read as weights ({why}). Save only the tensors: `torch.save(model.state_dict(), FILE)`."
        ) from error
    for key in _NESTING:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not (isinstance(loaded, Mapping) and loaded and all(map(_is_dense, loaded.values()))):
        raise PaperbenchError(f"{file} holds no state dict: a mapping of names to dense tensors. Name another file.")
    tensors = {str(name): tensor for name, tensor in loaded.items()}
    if all(name.startswith(_PREFIX) for name in tensors):
        tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    return State(file, tensors, metadata, hashlib.sha256(data).hexdigest())


def _is_dense(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


def load_state(model: nn.Module, state: State, classes: int) -> None:
    """Load weights into a net, if all names and shapes are its own.

    Counters of BN, which old files lack, are optional, and numbers of another precision are converted.

    Raises:
        PaperbenchError: They do not fit.
    """
    own = model.state_dict()
    given = {name: tensor for name, tensor in own.items() if name.endswith("num_batches_tracked")}
    for name, tensor in state.tensors.items():
        expected = own.get(name)
        is_number = expected is not None and expected.is_floating_point() and tensor.is_floating_point()
        given[name] = tensor.to(expected.dtype) if expected is not None and is_number else tensor
        if expected is not None and tensor.dim() and expected.shape == (classes, *tensor.shape[1:]):
            check_classes(str(state.file), len(tensor), classes)
    try:
        check_fit(given, own)
    except ValueError as error:
        raise PaperbenchError(
            f"{state.file} does not fit the net: {error}. Name the net that it belongs to or, for another "
            "implementation of one of ours, a mapping (`--mapping`)."
        ) from error
    model.load_state_dict(given)


def check_classes(what: str, found: int, classes: int) -> None:
    """Raise a PaperbenchError if a net has not as many classes as the data set."""
    if found != classes:
        why = " Nets from TensorFlow have a class for the background first, which shifts all labels by one."
        raise PaperbenchError(
            f"{what} has {found:,} classes, and the data set {classes:,}.{why if found == classes + 1 else ''} Choose "
            "other weights, or another data set with --dataset."
        )


def mapped(state: State, mapping: StateMapping, net: Net) -> State:
    """Return the weights with the names and order of channels of our net.

    Raises:
        PaperbenchError: Two tensors get one name, or the net has no option A whose channels could be in another order.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.tensors.items():
        if (ours := mapping.renamed(name)) in tensors:
            raise PaperbenchError(f"Mapping {mapping.mapping} gives two tensors of {state.file} the name {ours!r}.")
        tensors[ours] = tensor
    if mapping.shortcut_padding == "both":
        if (net.shortcut, net.shortcut_option) != ("identity", "A"):
            raise PaperbenchError(f"Mapping {mapping.mapping} is for nets whose shortcuts are padded with zeros.")
        for name, dim, order in _reordered(net):
            for key in [key for key in tensors if key.startswith(name)]:
                if tensors[key].dim() > dim and tensors[key].shape[dim] == len(order):  # others are refused later
                    tensors[key] = tensors[key].index_select(dim, torch.tensor(order))
    return State(state.file, tensors, state.metadata, state.sha256)


def _reordered(net: Net) -> Iterator[tuple[str, int, list[int]]]:
    """Yield the tensors that read or write the shortcuts' signal where half of the zeros come before its channels.

    Yields:
        The beginning of their names, the dimension of the signal's channels, and for each of our channels theirs.
    """
    order: list[int] = []
    for unit in units(net):
        name = f"stages.{unit.stage}.{unit.index}"
        order = order or list(range(unit.in_channels))
        yield f"{name}.preactivation.", 0, order
        yield f"{name}.residual.conv1.", 1, order
        if before := (unit.out_channels - unit.in_channels) // 2:
            kept = [before + channel for channel in order]
            order = kept + sorted(set(range(unit.out_channels)) - set(kept))
        last = len(unit.weight_layers)
        for part in (f"residual.conv{last}.", f"residual.bn{last}.", "after_addition."):
            yield f"{name}.{part}", 0, order
    yield "tail.", 0, order
    yield "fc.weight", 1, order


@dataclass(frozen=True)
class ForeignNet:
    """A net of another library, and its own preprocessing.

    Attributes:
        values: What normalises its input.
        prepare: Its preprocessing of photographs.
        evaluation: The crop that this makes; None if it is no central crop of a resized image.
        preset: Where the preprocessing is from.
    """

    model: nn.Module
    values: Normalisation
    prepare: Prepare
    evaluation: Evaluation | None
    preset: str


def timm_net(name: str, classes: int, state: State | None, crop: Evaluation | None) -> ForeignNet:
    """Return a net of timm.

    Args:
        classes: Of the data set.
        state: The weights that it is going to get; None to download timm's.
        crop: In place of the configuration's.

    Raises:
        PaperbenchError: It is unknown, or its weights cannot be had or are for other classes.
    """
    import timm

    data: Any = timm.data
    known, (architecture, _, tag) = set(timm.list_models()) - NETS.keys(), name.partition(".")
    if architecture not in known:
        raise PaperbenchError(f"timm has no net {architecture!r}. {nearest(architecture, known)}")
    tags = [one.partition(".")[2] for one in timm.list_models(f"{architecture}.*", pretrained=True)]
    if tag and tag not in tags:
        raise PaperbenchError(f"{architecture} of timm has no tag {tag!r}. {nearest(tag, tags)}")
    with _reporting_failures(name):
        kwargs = {"num_classes": classes} if state else {"pretrained": True}
        model: Any = timm.create_model(name, **kwargs)
    chosen: dict[str, Any] = {}
    if crop:  # timm takes the largest whole number up to crop / crop_pct
        chosen = {"input_size": (3, crop.crop, crop.crop), "crop_pct": crop.crop / (crop.scale + 0.5)}
        chosen["crop_mode"] = "center"
    config: dict[str, Any] = data.resolve_data_config(chosen, model=model)
    config_of = model.pretrained_cfg.get("tag") or "its default"
    side, scale = config["input_size"][-1], math.floor(config["input_size"][-1] / config["crop_pct"])
    return ForeignNet(
        model,
        Normalisation.from_lists(config["mean"], config["std"]),
        data.create_transform(**config),
        Evaluation(side, scale) if config["crop_mode"] == "center" else None,
        f"timm's configuration of {config_of} ({config['crop_mode']} crop, {config['interpolation']})",
    )


def torchvision_net(name: str, classes: int, state: State | None, crop: Evaluation | None) -> ForeignNet:
    """Return a net of torchvision, as `timm_net` does.

    The preset is that of the weights in its name ("resnet50.IMAGENET1K_V1"); else of the file, if its sha256 is one of
    torchvision's; else of the default weights.
    """
    from torchvision import models

    known, (name, _, tag) = models.list_models(module=models), name.partition(".")
    if name not in known:
        raise PaperbenchError(f"torchvision has no net {name!r}. {nearest(name, known)}")
    presets = models.get_model_weights(name)
    if tag and tag not in presets.__members__:
        raise PaperbenchError(f"{name} of torchvision has no weights {tag!r}. {nearest(tag, presets.__members__)}")
    of_file = (one for one in presets if state and f"-{state.sha256[:8]}." in one.url)
    weights = presets[tag] if tag else next(of_file, presets.DEFAULT)
    with _reporting_failures(name):
        if state is None:
            model = models.get_model(name, weights=weights)
        else:  # the weights of these two are for inputs that the net itself normalises again
            extra = {"transform_input": True} if name in ("googlenet", "inception_v3") else {}
            model = models.get_model(name, num_classes=classes, **extra)
    preset = weights.transforms(**({"crop_size": crop.crop, "resize_size": crop.scale} if crop else {}))
    side, scale = (size if isinstance(size, int) else size[0] for size in (preset.crop_size, preset.resize_size))
    return ForeignNet(
        model,
        Normalisation.from_lists(preset.mean, preset.std),
        preset,
        Evaluation(side, scale),
        f"torchvision's preset of {weights.name} ({preset.interpolation.value})",
    )


@contextmanager
def _reporting_failures(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of a library that downloads with another library
        if is_out_of_memory(error):
            raise
        raise PaperbenchError(
            f"{name} cannot be had: {summarize_error(error)}. If the network is the reason, download the weights "
            "elsewhere and name the file with --weights."
        ) from error
