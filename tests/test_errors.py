from __future__ import annotations

import pytest

from paperbench.errors import closest, count, listing, nearest

FORMATS = ["table", "markdown", "latex", "json", "csv", "junit"]


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("2", ["table1", "table2"], "table2"),
        ("md", FORMATS, "markdown"),
        ("preact", ["Preact"], "Preact"),
        ("t", FORMATS, None),
        ("", ["json"], None),
        ("xml", FORMATS, None),
    ],
)
def test_closest_word_is_a_near_spelling_or_the_only_abbreviation(
    word: str, known: list[str], expected: str | None
) -> None:
    assert closest(word, known) == expected


def test_nearest_suggests_one_word_or_lists_them() -> None:
    assert nearest("smok", ["paper", "smoke"]) == "Did you mean 'smoke'?"
    assert nearest("x", ["smoke", "paper"]) == "Known: paper, smoke."


def test_long_list_is_cut() -> None:
    assert listing([*"abcdefghijkl"]) == "a, b, c, d, e, f, g, h, i, j, k, l"
    assert listing([*"abcdefghijklm"]) == "a, b, c, d, e, f, g, h, i, j, k and 2 others"


def test_count_uses_singular_plural_and_thousands_separators() -> None:
    assert [count(n, "run") for n in (0, 1, 2, 1600)] == ["0 runs", "1 run", "2 runs", "1,600 runs"]
