from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.small_specs import SmallSpecs


@pytest.fixture
def specs(tmp_path: Path) -> SmallSpecs:
    return SmallSpecs(tmp_path)
