"""Copies of the shipped specs for a test to spoil, and the problems that are then reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paperbench.specs.table import load_table
from paperbench.specs.yaml_file import SpecError
from tests.helpers import copy_of_specs, edit

Problems = Callable[..., list[tuple[int, str]]]


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return copy_of_specs(tmp_path)


@pytest.fixture
def problems(specs: Path) -> Problems:
    """What is wrong with a table after texts in one of its files are replaced: line and message of each problem.

    Args of the function: the table, the file in which all problems must be, and pairs of old and new text.
    """

    def call(table: str, file: str, *edits: tuple[str, str]) -> list[tuple[int, str]]:
        for old, new in edits:
            edit(specs / file, old, new)
        with pytest.raises(SpecError) as caught:
            load_table(table, specs)
        found = []
        for complaint in str(caught.value).splitlines():
            if not complaint.startswith("("):
                place, message = complaint.removeprefix(f"{specs / file}:").split(": ", 1)
                found.append((int(place), message))
        return found

    return call
