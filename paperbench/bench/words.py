"""What programs say when they fail, without what is nobody's business: the files and folders of a machine."""

from __future__ import annotations

import re

_WITH_A_SLASH = re.compile(r"\S*[/\\]\S*")
_RATE = re.compile(r"\w+/s\W*")


def without_paths(text: str) -> str:
    """The text with every word that could be a path replaced; "images/s" is none."""
    return _WITH_A_SLASH.sub(lambda found: found[0] if _RATE.fullmatch(found[0]) else "[path]", text)


def in_words(error: BaseException, most: int = 200) -> str:
    """The kind of an error and the first line of what it says, at most so many characters, without paths."""
    first = without_paths(next(iter(str(error).strip().splitlines()), ""))
    return f"{type(error).__name__}: {first[:most]}" if first else type(error).__name__
