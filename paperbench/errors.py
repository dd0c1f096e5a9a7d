"""The one exception that users are meant to see.

Every message says what is wrong and what to do next; the command line prints it without a traceback and exits with 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PaperbenchError(Exception):
    """Something the user can mend: a misspelt name, missing data, a full disk."""


class ArgumentError(PaperbenchError, TypeError):
    """An argument that nothing takes; a TypeError too, as timm expects of its models."""


class RunError(PaperbenchError):
    """Something wrong with one run, while the others of a command can go on."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that names the likeliest meant word, or else all known ones."""
    words = sorted(known)
    matches = get_close_matches(word, words, n=1, cutoff=0.6)
    if matches:
        return f"Did you mean {matches[0]!r}?"
    return f"Known: {', '.join(words)}." if words else "There are none."
