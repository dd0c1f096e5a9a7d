"""The history of a run: one JSON line for each iteration that is looked at."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from paperbench.runs.record import Record, RecordError, build, parse_json

Measure = Literal["train_loss", "train_error"]
_MEASURES: tuple[Measure, ...] = get_args(Measure)
_START = re.compile(rb'\{"iteration": (\d{1,18}),')
_NUMBER = rb"(null|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_AS_WRITTEN = re.compile(
    rb'^\{"iteration": \d+, "epoch": [^,\n]+, "lr": [^,\n]+, "train_loss": %b, "train_error": %b, [^\n]+\}$'
    % (_NUMBER, _NUMBER),
    re.MULTILINE,
)
"""A line by `HistoryLine.to_json`. To find two values this way takes a tenth of the time that reading JSON takes."""


@dataclass(frozen=True)
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

    iteration: int
    epoch: float
    lr: float
    train_loss: float | None
    train_error: float | None
    test_loss: float | None
    test_error: float | None
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False) + "\n"


def history_bytes(lines: Sequence[HistoryLine]) -> bytes:
    """The file that holds the lines."""
    return "".join(line.to_json() for line in lines).encode()


def history_sha256(data: bytes, lines: int) -> str | None:
    """The hash of a file's first lines; None if it has not so many."""
    end = _end_of_line(data, lines)
    return None if end is None else hashlib.sha256(memoryview(data)[:end]).hexdigest()


def _end_of_line(data: bytes, number: int) -> int | None:
    """Where in a file a line ends, counted from 1; None if it has not so many."""
    if data.endswith(b"\n") and data.count(b"\n") == number:
        return len(data)  # the usual case, in half the time
    end = 0
    for _ in range(number):
        end = data.find(b"\n", end) + 1
        if not end:
            return None
    return end


def history_damage(data: bytes, record: Record) -> str | None:
    """What happened to a history after its record was written, as the rest of a sentence about the file.

    Lines that a run in progress has added since are no damage. No line is parsed.
    """
    expected = record.files.history_lines
    end = _end_of_line(data, expected)
    if end is None:
        lines = data.count(b"\n")
        return f"was cut short: it has {lines} of the {expected} lines that its record was written with."
    if hashlib.sha256(memoryview(data)[:end]).hexdigest() != record.files.history_sha256:
        return f"was edited: its first {expected} lines are not those that its record was written with."
    added = data.count(b"\n", end)
    if added and record.status != "partial":
        return f"has {added} lines that were added after the run had ended."
    return None


def lines_up_to(data: bytes, iteration: int) -> bytes:
    """The complete lines of a history up to an iteration.

    Raises:
        RecordError: As `window_mean`.
    """
    return data[: _end_of(data, iteration)]


@dataclass(frozen=True)
class Newest:
    """The newest values of a history, None where it has none."""

    train_loss: float | None = None
    train_error: float | None = None
    test_error: float | None = None


def newest_values(data: bytes) -> Newest:
    """The newest of each value, from its last lines only; tests are further apart than lines.

    Raises:
        RecordError: One of those lines is no history line; the message begins with its number.
    """
    found = Newest()
    end = data.rfind(b"\n") + 1
    for _ in range(_LINES_LOOKED_AT):
        if not end or None not in (found.train_loss, found.train_error, found.test_error):
            break
        start = data.rfind(b"\n", 0, end - 1) + 1
        for line in parse_history(data[start:end], data.count(b"\n", 0, start) + 1):
            found = Newest(
                line.train_loss if found.train_loss is None else found.train_loss,
                line.train_error if found.train_error is None else found.train_error,
                line.test_error if found.test_error is None else found.test_error,
            )
        end = start
    return found


_LINES_LOOKED_AT = 100


def window_mean(data: bytes, measure: Measure, after: int, upto: int) -> float | None:
    """Mean of a measure over the lines of a history with after < iteration <= upto; only these are read.

    Returns:
        Infinity if a value there is no longer finite: the run diverged. None if no line is there, or the history does
        not reach `upto`.

    Raises:
        RecordError: One of the lines, or of those looked at to find them, is no history line; the message begins with
            its number.
    """
    first, end = _end_of(data, after), _end_of(data, upto)
    values = _values(data, first, end, measure)
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return math.inf
    is_reached = data.find(b"\n", end) >= 0 or _end_of(data, upto - 1) < end
    return sum(finite) / len(finite) if finite and is_reached else None


def _values(data: bytes, first: int, end: int, measure: Measure) -> list[float | None]:
    """A measure of the lines in a part of a history."""
    found = [pair[_MEASURES.index(measure)] for pair in _AS_WRITTEN.findall(data, first, end)]
    if len(found) == data.count(b"\n", first, end):
        values = [None if number == b"null" else float(number) for number in found]
        if all(value is None or math.isfinite(value) for value in values):
            return values
    lines = parse_history(data[first:end], data.count(b"\n", 0, first) + 1)
    return [line.train_loss if measure == "train_loss" else line.train_error for line in lines]


def _end_of(data: bytes, iteration: int) -> int:
    """Where in a history the first line beyond an iteration begins, found by bisection."""
    low, high = 0, data.rfind(b"\n") + 1
    while low < high:
        line = data.rfind(b"\n", low, (low + high) // 2) + 1 or low
        start = _START.match(data, line)
        if start is None:
            number = data.count(b"\n", 0, line) + 1
            raise RecordError(f"{number} is no history line: it does not begin with an iteration")
        if int(start[1]) > iteration:
            high = line
        else:
            low = data.find(b"\n", line) + 1
    return low


def parse_history(data: bytes, first: int = 1) -> list[HistoryLine]:
    """All complete lines; one cut short by a killed process is left out.

    Args:
        first: Number of the first line in its file.

    Raises:
        RecordError: It is no text, or a line is no history line; the message begins with its number.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{first} is no text ({error})") from error
    lines: list[HistoryLine] = []
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=first):
        if not line.endswith("\n"):
            break
        try:
            lines.append(build(HistoryLine, parse_json(line), "line"))
        except RecordError as error:
            raise RecordError(f"{number} is no history line: {str(error).rstrip('.')}") from error
        if len(lines) > 1 and lines[-1].iteration <= lines[-2].iteration:
            raise RecordError(f"{number} goes back to iteration {lines[-1].iteration} after {lines[-2].iteration}")
    return lines
