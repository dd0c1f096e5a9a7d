from __future__ import annotations

import pytest

from paperbench.bench.words import in_words, without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /folder/of/mine/a.so: no such file", "cannot open [path] no such file"),
        ('File "C:\\Folder\\mine\\a.py", line 3', "File [path] line 3"),
        ("~/cache and ./here and file:///a/b", "[path] and [path] and [path]"),
        ("round 1 of 3, images/s: graph bf16 1234", "round 1 of 3, images/s: graph bf16 1234"),
        ("CUDA out of memory. Tried to allocate 20.00 GiB.", "CUDA out of memory. Tried to allocate 20.00 GiB."),
    ],
)
def test_paths_are_taken_out_and_nothing_else_is(text: str, expected: str) -> None:
    assert without_paths(text) == expected


def test_an_error_is_its_kind_and_its_first_line() -> None:
    assert in_words(ValueError("a\nb")) == "ValueError: a"
    assert in_words(ValueError()) == "ValueError"
    assert in_words(ValueError("abc"), 2) == "ValueError: ab"
