"""Time to build and initialise the deepest nets."""

from __future__ import annotations

import pytest
import timm
from pytest_benchmark.fixture import BenchmarkFixture

import paperbench  # noqa: F401  # registers the nets


@pytest.mark.parametrize(
    "name", ["preact_resnet110", "original_resnet1001", "preact_resnet1001", "original_resnet1202", "preact_resnet1202"]
)
def test_building(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark.pedantic(timm.create_model, args=(name,), rounds=3, warmup_rounds=1)
