"""How a run goes, told while it goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from tqdm import tqdm

from paperbench.errors import count
from paperbench.runs.history import HistoryLine
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.specs.recipe import Recipe

SECONDS_BETWEEN_LINES = 10.0


class _Stream:
    """A stream that nobody may be reading any more: a closed terminal must not end a training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress(Observer):
    """Prints how one run after another goes.

    Args:
        to_do: The runs that the command has to do, and the iterations that each lacks.
        runs: Number of runs of the command.
        stream: Where to print.
    """

    def __init__(self, to_do: Iterable[tuple[PlannedRun, int]], runs: int, stream: TextIO) -> None:
        self._runs, self._stream = runs, _Stream(stream)
        self._lacking = {run.id: iterations for run, iterations in to_do}  # of the runs after the present one
        self._number, self._run_id = 0, ""
        self._recipe: Recipe | None = None
        self._here = self._last = self._done = self._run_done = 0
        self._started = self._run_started = self._spoke = time.monotonic()
        self._bar: Any = None
        self._engine = ""

    def skipped(self, run: PlannedRun, why: str) -> None:
        """A run that is not worked on: there already, or busy elsewhere; perhaps no longer worked on."""
        self._say_of(run, f": {why}")

    def failed(self, run: PlannedRun, why: str) -> None:
        """A run that cannot go on."""
        self._say_of(run, f": error: {why}")

    def waiting(self, runs: int, seconds: float) -> None:
        held = count(runs, "other run")
        self.say(f"waiting up to {seconds:.0f} s for a sign of life from the processes that hold {held}")

    def warned(self, run: PlannedRun, text: str) -> None:
        """Something about a run that changes little."""
        self.say(f"    {run.id}: {text}")

    def _say_of(self, run: PlannedRun, text: str) -> None:
        self._close_bar()
        self._lacking.pop(run.id, None)
        if run.id != self._run_id:
            self._number += 1
            self._run_id = run.id
        cells = ", ".join(run.cells)
        self.say(f"[{self._number}/{self._runs}] {cells} ({run.net_name}, seed {run.seed}, run {run.id}){text}")

    def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
        self._here, self._last, self._recipe = iteration, last_iteration, run.recipe
        self._run_done, self._run_started, self._spoke = 0, time.monotonic(), time.monotonic()
        of_all = f" of {run.recipe.iterations:,}" if last_iteration < run.recipe.iterations else ""
        continued = f", continued at {iteration:,}" if iteration else ""
        self._say_of(run, f": to iteration {last_iteration:,}{of_all}{continued}")
        if (said := f"engine {engine}: {reason}") != self._engine:  # once, until it changes
            self._engine = said
            wait = "; the first step compiles the net, which can take minutes" if engine == "compile" else ""
            self.say(f"    {said}{wait}")
        if self._stream.isatty():
            total = max(last_iteration, iteration)
            self._bar = tqdm(
                total=total, initial=iteration, unit="it", leave=False, file=self._stream, dynamic_ncols=True
            )

    def stepped(self, iteration: int) -> None:
        self._done += 1
        self._run_done += 1
        self._here = iteration
        if self._bar is not None:
            self._bar.update()

    def logged(self, line: HistoryLine) -> None:
        facts = [f"lr {line.lr:.3g}"]
        if line.train_loss is None:
            facts.append("train loss not finite")
        else:
            facts.append(f"train loss {line.train_loss:.4f}, error {line.train_error:.2f} %")
        if line.test_error is not None:
            facts.append(f"test error {line.test_error:.2f} %")
        if self._bar is not None:
            self._bar.set_postfix_str(f"all {_clock(self._seconds_left_in_all())}, {', '.join(facts)}")
        elif line.test_error is not None or time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            if self._run_done and self._recipe:  # else the line is one that an interrupted session owed
                seconds = (time.monotonic() - self._run_started) / self._run_done
                left = (self._last - self._here) * seconds
                facts.append(f"{self._recipe.batch_size / seconds:,.0f} images/s")
                facts.append(f"{_clock(left)} left, {_clock(self._seconds_left_in_all())} in all")
            self.say(f"    {line.iteration:>6,}/{self._last:,}  {', '.join(facts)}")

    def finishing(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str("averaging BN statistics, testing")
        else:
            self.say("    averaging BN statistics over the training set, testing")

    def ended(self, record: Record) -> None:
        self._close_bar()
        if record.result:
            result = record.result
            outcome = f"test error {result.test_error:.2f} % (moving averages {result.moving_average_test_error:.2f} %)"
        elif record.divergence:
            outcome = f"diverged: {record.divergence}"
        elif self._recipe and record.iteration == self._recipe.iterations:
            outcome = f"stopped after iteration {record.iteration:,}, before its final test; the same command makes it"
        elif record.iteration == self._last:
            outcome = f"paused at iteration {record.iteration:,} as asked; a later --stop-at, or none, continues it"
        else:
            outcome = f"paused at iteration {record.iteration:,}; the same command continues it"
        self.say(f"    {outcome}, {_clock(record.seconds)} in all sessions")

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _seconds_left_in_all(self) -> float:
        elapsed = time.monotonic() - self._started
        remaining = self._last - self._here + sum(self._lacking.values())
        return remaining * elapsed / max(self._done, 1)

    def say(self, text: str) -> None:
        """A line of text."""
        if self._bar is not None:
            self._bar.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
