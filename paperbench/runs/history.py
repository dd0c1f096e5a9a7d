"""The history of a run: one JSON line for each logged iteration."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from paperbench.errors import RunError
from paperbench.files import read_at_most, unreadable
from paperbench.runs.record import Record
from paperbench.typed import TypedError, from_json, to_json, typed

Measure = Literal["train_loss", "train_error"]
HISTORY_REMEDY = (
    "Restore it; or, where there is a checkpoint, move record.json away, and `paperbench run` makes both again."
)
_MAX_BYTES = 200_000_000


@typed
class HistoryLine:
    """One line of a history.

    Attributes:
        iteration: Iterations done when it was written.
        epoch: Passes over the training set done.
        lr: Learning rate of the iteration before it.
        train_loss, train_error: Means over the training images since the line before; None once they are not finite.
        test_loss, test_error: With BN's moving averages; None where no test was due.
        seconds: Time spent in the run so far.
    """

    iteration: Annotated[int, Field(ge=0)]
    epoch: float
    lr: float
    train_loss: float | None
    train_error: float | None
    test_loss: float | None
    test_error: float | None
    seconds: float


def history_bytes(lines: Sequence[HistoryLine]) -> bytes:
    """The file that holds the lines."""
    return "".join(f"{to_json(line)}\n" for line in lines).encode()


class History:
    """What a history file holds. Its lines are validated only when they are needed: comparisons need few of many.

    Args:
        path: The file, for messages.
        data: Its bytes. A last line that a killed process cut short is left out.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self._data = path, data

    @classmethod
    def read(cls, path: Path) -> History:
        """The history in a file; an empty one if there is no file.

        Raises:
            RunError: It cannot be read.
        """
        try:
            return cls(path, read_at_most(path, _MAX_BYTES))
        except FileNotFoundError:
            return cls(path, b"")
        except OSError as error:
            raise RunError(unreadable(path, error, HISTORY_REMEDY)) from error

    @cached_property
    def _texts(self) -> list[bytes]:
        return self._data.split(b"\n")[:-1]

    def _line(self, index: int) -> HistoryLine:
        try:
            return from_json(HistoryLine, self._texts[index])
        except TypedError as error:
            raise RunError(f"{self.path}:{index + 1}: {error} {HISTORY_REMEDY}") from error

    def lines(self) -> list[HistoryLine]:
        """All lines.

        Raises:
            RunError: One is damaged, or its iteration is not after that of the line before.
        """
        lines = [self._line(index) for index in range(len(self._texts))]
        for number, (line, following) in enumerate(pairwise(lines), start=2):
            if following.iteration <= line.iteration:
                raise RunError(
                    f"{self.path}:{number}: goes back to iteration {following.iteration} after {line.iteration}. "
                    f"{HISTORY_REMEDY}"
                )
        return lines

    def window_mean(self, measure: Measure, after: int, upto: int) -> float | None:
        """Mean of a measure over the lines with after < iteration <= upto.

        Returns:
            Infinity if a value there is no longer finite: the run diverged. None if no line is there, or the history
            does not reach `upto`.

        Raises:
            RunError: A line there, or one that was read to find them, is damaged.
        """
        end = self._lines_up_to(upto)
        lines = [self._line(index) for index in range(self._lines_up_to(after), end)]
        values = [getattr(line, measure) for line in lines]
        if None in values:
            return math.inf
        if end == len(self._texts) and self._lines_up_to(upto - 1) == end:  # there is no line at `upto` or beyond
            return None
        return sum(values) / len(values) if values else None

    def newest(self, measure: Measure | Literal["test_error"], upto: int) -> float | None:
        """The newest value of a measure in the lines with iteration <= upto, if there is one.

        Raises:
            RunError: A line that was read to find it is damaged.
        """
        values = (getattr(self._line(index), measure) for index in reversed(range(self._lines_up_to(upto))))
        return next((value for value in values if value is not None), None)

    def _lines_up_to(self, iteration: int) -> int:
        """How many lines there are with at most this iteration."""
        return bisect_right(range(len(self._texts)), iteration, key=lambda index: self._line(index).iteration)

    def check(self, record: Record) -> None:
        """Make sure that these are the lines that a record was written with. Fast: none is parsed.

        Raises:
            RunError: They are not. What a run in progress has added since is no error.
        """
        expected, found = record.files.history_lines, self._data.count(b"\n")
        *_, rest = self._data.split(b"\n", min(expected, found))
        digest = hashlib.sha256(memoryview(self._data)[: len(self._data) - len(rest)]).hexdigest()
        if found < expected:
            damage = f"was cut short: it has {found} of the {expected} lines that its record was written with"
        elif digest != record.files.history_sha256:
            damage = f"was edited: its first {expected} lines are not those that its record was written with"
        elif found > expected and record.status != "partial":
            damage = f"has {found - expected} lines that were added after the run had ended"
        else:
            return
        raise RunError(f"{self.path} {damage}. {HISTORY_REMEDY}")
