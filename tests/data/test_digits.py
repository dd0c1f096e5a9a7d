from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits as load_from_sklearn

from paperbench.data.dataset import ImageDataset
from paperbench.data.digits import load_digits


@pytest.fixture(scope="module")
def digits() -> ImageDataset:
    return load_digits()


def original_order(digits: ImageDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return all images and labels in scikit-learn's order: every fifth from the first on is for testing."""
    train = iter(zip(digits.x_train, digits.y_train, strict=True))
    test = iter(zip(digits.x_test, digits.y_test, strict=True))
    pairs = [next(test) if i % 5 == 0 else next(train) for i in range(1797)]
    assert next(train, None) is next(test, None) is None
    return np.stack([image for image, _ in pairs]), np.array([label for _, label in pairs])


def test_all_images_of_scikit_learn_are_enlarged_once_with_their_labels(digits: ImageDataset) -> None:
    images, labels = original_order(digits)
    np.testing.assert_array_equal(labels, load_from_sklearn().target)
    np.testing.assert_array_equal(images[..., 0], images[..., 1])
    np.testing.assert_array_equal(images[..., 0], images[..., 2])
    small = load_from_sklearn().images * (255 / 16)
    at_their_own_size, same_labels = original_order(load_digits("digits8"))
    np.testing.assert_array_equal(same_labels, labels)
    np.testing.assert_array_equal(at_their_own_size, np.round(small)[..., None].repeat(3, axis=-1))
    # Bilinear enlargement by 4: pixel i of 32 is at (i + 0.5) / 4 - 0.5 of 8, clipped to the borders.
    position = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)
    below = np.minimum(position.astype(int), 6)
    weight = np.zeros((32, 8))
    weight[np.arange(32), below] += 1 - (position - below)
    weight[np.arange(32), below + 1] += position - below
    enlarged = np.einsum("ia,nab,jb->nij", weight, small, weight)
    assert np.abs(images[..., 0] - enlarged).max() <= 2, "rounded to bytes twice"
