"""What a part writes down: one line of JSON a row, as soon as it is known, so that a killed part keeps its rows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from paperbench.bench.words import in_words

Row = dict[str, Any]


class Recorder:
    """Writes rows until its time is over.

    Args:
        stream: Where to.
        deadline: By `clock`; what comes later is left out.
        clock: Seconds.
        is_usable: Asked after an error; False if the device can compute no more, so that going on is of no use.
        release: Called after an error, to give memory back.
    """

    def __init__(
        self,
        stream: TextIO,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
        is_usable: Callable[[], bool] = lambda: True,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream, self.deadline, self._clock = stream, deadline, clock
        self._is_usable, self._release = is_usable, release
        self._rows = 0

    @property
    def seconds_left(self) -> float:
        """Until the deadline; negative after it."""
        return self.deadline - self._clock()

    def add(self, row: Mapping[str, Any]) -> None:
        """Write down a row."""
        self._write({"row": dict(row)})
        self._rows += 1

    def leave_out(self, what: Mapping[str, Any], why: str) -> None:
        """Write down that something was not measured."""
        self._write({"left_out": dict(what), "why": why})

    def attempt(self, what: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]], needs: float = 0.0) -> bool:
        """Measure one thing and write it down, or why that failed.

        Args:
            what: Describes it; part of the row.
            needs: Seconds that it will take, if that is known.

        Returns:
            Whether there is a figure.

        Raises:
            Exception: What `measure` raised, if the device cannot be used any more.
        """
        if self.seconds_left < needs:
            self.leave_out(what, "no time left")
            return False
        failed: Exception | None = None
        try:
            found = measure()
        except Exception as error:
            failed = error.with_traceback(None)  # whose frames would keep the memory
        if failed is None:
            self.add({**what, **found})
            return True
        self.leave_out(what, in_words(failed, 300))
        if not self._is_usable():
            raise failed
        self._release()
        return False

    def end(self) -> None:
        """Say that the part came to its end."""
        self._write({"end": True})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(finite(line), allow_nan=False) + "\n")
        self._stream.flush()


def finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, which JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


class Recorded:
    """What a part has written so far.

    Attributes:
        rows: What was measured.
        left_out: What was not: `what` and `why`.
        is_complete: Whether the part came to its end.
    """

    def __init__(self, file: Path) -> None:
        self.rows: list[Row] = []
        self.left_out: list[Row] = []
        self.is_complete = False
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for text in lines:
            try:
                line = json.loads(text)
            except ValueError:  # the last line of a process that was killed
                continue
            if "row" in line:
                self.rows.append(line["row"])
            elif "left_out" in line:
                self.left_out.append({"what": line["left_out"], "why": line["why"]})
            else:
                self.is_complete = True
