"""Progress of runs: on a terminal one line that is rewritten and one that remains per run, elsewhere plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TextIO

from paperbench.architecture import macs
from paperbench.errors import count, duration
from paperbench.runs.history import HistoryLine
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.streams import Clock, StatusLine

SECONDS_BETWEEN_LINES = 10.0
SECONDS_OF_LONG_END = 60.0


class Progress(Observer):
    """Prints the progress of the runs of a command.

    Args:
        to_do: The runs to do, each with the number of iterations to do.
        runs: Number of runs of the command, finished ones included.
        stream: Where to print.
    """

    def __init__(
        self, to_do: Iterable[tuple[PlannedRun, int]], runs: int, stream: TextIO, clock: Clock = time.monotonic
    ) -> None:
        self._runs, self._line, self._clock = runs, StatusLine(stream, clock), clock
        self.say, self._is_terminal = self._line.say, self._line.is_terminal
        self._to_do = {run.id: iterations for run, iterations in to_do}  # without the current run
        self._number = 0
        self._run: PlannedRun | None = None
        self._here = self._last = self._all = self._done = self._run_done = 0
        self._started = self._run_started = self._last_line = self._clock()
        self._tested: list[str] = []
        self._facts: list[str] = []
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
        self.say(f"waiting up to {seconds:.0f} s to see whether the processes holding {held} are still alive")

    def warned(self, run: PlannedRun, text: str) -> None:
        self.say(f"    {run.id}: {text}")

    def checking(self, run: PlannedRun, engine: str, processes: int) -> None:
        self._begin(run)
        others = f"in {processes} processes with those of eager in one" if processes > 1 else "with eager ones"
        self.say(f"    {run.id}: comparing the first steps of engine {engine} {others}")

    def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
        self._here, self._last = iteration, last_iteration
        self._all = run.recipe.iterations
        self._run_done = 0
        self._run_started = self._last_line = self._clock()
        self._begin(run)
        if not self._is_terminal:
            of_all = f" of {self._all:,}" if last_iteration < self._all else ""
            resumed = f", resumed at {iteration:,}" if iteration else ""
            self.say(f"{self._name(run)}: to iteration {last_iteration:,}{of_all}{resumed}")
        if (text := f"engine {engine}: {reason}") != self._engine:
            self._engine = text
            self.say(f"    {text}")
        self._tested, self._facts = [], []
        self._line.show(self._status)

    def stepped(self, iteration: int) -> None:
        self._done += 1
        self._run_done += 1
        self._here = iteration
        self._line.show(self._status, now=False)

    def logged(self, line: HistoryLine) -> None:
        tested = [f"test error {line.test_error:.2f} %"] if line.test_error is not None else []
        trained = ["train loss not finite"]
        if line.train_loss is not None:
            trained = [f"train loss {line.train_loss:.4f}", f"train error {line.train_error:.2f} %"]
        self._tested = tested or self._tested
        self._facts = [*self._tested, *trained, f"lr {line.lr:.3g}"]
        self._line.show(self._status)
        is_early = not tested and self._clock() - self._last_line < SECONDS_BETWEEN_LINES
        if self._is_terminal or is_early:
            return
        self._last_line = self._clock()
        facts = [*tested, *trained, f"lr {line.lr:.3g}"]
        if self._run_done and self._run:  # otherwise the line belongs to an interrupted session
            seconds = (self._clock() - self._run_started) / self._run_done
            facts.append(f"{self._run.recipe.batch_size / seconds:,.0f} images/s")
            left = (self._last - self._here) * seconds
            facts.append(f"{_clock(left)} left in this run, {self._left_in_all()} in all runs, one after another")
        self.say(f"    {line.iteration:>6,}/{self._all:,}  {', '.join(facts)}")

    def finishing(self, run: PlannedRun, test_seconds: float | None) -> None:
        what, seconds = _final_work(run, test_seconds)
        is_long = seconds is not None and seconds >= SECONDS_OF_LONG_END
        if is_long or not self._is_terminal:
            self.say(f"    {what}{f' (about {duration(seconds)})' if seconds and is_long else ''}")
        self._facts = ["final test"]
        self._line.show(self._status)

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

    def _begin(self, run: PlannedRun) -> None:
        """Make a run the current one, whose number counts up once, after the skipped ones."""
        self.all_done()
        self._to_do.pop(run.id, None)
        if self._run is None or run.id != self._run.id:
            self._number += 1
        self._run = run

    def _name(self, run: PlannedRun, is_short: bool = False) -> str:
        what = f"{', '.join(run.places)} ({run.net_name}, seed {run.seed}, run {run.id})"
        return f"[{self._number}/{self._runs}] {f'{run.places[0]}, seed {run.seed}' if is_short else what}"

    def _say_of(self, run: PlannedRun, text: str) -> None:
        """Print how a run ended."""
        self._begin(run)
        self.say(f"{self._name(run, is_short=self._is_terminal)}: {text}")

    def _status(self) -> list[str]:
        """What the line of the terminal says of the current run, the most important first."""
        name = [self._name(self._run, is_short=True)] if self._run else []
        return [f"{self._left_in_all()} left", *name, f"{self._here:,}/{self._all:,}", *self._facts]

    def _left_in_all(self) -> str:
        """The time left for all runs, "?" before the first iteration."""
        if not self._done:
            return "?"
        iterations = self._last - self._here + sum(self._to_do.values())
        return _clock(iterations * (self._clock() - self._started) / self._done)


def _final_work(run: PlannedRun, test_seconds: float | None) -> tuple[str, float | None]:
    """Return what is averaged and tested at the end, and how long it takes, going by a test of this length."""
    recipe, dataset = run.recipe, run.dataset
    sizes = [one.crop for one in recipe.evaluations.values()] or [run.side]
    tests = {1: "", 2: " twice"}.get(len(sizes), f" {len(sizes)} times")
    what = f"testing {count(dataset.num_test, 'image')}{tests}"
    images = [(dataset.num_test, size) for size in sizes]
    if recipe.batch_norm.at_test == "reestimated":
        what = f"averaging BN statistics over {count(dataset.num_train, 'training image')}, {what}"
        images.append((dataset.num_train, run.side))
    if test_seconds is None:
        return what, None
    last_test = dataset.num_test * macs(run.net, sizes[0])
    return what, test_seconds * sum(n * macs(run.net, size) for n, size in images) / last_test


def _clock(seconds: float) -> str:
    """Format a duration as m:ss or h:mm:ss."""
    whole = round(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return minutes if whole < 3600 else f"{whole // 3600}:{minutes:>05}"
