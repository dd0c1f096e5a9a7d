"""A limit on the memory that reading a hostile input may take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_memory(megabytes: int = 50) -> Iterator[None]:
    """Fail the test if the body allocates more."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 2**20
