"""The history of a run: one JSON line for each iteration that is looked at."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from paperbench.runs.record import RecordError, build, parse_json


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
    parts = data.split(b"\n", lines)
    if len(parts) <= lines:
        return None
    return hashlib.sha256(data[: len(data) - len(parts[-1])]).hexdigest()


def parse_history(data: bytes) -> list[HistoryLine]:
    """All complete lines; one cut short by a killed process is left out.

    Raises:
        RecordError: It is no text, or a line is no history line; the message begins with its number.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"1 is no text ({error})") from error
    lines: list[HistoryLine] = []
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        if not line.endswith("\n"):
            break
        try:
            lines.append(build(HistoryLine, parse_json(line), "line"))
        except RecordError as error:
            raise RecordError(f"{number} is no history line: {str(error).rstrip('.')}") from error
        if len(lines) > 1 and lines[-1].iteration <= lines[-2].iteration:
            raise RecordError(f"{number} goes back to iteration {lines[-1].iteration} after {lines[-2].iteration}")
    return lines
