"""How a run goes, told while it goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any, TextIO

from tqdm import tqdm

from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.store import HistoryLine

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Prints what the executor reports about one run after another.

    Args:
        remaining: Iterations still to do in all runs of the command.
        runs: Number of runs of the command.
        stream: Where to print.
    """

    def __init__(self, remaining: int, runs: int, stream: TextIO) -> None:
        self._runs, self._stream = runs, stream
        self._remaining = remaining
        self._number = self._done = 0
        self._started = time.monotonic()
        self._run: PlannedRun
        self._last = self._here = 0
        self._spoke = self._run_started = 0.0
        self._run_done = 0
        self._bar: Any = None

    def skipped(self, run: PlannedRun, why: str) -> None:
        """A run that is not worked on: there already, or busy elsewhere."""
        self._number += 1
        self._say(f"[{self._number}/{self._runs}] {_title(run)}: {why}")

    def started(self, run: PlannedRun, iteration: int, last_iteration: int) -> None:
        self._number += 1
        self._run, self._here, self._last = run, iteration, last_iteration
        self._run_done, self._run_started, self._spoke = 0, time.monotonic(), time.monotonic()
        continued = f", continued at {iteration:,}" if iteration else ""
        goal = f"{last_iteration:,}"
        if last_iteration < run.recipe.iterations:
            goal += f" of {run.recipe.iterations:,}"
        self._say(f"[{self._number}/{self._runs}] {_title(run)}: to iteration {goal}{continued}")
        if self._stream.isatty():
            self._bar = tqdm(total=last_iteration, initial=iteration, unit="it", leave=False, file=self._stream)

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
            self._bar.set_postfix_str(f"{', '.join(facts)}, all {_clock(self._seconds_left_in_all())}")
        elif line.test_error is not None or time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            rate = self._run_done * self._run.recipe.batch_size / (time.monotonic() - self._run_started)
            left = (self._last - self._here) * (time.monotonic() - self._run_started) / self._run_done
            clocks = f"{_clock(left)} left, {_clock(self._seconds_left_in_all())} in all"
            self._say(f"    {line.iteration:>6,}/{self._last:,}  {', '.join(facts)}, {rate:,.0f} images/s, {clocks}")

    def finishing(self) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str("averaging BN statistics, testing")
        else:
            self._say("    averaging BN statistics over the training set, testing")

    def ended(self, record: Record) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if record.result:
            result = record.result
            outcome = f"test error {result.test_error:.2f} % (moving averages {result.moving_average_test_error:.2f} %)"
        elif record.status == "diverged":
            outcome = f"diverged: a loss is not finite at iteration {record.iteration:,}"
        elif record.iteration == self._last:
            outcome = f"paused at iteration {record.iteration:,} as asked; a later --stop-at, or none, continues it"
        else:
            outcome = f"paused at iteration {record.iteration:,}; the same command continues it"
        self._say(f"    {outcome}, {_clock(record.seconds)} in all sessions")

    def _seconds_left_in_all(self) -> float:
        elapsed = time.monotonic() - self._started
        return (self._remaining - self._done) * elapsed / max(self._done, 1)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _title(run: PlannedRun) -> str:
    return f"{', '.join(run.cells)} ({run.net_name}, seed {run.seed}, run {run.id})"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
