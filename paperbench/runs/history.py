"""The history of a run: one line of JSON per logged iteration."""

from __future__ import annotations

import hashlib
import math
import shlex
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paperbench.errors import Finding
from paperbench.files import read_at_most
from paperbench.runs.record import Record
from paperbench.specs.recipe import Recipe
from paperbench.typed import Loss, Natural, Percent, Seconds, TypedError, from_json, to_json, typed

if TYPE_CHECKING:
    from paperbench.training.evaluation import EvaluationMetrics
    from paperbench.training.metrics import TrainingMetrics

Measure = Literal["train_loss", "train_error"]
HISTORY_REMEDY = (
    "Restore it; or, if there is a checkpoint, move record.json away, and `paperbench run` rewrites both files."
)
_MAX_BYTES = 200_000_000


@typed
class HistoryLine:
    """One line of a history.

    Attributes:
        iteration: Number of iterations done.
        epoch: Number of passes over the training set.
        lr: Learning rate of the last iteration.
        train_loss, train_error: Means over the training images since the previous line; None if not finite. The loss
            is the one that is trained on, with the recipe's label smoothing.
        test_loss, test_error: Measured with BN's moving averages; None where no test was due.
        seconds: Time spent on the run, over all sessions.
    """

    iteration: Natural
    epoch: float
    lr: float
    train_loss: Loss | None
    train_error: float | None
    test_loss: Loss | None
    test_error: Percent | None
    seconds: Seconds


def history_line(
    recipe: Recipe,
    images: int,
    iteration: int,
    window: TrainingMetrics,
    tested: EvaluationMetrics | None,
    seconds: float,
) -> HistoryLine:
    """Return the history line of an iteration; `images` is the size of the training set."""
    is_finite = math.isfinite(window.loss)
    return HistoryLine(
        iteration=iteration,
        epoch=recipe.epochs_before(iteration, images),
        lr=recipe.rate_at(iteration - 1),
        train_loss=window.loss if is_finite else None,
        train_error=window.error if is_finite else None,
        test_loss=tested.loss if tested and math.isfinite(tested.loss) else None,
        test_error=tested.error if tested else None,
        seconds=seconds,
    )


def history_bytes(lines: Sequence[HistoryLine]) -> bytes:
    """Return the contents of a history file."""
    return "".join(f"{to_json(line)}\n" for line in lines).encode()


class History:
    """The contents of a history file. Lines are validated only when they are read, since comparisons read few of them.

    An incomplete last line, left by a killed process, is ignored. Messages name the path.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self._data = path, data

    @classmethod
    def read(cls, path: Path) -> History:
        """Read a file; a missing file gives an empty history."""
        try:
            return cls(path, read_at_most(path, _MAX_BYTES))
        except FileNotFoundError:
            return cls(path, b"")
        except OSError as error:
            raise Finding.unreadable(path, error, HISTORY_REMEDY) from error

    @cached_property
    def _texts(self) -> list[bytes]:
        return self._data.split(b"\n")[:-1]

    def _line(self, index: int) -> HistoryLine:
        try:
            return from_json(HistoryLine, self._texts[index])
        except TypedError as error:
            raise Finding(f"{self.path}:{index + 1}:", str(error), HISTORY_REMEDY) from error

    def lines(self) -> list[HistoryLine]:
        lines = [self._line(index) for index in range(len(self._texts))]
        for number, (line, following) in enumerate(pairwise(lines), start=2):
            if following.iteration <= line.iteration:
                what = f"goes back to iteration {following.iteration} after {line.iteration}"
                raise Finding(f"{self.path}:{number}:", what, HISTORY_REMEDY)
        return lines

    @property
    def last(self) -> HistoryLine | None:
        return self._line(len(self._texts) - 1) if self._texts else None

    def window_mean(self, measure: Measure, after: int, upto: int) -> float | None:
        """Return the mean of a measure over the lines with after < iteration <= upto.

        Returns:
            Infinity if a value is not finite, because the run diverged. None if the window has no line, or the history
            does not reach `upto`.
        """
        end = self._lines_up_to(upto)
        lines = [self._line(index) for index in range(self._lines_up_to(after), end)]
        values = [getattr(line, measure) for line in lines]
        if None in values:
            return math.inf
        if end == len(self._texts) and self._lines_up_to(upto - 1) == end:  # no line at `upto` or beyond
            return None
        return sum(values) / len(values) if values else None

    def newest(self, measure: Measure | Literal["test_error"], upto: int) -> float | None:
        """Return the last value of a measure at or before an iteration; None if no line has one."""
        values = (getattr(self._line(index), measure) for index in reversed(range(self._lines_up_to(upto))))
        return next((value for value in values if value is not None), None)

    def _lines_up_to(self, iteration: int) -> int:
        """Return the number of lines at or before an iteration."""
        return bisect_right(range(len(self._texts)), iteration, key=lambda index: self._line(index).iteration)

    def check(self, record: Record) -> None:
        """Check that the record was written with these lines, without parsing them.

        Lines that a run in progress has added since are allowed.
        """
        expected, found = record.files.history_lines, self._data.count(b"\n")
        written, remedy = record.files.history_sha256, HISTORY_REMEDY
        if found < expected:
            damage = f"was cut short: it has {found} of the {expected} lines that its record was written with"
        elif self._digest(expected) == written:
            if found == expected or record.status == "partial":
                return
            damage = f"has {found - expected} lines that were added after the run had ended"
        elif History(self.path, self._data.replace(b"\r\n", b"\n"))._digest(expected) == written:
            damage = "has the right values, but CRLF line ends, as git makes them with core.autocrlf"
            remedy = f"`sed -i 's/\\r$//' {shlex.quote(str(self.path))}` restores its bytes."
        else:
            damage = f"was edited: its first {expected} lines are not those that its record was written with"
        raise Finding(self.path, damage, remedy)

    def _digest(self, lines: int) -> str:
        """Return the hash of so many first lines."""
        *_, rest = self._data.split(b"\n", lines)
        return hashlib.sha256(memoryview(self._data)[: len(self._data) - len(rest)]).hexdigest()
