"""scikit-learn's handwritten digits, a data set that needs no download.

1,797 grey images of 8x8 pixels with 17 levels by 13 writers, the test part of the UCI data set of E. Alpaydin and
C. Kaynak (1998). With three equal channels, at 8x8 or enlarged to 32x32, they fit nets for CIFAR; errors on them are
unrelated to the paper's.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset

TEST_EVERY = 5
"""Every fifth image is a test image."""


def load_digits(key: str = "digits") -> ImageDataset:
    """Return the digits as images of three channels: 1,437 for training, 360 for testing.

    Args:
        key: "digits8" for their own 8x8 pixels, "digits" for 32x32.
    """
    from sklearn.datasets import load_digits as load_from_sklearn

    small, labels = load_from_sklearn(return_X_y=True)
    grey = np.round(small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    if (size := DATASETS[key].size) != 8:
        grey = np.stack([np.asarray(Image.fromarray(i).resize((size, size), Image.Resampling.BILINEAR)) for i in grey])
    images = np.repeat(grey[..., None], 3, axis=3)
    is_test = np.arange(len(images)) % TEST_EVERY == 0
    labels = labels.astype(np.int64)
    train, test = ((images[part], labels[part]) for part in (~is_test, is_test))
    name = "handwritten digits (embedded)" if key == "digits" else "handwritten digits at 8x8 (embedded)"
    origin = f"scikit-learn's copy of the UCI handwritten digits{', enlarged from 8x8' * (key == 'digits')}"
    return ImageDataset(key, name, origin, *train, *test, canonical=False)
