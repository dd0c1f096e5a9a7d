"""The exceptions that users see, and the wording that their messages share.

Every message says what is wrong and what to do next. The command line prints it without a traceback and exits with 2.
Whatever reads a file, takes a name or trains may raise one, so docstrings list other errors only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

MAX_LISTED = 12
"""Maximum number of words listed in a message."""

CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Characters that control a terminal, break a line or change the direction of the text after them, for a regex class.

Tab and newline are not among them.
"""

UNPRINTABLE = re.compile(rf"[{CONTROLS}\ud800-\udfff]")
"""These characters, and surrogates."""

_PATH = re.compile(r"(?<![\w.:/\\])(?:~|[A-Za-z]:)?[/\\][^\s'\",;()\[\]]+")

_MAX_MESSAGE = 20_000


class PaperbenchError(Exception):
    """An error that the user can fix: a misspelt name, missing data, a full disk.

    Its text has about 20,000 characters at most, however long the words of a file that it quotes.
    """

    def __str__(self) -> str:
        return shorten(super().__str__())


class ArgumentError(PaperbenchError, TypeError):
    """An unknown argument of a net. Also a TypeError, as timm expects of its models."""


class DataError(PaperbenchError):
    """An image of a data set can no longer be read, or has changed."""


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal arrived during a long computation, such as a test."""


class RunError(PaperbenchError):
    """An error of a single run; the other runs of the command can still be trained."""


class EngineError(RunError):
    """An engine that cannot be built here, or computes other steps than the reference.

    Attributes:
        reason: What is wrong, without the advice.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. A run takes the fastest engine that works with `--engine auto`.")
        self.reason = reason


class Finding(RunError):  # noqa: N818  (most are listed, not raised)
    """Something wrong with a file of a run; raised if the file cannot be used, else listed.

    Its text is the three attributes; without a file, only what is wrong.

    Attributes:
        where: The file, or a line of it; "" if whoever catches the error names it.
        what: What is wrong with it: the rest of the sentence that begins with `where`.
        remedy: What to do.
    """

    def __init__(self, where: Path | str, what: str, remedy: str = "") -> None:
        self.where, self.what, self.remedy = where, what.removesuffix("."), remedy
        end = "" if self.what.endswith("?") else "."
        super().__init__(f"{where} {self.what}{end} {remedy}".rstrip() if where else self.what)

    def __reduce__(self) -> tuple[type[Finding], tuple[Path | str, str, str]]:
        return type(self), (self.where, self.what, self.remedy)

    @classmethod
    def unreadable(
        cls, path: Path, error: OSError, remedy: str = "Restore it or make it readable, then repeat the command."
    ) -> Finding:
        """Return what is said of a file that the system cannot read."""
        return Finding(path, f"cannot be read: {error.strerror or error}", remedy)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known word closest to `word`, or lists the known words if none is close."""
    words = sorted(known)
    suggestion = closest(word, words)
    if suggestion is not None:
        return f"Did you mean {suggestion!r}?"
    return f"Known: {listing(words)}." if words else "There are none."


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to `word`, ignoring case, or None.

    If no spelling is close, `word` may abbreviate a single known word: "md" for "markdown", "2" for "table2".
    """
    by_lower = {name.lower(): name for name in known}
    lower = word[:_MAX_MESSAGE].lower()
    matches = get_close_matches(lower, by_lower, n=1, cutoff=0.6)
    if not matches and word:
        matches = [name for name in by_lower if _is_subsequence(lower, name)]
    return by_lower[matches[0]] if len(matches) == 1 else None


def _is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(letter in rest for letter in short)


def listing(words: Sequence[str]) -> str:
    """Return the words separated by commas; of many only the first, and the number of the others."""
    if len(words) <= MAX_LISTED:
        return ", ".join(words)
    return f"{', '.join(words[: MAX_LISTED - 1])} and {len(words) - MAX_LISTED + 1} others"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "1,600 runs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two: "90 seconds", "2.5 days", "1,900 years"."""
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.{1 if seconds < 10 * size else 0}f} {unit}"
    return count(round(seconds), "second")


def format_bytes(size: int) -> str:
    """Format a number of bytes with a unit."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def shorten(text: str, most: int = _MAX_MESSAGE) -> str:
    """Return a text of about `most` characters at most, without the middle of a longer one.

    The messages of libraries begin with what failed, and end with the cause or what to do.
    """
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]}"


def printable(text: str) -> str:
    """Return text from a stranger so that it is safe to print, with escapes in place of unprintable characters."""
    return UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return text from a stranger so that it is safe to print as part of a line: `printable`, without line breaks."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))


def without_paths(text: str) -> str:
    """Replace absolute paths, which may name people and places, in a text that is to be published."""
    return _PATH.sub("[path]", text)


def summarize_error(error: BaseException) -> str:
    """Return the first line of an error, with its type unless it is ours, and without paths, for published files."""
    text = shorten(without_paths(next(iter(str(error).strip().splitlines()), "")), 200)
    return text if isinstance(error, PaperbenchError) else ": ".join(filter(None, (type(error).__name__, text)))
