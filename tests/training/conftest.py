from __future__ import annotations

import numpy as np
import pytest

from paperbench.data.dataset import ImageDataset


@pytest.fixture(scope="session")
def tiny_dataset() -> ImageDataset:
    """100 + 40 random images of 16x16 pixels: nets pool over whatever is left."""
    rng = np.random.default_rng(0)
    return ImageDataset(
        key="cifar10",
        name="random pixels",
        origin="a test",
        canonical=False,
        x_train=rng.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8),
        y_train=rng.integers(0, 10, 100),
        x_test=rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8),
        y_test=rng.integers(0, 10, 40),
    )
