"""Copies of the shipped specs for a test to spoil, and what is then said of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paperbench.specs.strict_yaml import SpecError
from paperbench.specs.table import load_table
from tests.helpers import copy_of_specs

Complaint = Callable[..., tuple[str, str]]


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return copy_of_specs(tmp_path)


@pytest.fixture
def complaint(specs: Path) -> Complaint:
    """What is wrong with a table: "file:line", with the file below the folder of specs, and the message.

    Args of the function: the table, and texts to replace in its files as `{file: [(old, new), ...]}`.
    """

    def call(table: str, changes: dict[str, list[tuple[str, str]]]) -> tuple[str, str]:
        for name, pairs in changes.items():
            replace_once(specs / name, pairs)
        with pytest.raises(SpecError) as caught:
            load_table(table, specs)
        where, message = str(caught.value).replace(f"{specs}/", "").split(": ", 1)
        return where, message

    return call


def replace_once(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Replace texts each of which must stand in the file once."""
    text = path.read_text(encoding="utf-8")
    for old, new in pairs:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
