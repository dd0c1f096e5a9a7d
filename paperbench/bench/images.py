"""Images to measure with: random bytes, so that no multiplication is by zero, with labels that can be learnt."""

from __future__ import annotations

import numpy as np

from paperbench.data.dataset import ImageDataset

SIDE, BANDS = 32, 2


def random_images(count: int, classes: int, seed: int = 0) -> ImageDataset:
    """A data set of random images: a quarter of each is noise, three quarters are its class's two bands of colour.

    With labels of mere chance the loss would hardly move, and a wrong step could not be seen in it. What a step costs
    does not depend on it. Crops and mirroring leave the bands what they are.

    Args:
        count: Training images.
        classes: Labels are drawn from so many.
        seed: Of all random numbers.
    """
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (classes, BANDS, 1, 3), dtype=np.uint8).repeat(SIDE // BANDS, axis=1)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    images = images // 4 + patterns[labels] // 4 * 3
    key = "cifar100" if classes == 100 else "cifar10"
    return ImageDataset(
        key, "random images", "made for a benchmark", False, images, labels, images[:classes], labels[:classes]
    )
