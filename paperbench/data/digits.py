"""scikit-learn's handwritten digits, a data set that needs no download.

1,797 grey images of 8x8 pixels with 17 levels by 13 writers, the test part of the UCI data set of E. Alpaydin and
C. Kaynak (1998). Enlarged to 32x32 with three equal channels, they fit nets for CIFAR; errors on them are unrelated to
the paper's.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset

TEST_EVERY = 5
"""Every fifth image is a test image."""


def load_digits() -> ImageDataset:
    """Return the digits as 32x32x3 images: 1,437 for training, 360 for testing."""
    from sklearn.datasets import load_digits as load_from_sklearn

    small, labels = load_from_sklearn(return_X_y=True)
    grey = np.round(small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    size = DATASETS["digits"].size
    enlarged = np.stack([np.asarray(Image.fromarray(i).resize((size, size), Image.Resampling.BILINEAR)) for i in grey])
    images = np.repeat(enlarged[..., None], 3, axis=3)
    is_test = np.arange(len(images)) % TEST_EVERY == 0
    labels = labels.astype(np.int64)
    return ImageDataset(
        key="digits",
        name="handwritten digits (embedded)",
        origin="scikit-learn's copy of the UCI handwritten digits, enlarged from 8x8",
        canonical=False,
        x_train=images[~is_test],
        y_train=labels[~is_test],
        x_test=images[is_test],
        y_test=labels[is_test],
    )
