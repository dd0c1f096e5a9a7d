"""Nets of timm and torchvision with their own preprocessing, and state dicts of other implementations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from paperbench.architecture import units
from paperbench.catalogue import NETS, Net
from paperbench.data.dataset import Pixels
from paperbench.errors import PaperbenchError, listing, nearest, summarize_error
from paperbench.files import MAX_TENSOR_FILE_BYTES, format_read_error, read_at_most
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Evaluation
from paperbench.tensor_file import read_tensor_file
from paperbench.training.memory import is_out_of_memory
from paperbench.training.torch_file import MAX_NAME, read_torch_file


@dataclass(frozen=True)
class Preprocessing:
    """How a net's input is made: (pixels - mean) / std of a whole small image, or of a crop of a photograph.

    Attributes:
        mean, std: For pixels in [0, 1]; they broadcast to (3, H, W).
        side: Of the crop, in pixels.
        crop: Makes the crop, (side, side, 3); if None, it is the central crop that our nets have.
        evaluation: The central crop; None if the crop is another one, or unknown.
        text: The preprocessing in words.
    """

    mean: Tensor
    std: Tensor
    text: str
    side: int
    crop: Callable[[Image.Image], Pixels] | None
    evaluation: Evaluation | None

    @classmethod
    def of_channels(cls, mean: Sequence[float], std: Sequence[float], text: str, *others: Any) -> Preprocessing:
        """Return the preprocessing with one mean and one standard deviation per channel."""
        first, second = (torch.tensor([*values]).view(3, 1, 1) for values in (mean, std))
        return cls(first, second, f"mean {tuple(mean)}, std {tuple(std)}{text}", *others)


_ENTRIES = (
    *("current_model_state", "state_dict", "model_state_dict", "model_state", "model", "net"),
    *("module", "_orig_mod"),  # of DataParallel and torch.compile
    *("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "model_ema_state_dict"),
)
"""Entries of checkpoints and beginnings of names, in the order of preference. Those with "ema" are averages."""
_MAX_DEPTH = 8
_MAX_TENSORS = 100_000  # ours have up to 60,000
_NAMES = {
    r"^conv1\.": "stem.conv.",
    r"^bn1\.": "stem.bn.",
    **{rf"^layer{stage + 1}\.(\d+)\.": rf"stages.{stage}.\1.residual." for stage in range(3)},
    r"\.residual\.downsample\.0\.": ".shortcut.conv.",
    r"\.residual\.downsample\.1\.": ".shortcut.bn.",
    r"^linear\.": "fc.",
}
"""Parts of the names that others have given to the tensors of our nets for CIFAR, and ours."""
_REMEDY = "Save only the tensors: `torch.save(model.state_dict(), FILE)`."


@dataclass(frozen=True)
class Implementation:
    """What differs, beside `_NAMES`, between the nets of a repository and ours.

    Attributes:
        inputs: Mean and standard deviation of the net's input by data set, for pixels in [0, 1].
        arguments: Arguments of our net that make it theirs.
        pads_both_sides: Whether option A adds half of the zero channels before the others, and not all behind them.
    """

    inputs: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
    arguments: Mapping[str, str]
    pads_both_sides: bool = False


_CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMPLEMENTATIONS = {
    # github.com/akamaster/pytorch_resnet_cifar10, resnet.py and trainer.py: files of the directory pretrained_models
    "akamaster": Implementation({"cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}, {}, pads_both_sides=True),
    # github.com/bearpaw/pytorch-classification, models/cifar/resnet.py and cifar.py: bottleneck nets, of which older
    # code counts the depths as 6n+2, so that its "ResNet-110" has 164 layers
    "bearpaw_resnet": Implementation({"cifar10": _CIFAR10, "cifar100": _CIFAR10}, {"stride_in": "middle"}),
    # github.com/chenyaofo/pytorch-cifar-models, resnet.py, logs/cifar10 and logs/cifar100: ResNet-20 to 56
    "chenyaofo": Implementation(
        {"cifar10": _CIFAR10, "cifar100": ((0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761))},
        {"shortcut_option": "B"},
    ),
}
"""Repositories whose weights `--mapping` turns into those of our nets."""


def read_state(file: Path) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """Read a safetensors file, or a file of `torch.save`, whose code does not run.

    Returns:
        The tensors of the state dict; the metadata; and in words which entry of a checkpoint was taken.
    """
    metadata: dict[str, str] = {}
    loaded: Any
    try:
        data = read_at_most(file, MAX_TENSOR_FILE_BYTES)
        if data[8:9] == b"{":
            loaded, metadata = read_tensor_file(data)
        else:
            loaded = read_torch_file(data)
    except OSError as error:
        raise PaperbenchError(format_read_error(file, error, "Name a file of weights.")) from error
    except Exception as error:  # what a damaged file raises is not documented
        raise PaperbenchError(f"{file} cannot be read as weights ({summarize_error(error)}). {_REMEDY}") from error
    tensors, entry = _state_dict(loaded if isinstance(loaded, dict) else {})
    if not 0 < len(tensors) <= _MAX_TENSORS:
        raise PaperbenchError(f"{file} holds no state dict: a mapping of names to dense tensors. {_REMEDY}")
    return tensors, metadata, entry


def _state_dict(state: dict[str, Any]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a checkpoint's preferred state dict, and in words which one that is."""
    path: list[str] = []
    is_average, unused = False, set[str]()
    while len(path) < _MAX_DEPTH:
        found: dict[str, dict[str, Any]] = {entry: {} for entry in _ENTRIES}
        for name, value in state.items():
            entry, _, rest = name.partition(".")
            if entry in found and (rest or isinstance(value, dict)):
                found[entry] |= {rest: value} if rest else value
        entry, *others = [entry for entry, inner in found.items() if inner] or [""]
        if not entry:
            break
        is_average |= "ema" in entry or (entry == "module" and "n_averaged" in state)  # of torch's AveragedModel
        unused |= {other for other in others if "ema" in other}
        path.append(entry)
        state = found[entry]
    tensors = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", name): value  # torchvision's older names
        for name, value in state.items()
        if isinstance(value, Tensor) and len(name) <= MAX_NAME
    }
    if not path:
        return tensors, ""
    note = f"; its average {listing(sorted(unused))} is not used" if unused else ""
    return tensors, f" (its {'.'.join(path)}, {'' if is_average else 'not '}averaged{note})"


def load_state(model: nn.Module, tensors: Mapping[str, Tensor], file: Path, mapping: str | None = None) -> None:
    """Load weights into a net, if all names and shapes are its own.

    Args:
        mapping: The one of `IMPLEMENTATIONS` that they are from, if this net is ours.
    """
    renamed = {_renamed(name) if mapping else name: value for name, value in tensors.items()}
    if len(renamed) < len(tensors):
        raise PaperbenchError(f"Mapping {mapping} gives several tensors of {file} one name. Name another file.")
    try:
        model.load_state_dict(renamed)
    except Exception as error:  # of a net of another library
        text = " ".join(str(error).split())[:400]
        raise PaperbenchError(
            f"{file} does not fit the net and the classes of the data set: {text}. Name the net and the data set that "
            "it belongs to or, for another implementation of one of our nets, a mapping (--mapping)."
        ) from error
    if mapping and IMPLEMENTATIONS[mapping].pads_both_sides:
        assert isinstance(model, ResidualNet)  # noqa: S101
        state = model.state_dict()
        for beginning, dim, order in _reordered(model.net):
            for name, tensor in state.items():
                if name.startswith(beginning) and tensor.dim() > dim:
                    tensor.copy_(tensor.index_select(dim, torch.tensor(order)))


def _renamed(name: str) -> str:
    for theirs, ours in _NAMES.items():
        name = re.sub(theirs, ours, name)
    return name


def _reordered(net: Net) -> Iterator[tuple[str, int, list[int]]]:
    """Yield the tensors that read or write the shortcuts' signal where half of the zeros come before its channels.

    Yields:
        The beginning of their names, the dimension of the signal's channels, and for each of our channels theirs.
    """
    order: list[int] = []
    for unit in units(net):
        name = f"stages.{unit.stage}.{unit.index}"
        order = order or list(range(unit.in_channels))
        yield f"{name}.residual.conv1.", 1, order
        if before := (unit.out_channels - unit.in_channels) // 2:
            kept = [before + channel for channel in order]
            order = kept + sorted(set(range(unit.out_channels)) - set(kept))
        last = len(unit.weight_layers)
        for part in (f"residual.conv{last}.", f"residual.bn{last}."):
            yield f"{name}.{part}", 0, order
    yield "fc.weight", 1, order


def library_net(
    name: str, weights: Path | None, classes: int, crop: Evaluation | None
) -> tuple[nn.Module, Preprocessing, str]:
    """Return a net of another library, its own preprocessing, and where its weights are from.

    Args:
        name: "timm:NAME" or "torchvision:NAME"; NAME may end with a dot and the name of its weights.
        weights: A file; None to download them.
        classes: Of the data set.
        crop: In place of the library's.
    """
    tensors, _, entry = read_state(weights) if weights else (None, {}, "")
    build = _timm_net if name.startswith("timm:") else _torchvision_net
    try:
        model, found, preprocessing = build(name.partition(":")[2], None if tensors is None else classes, crop)
    except Exception as error:  # of a library that downloads with another library
        if is_out_of_memory(error) or isinstance(error, PaperbenchError):
            raise
        raise PaperbenchError(
            f"Could not load {name}: {summarize_error(error)}. If the network is the reason, download the weights "
            "elsewhere and name the file with --weights."
        ) from error
    if found != classes:
        raise PaperbenchError(f"{name} has {found:,} classes, and the data set {classes:,}. Choose one with --dataset.")
    if weights and tensors:
        load_state(model, tensors, weights)
    return model, preprocessing, f"{weights.name}{entry}" if weights else "downloaded weights"


def _timm_net(name: str, classes: int | None, crop: Evaluation | None) -> tuple[nn.Module, int, Preprocessing]:
    """Return a net, its classes and its preprocessing; without `classes` with timm's weights."""
    import timm

    data: Any = timm.data
    if name in NETS:
        raise PaperbenchError(f"{name} is a net of paperbench. Name it without timm:, and its weights with --weights.")
    _require("timm", name.partition(".")[0], set(timm.list_models()) - NETS.keys())
    model: Any = timm.create_model(name, **({"num_classes": classes} if classes else {"pretrained": True}))
    chosen: dict[str, Any] = {}
    if crop:  # timm takes the largest whole number up to crop / crop_pct
        chosen = {"input_size": (3, crop.crop, crop.crop), "crop_pct": crop.crop / (crop.scale + 0.5)}
        chosen["crop_mode"] = "center"
    config: dict[str, Any] = data.resolve_data_config(chosen, model=model)
    transform: Any = data.create_transform(**config, use_prefetcher=True)  # which returns bytes
    side, mode = config["input_size"][-1], config["crop_mode"]
    evaluation = Evaluation(side, math.floor(side / config["crop_pct"])) if mode == "center" else None
    text = f"; timm's configuration of {model.pretrained_cfg.get('tag') or 'the net'}"
    values = config["mean"], config["std"], text, side, lambda image: np.moveaxis(np.asarray(transform(image)), 0, 2)
    return model, model.num_classes, Preprocessing.of_channels(*values, evaluation)


def _torchvision_net(name: str, classes: int | None, crop: Evaluation | None) -> tuple[nn.Module, int, Preprocessing]:
    """Return the same as `_timm_net`; the preprocessing is that of the named weights, else of the default ones."""
    from torchvision import models
    from torchvision.transforms.functional import center_crop, resize

    name, _, tag = name.partition(".")
    _require("torchvision", name, models.list_models(module=models))
    known = models.get_model_weights(name)
    _require(f"{name} of torchvision", tag or "DEFAULT", {"DEFAULT", *known.__members__})
    weights = known[tag or "DEFAULT"]
    # The weights of these two are for inputs that the net itself normalises again.
    extra = {"transform_input": True} if name in ("googlenet", "inception_v3") else {}
    model = models.get_model(name, **({"num_classes": classes, **extra} if classes else {"weights": weights}))
    preset = weights.transforms(**({"crop_size": crop.crop, "resize_size": crop.scale} if crop else {}))

    def cropped(image: Image.Image) -> Pixels:
        resized = resize(image, preset.resize_size, preset.interpolation, antialias=preset.antialias)
        return np.asarray(center_crop(resized, preset.crop_size))

    (side,), (scale,) = preset.crop_size, preset.resize_size
    text = f"; torchvision's preset of {weights.name}"
    how = Preprocessing.of_channels(preset.mean, preset.std, text, side, cropped, Evaluation(side, scale))
    return model, classes or len(weights.meta["categories"]), how


def _require(owner: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise PaperbenchError(f"{owner} has no {name!r}. {nearest(name, known)}")
