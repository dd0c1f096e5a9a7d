from __future__ import annotations

import pytest

from paperbench.data.dataset import ImageDataset
from tests.helpers import random_dataset


@pytest.fixture(scope="session")
def tiny_dataset() -> ImageDataset:
    """100 + 40 random images of 16x16 pixels."""
    return random_dataset(16)
