"""The data sets that specs can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetInfo:
    """The facts about a data set that are needed before it is loaded. Images have three channels.

    Attributes:
        size: Side of the nets' input on it, in pixels; its images are as large, or photographs of any size.
        train_images, test_images: Numbers of images.
        are_photographs: Whether images have any size; others are as large as the nets' input.
        fail_above: Test error in percent above which the paper calls a run failed (caption of Table 1), if it does.
    """

    title: str
    num_classes: int
    size: int
    train_images: int
    test_images: int
    are_photographs: bool = False
    fail_above: float | None = None


DATASETS: Mapping[str, DatasetInfo] = {
    "cifar10": DatasetInfo("CIFAR-10", 10, 32, 50_000, 10_000, fail_above=20.0),
    "cifar100": DatasetInfo("CIFAR-100", 100, 32, 50_000, 10_000),
    "imagenet": DatasetInfo("ImageNet (ILSVRC 2012)", 1000, 224, 1_281_167, 50_000, are_photographs=True),
    "photos": DatasetInfo("tiles of scikit-learn's photographs", 6, 224, 48, 12, are_photographs=True),
    "digits": DatasetInfo("scikit-learn's handwritten digits at 32x32", 10, 32, 1_437, 360),
    "digits8": DatasetInfo("scikit-learn's handwritten digits at 8x8", 10, 8, 1_437, 360),
}
