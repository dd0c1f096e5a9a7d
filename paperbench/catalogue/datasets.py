"""The data sets that specs can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is loaded. Images are `size` x `size` with three channels.

    Attributes:
        test_images: How many its test errors are measured on.
        fail_above: Test error in percent above which a run has failed, where the paper says it (caption of Table 1).
    """

    title: str
    num_classes: int
    size: int
    test_images: int
    fail_above: float | None = None


DATASETS: Mapping[str, DatasetInfo] = MappingProxyType(
    {
        "cifar10": DatasetInfo("CIFAR-10", 10, 32, 10_000, fail_above=20.0),
        "cifar100": DatasetInfo("CIFAR-100", 100, 32, 10_000),
        "imagenet": DatasetInfo("ImageNet (ILSVRC 2012)", 1000, 224, 50_000),
        "digits": DatasetInfo("scikit-learn's handwritten digits at 32x32", 10, 32, 360),
    }
)
