from __future__ import annotations

import unicodedata

import pytest

from paperbench.errors import closest, count, listing, nearest, one_line, printable, without_paths
from paperbench.typed import Line, Text, TypedError, validate

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


def is_refused(kind: object, text: str) -> bool:
    try:
        validate(kind, text)
    except TypedError:
        return True
    return False


def test_same_characters_are_escaped_in_print_and_refused_in_files() -> None:
    embeddings = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    characters = [chr(code) for code in range(0x10000)]
    surrogates = {char for char in characters if unicodedata.category(char) == "Cs"}
    controls = {
        char
        for char in characters
        if unicodedata.category(char) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(char) in embeddings
    }
    assert {char for char in characters if one_line(char) != char} == controls | surrogates
    assert {char for char in characters if printable(char) != char} == controls - {"\t", "\n"} | surrogates
    assert all(one_line(char).isascii() and one_line(char).isprintable() for char in controls | surrogates)
    files = [char for char in characters if char not in surrogates]  # which UTF-8 does not have
    assert {char for char in files if is_refused(Text, char)} == controls - {"\t", "\n"}
    assert {char for char in files if is_refused(Line, char)} == controls


def test_escaped_text_stays_as_it_is() -> None:
    text = printable("\x1b[2J\u202e\udc80\n")
    assert text == "\\x1b[2J\\u202e\\udc80\n"
    assert printable(text) == text


def test_links_are_kept_where_paths_are_not() -> None:
    text = "see https://download.pytorch.org/whl/cu126, 12/13 images/s, not '/usr/lib/x.so' or (/a/b)"
    assert without_paths(text) == (
        "see https://download.pytorch.org/whl/cu126, 12/13 images/s, not '[path]' or ([path])"
    )
