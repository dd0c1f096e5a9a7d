"""What is known of ImageNet's classes: their synsets, and the labels of the validation images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from paperbench.errors import PaperbenchError


@cache
def synsets() -> tuple[str, ...]:
    """Return the 1,000 synsets in alphabetical order, in which labels count them.

    They are read from timm's files without importing timm, which would import torch.
    """
    spec = find_spec("timm")
    try:
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError("timm is not installed")
        text = Path(spec.submodule_search_locations[0], "data", "_info", "imagenet_synsets.txt").read_text()
    except OSError as error:
        raise PaperbenchError(f"The list of ImageNet's classes is missing ({error}). Install timm again.") from error
    return tuple(sorted(text.split()))


@cache
def validation_labels() -> Mapping[str, int]:
    """Return the labels of the 50,000 validation images of ILSVRC 2012, by the names of their files without suffix.

    Source: `datasets/imagenet2012/validation_labels.txt` of tensorflow-datasets 4.9.10, compared with the script
    `valprep.sh` that is common with PyTorch. `validation_labels.npy` has them in the order of the images' numbers.
    """
    labels = np.load(Path(__file__).with_name("validation_labels.npy"))
    return {f"ILSVRC2012_val_{number:08}": label for number, label in enumerate(labels.tolist(), 1)}
