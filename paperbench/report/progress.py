"""Progress of runs: on a terminal one line that rewrites itself and one that remains per run, elsewhere plain lines."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from tqdm import tqdm

from paperbench.errors import count, duration, one_line
from paperbench.report.grid import MIN_WIDTH
from paperbench.runs.history import HistoryLine
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.streams import Stream

SECONDS_BETWEEN_LINES = 10.0
SECONDS_OF_LONG_END = 60.0
BAR_WIDTH = 10


class Progress(Observer):
    """Prints the progress of the runs of a command.

    Args:
        to_do: The runs to do, each with the number of iterations to do.
        runs: Number of runs of the command, finished ones included.
        stream: Where to print.
    """

    def __init__(self, to_do: Iterable[tuple[PlannedRun, int]], runs: int, stream: TextIO) -> None:
        self._runs, self._stream = runs, Stream(stream)
        self._is_terminal = self._stream.isatty()
        self._to_do = {run.id: iterations for run, iterations in to_do}  # without the current run
        self._number = 0
        self._run: PlannedRun | None = None
        self._here = self._last = self._all = self._done = self._run_done = 0
        self._started = self._run_started = self._last_line = time.monotonic()
        self._bar: Any = None
        self._facts: Sequence[str] = ()
        self._engine = ""
        self._skipped: dict[str, list[PlannedRun]] = {}  # by the reason; not reported yet

    def skipped(self, run: PlannedRun, why: str) -> None:
        self._skipped.setdefault(why, []).append(run)

    def all_done(self) -> None:
        """Report the skipped runs, those with the same reason in one line."""
        skipped, self._skipped = self._skipped, {}
        for why, runs in skipped.items():
            if len(runs) == 1:
                self._say_of(runs[0], why)
                continue
            first = self._number + 1
            for run in runs:
                self._begin(run)
            self.say(f"[{first}-{self._number}/{self._runs}] {len(runs):,} runs: {why}")

    def failed(self, run: PlannedRun, why: str) -> None:
        self._begin(run)
        self.say(f"{self._name(run)}: error: {why}")

    def waiting(self, runs: int, seconds: float) -> None:
        self.all_done()
        held = count(runs, "other run")
        self.say(f"waiting up to {seconds:.0f} s for a sign of life from the processes that hold {held}")

    def warned(self, run: PlannedRun, text: str) -> None:
        self.say(f"    {run.id}: {text}")

    def checking(self, run: PlannedRun, engine: str, processes: int) -> None:
        self._begin(run)
        others = f"in {processes} processes with those of eager in one" if processes > 1 else "with eager ones"
        self.say(f"    {run.id}: comparing the first steps of engine {engine} {others}{_wait(engine)}")

    def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
        self._here, self._last = iteration, last_iteration
        self._all = run.recipe.iterations
        self._run_done, self._run_started, self._last_line = 0, time.monotonic(), time.monotonic()
        self._begin(run)
        if not self._is_terminal:
            of_all = f" of {self._all:,}" if last_iteration < self._all else ""
            resumed = f", resumed at {iteration:,}" if iteration else ""
            self.say(f"{self._name(run)}: to iteration {last_iteration:,}{of_all}{resumed}")
        if (text := f"engine {engine}: {reason}") != self._engine:
            self._engine = text
            self.say(f"    {text}{_wait(engine) if iteration else ''}")
        if self._is_terminal:
            self._facts = ()
            bar_format, columns = self._layout()
            self._bar = tqdm(
                total=max(self._all, iteration),
                initial=iteration,
                leave=False,
                file=self._stream,
                position=0,  # tqdm would count bars that other code left open
                bar_format=bar_format,
                ncols=columns,
            )

    def stepped(self, iteration: int) -> None:
        self._done += 1
        self._run_done += 1
        self._here = iteration
        if self._bar is not None:
            self._bar.bar_format, self._bar.ncols = self._layout()
            self._bar.update(iteration - self._bar.n)

    def logged(self, line: HistoryLine) -> None:
        if self._bar is not None:
            tested = f"test {line.test_error:.1f}" if line.test_error is not None else ""
            tested = tested or next((fact for fact in self._facts if fact.startswith("test")), "")
            loss = ["loss not finite"]
            if line.train_loss is not None:
                loss = [f"loss {line.train_loss:.2f}", f"err {line.train_error:.1f}"]
            self._facts = [*loss, *filter(None, [tested])]
            self._refresh()
            return
        if line.test_error is None and time.monotonic() - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = time.monotonic()
        facts = [f"lr {line.lr:.3g}", "train loss not finite"]
        if line.train_loss is not None:
            facts[1] = f"train loss {line.train_loss:.4f}, error {line.train_error:.2f} %"
        if line.test_error is not None:
            facts.append(f"test error {line.test_error:.2f} %")
        if self._run_done and self._run:  # otherwise the line belongs to an interrupted session
            seconds = (time.monotonic() - self._run_started) / self._run_done
            facts.append(f"{self._run.recipe.batch_size / seconds:,.0f} images/s")
            left = (self._last - self._here) * seconds
            facts.append(f"{_clock(left)} left in this run, {self._left_in_all()} in all runs, one after another")
        self.say(f"    {line.iteration:>6,}/{self._all:,}  {', '.join(facts)}")

    def finishing(self, what: str, seconds: float | None) -> None:
        is_long = seconds is not None and seconds >= SECONDS_OF_LONG_END
        if self._bar is None or is_long:
            self.say(f"    {what}{f' (about {duration(seconds)})' if seconds and is_long else ''}")
        if self._bar is not None:
            self._facts = ["final test"]
            self._refresh()

    def ended(self, record: Record) -> None:
        at = f"iteration {record.iteration:,}"
        if result := record.result:
            outcome = f"test error {result.test_error:.2f} %"
            more = f" (moving averages {result.moving_average_test_error:.2f} %)"
        elif record.divergence:
            outcome, more = "diverged", f": {record.divergence}"
        elif record.iteration == self._all:
            outcome, more = f"stopped after {at}", ", before its final test; the same command runs the test"
        elif record.iteration == self._last:
            outcome, more = f"paused at {at} of {self._all:,}", " as requested; a later --stop-at, or none, resumes it"
        else:
            outcome, more = f"paused at {at} of {self._all:,}", "; the same command resumes it"
        if self._is_terminal and self._run:
            self._say_of(self._run, f"{outcome}, took {_clock(record.seconds)}")
        else:
            self.say(f"    {outcome}{more}, took {_clock(record.seconds)}")

    def say(self, text: str) -> None:
        """Print a text in lines of its own; on a terminal they fit its width."""
        if self._bar is not None:
            self._bar.clear()
        text = one_line(text)
        if self._is_terminal:
            text = textwrap.fill(text, self._width - 1, subsequent_indent="    ", break_on_hyphens=False)
        self._stream.write(f"{text}\n")
        self._stream.flush()

    @property
    def _width(self) -> int:
        """The terminal's width, which may change at any time, else $COLUMNS, else 80; at least `MIN_WIDTH`."""
        columns = 0
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._stream.fileno()).columns
        with suppress(ValueError):
            columns = columns or int(os.environ.get("COLUMNS", ""))
        return max(MIN_WIDTH, columns or 80)

    def _begin(self, run: PlannedRun) -> None:
        """Make a run the current one, whose number counts up once, after the skipped ones."""
        self._close_bar()
        self.all_done()
        self._to_do.pop(run.id, None)
        if self._run is None or run.id != self._run.id:
            self._number += 1
        self._run = run

    def _name(self, run: PlannedRun) -> str:
        what = f"{', '.join(run.places)} ({run.net_name}, seed {run.seed}, run {run.id})"
        return f"[{self._number}/{self._runs}] {what}"

    def _say_of(self, run: PlannedRun, text: str) -> None:
        """Print how a run ended."""
        self._begin(run)
        name = f"[{self._number}/{self._runs}] {run.places[0]}, seed {run.seed}"
        self.say(f"{name if self._is_terminal else self._name(run)}: {text}")

    def _layout(self) -> tuple[str, int]:
        """Return tqdm's format and width: the time left for all runs, the run, the facts that fit, and a bar."""
        columns = self._width - 1  # a full line would make some terminals start another
        run = f"[{self._number}/{self._runs}] {self._run.places[0]}, seed {self._run.seed}" if self._run else ""
        facts = [f"{self._left_in_all()} left", run, f"{self._here:,}/{self._all:,}", *self._facts]
        while len(facts) > 1 and len(", ".join(facts)) > columns - BAR_WIDTH - 3:
            facts.pop()
        return f"{', '.join(facts)} |{{bar:{BAR_WIDTH}}}|", columns

    def _refresh(self) -> None:
        self._bar.bar_format, self._bar.ncols = self._layout()
        self._bar.refresh()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _left_in_all(self) -> str:
        """The time left for all runs, "?" before the first iteration."""
        if not self._done:
            return "?"
        iterations = self._last - self._here + sum(self._to_do.values())
        return _clock(iterations * (time.monotonic() - self._started) / self._done)


def _clock(seconds: float) -> str:
    """Format a duration as m:ss or h:mm:ss."""
    whole = round(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return minutes if whole < 3600 else f"{whole // 3600}:{minutes:>05}"


def _wait(engine: str) -> str:
    return "; compiling can take minutes" if engine == "compile" else ""
