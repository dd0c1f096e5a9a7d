"""Progress of runs: on a terminal one line that is rewritten and one that remains per run, elsewhere plain lines.

Runs that take turns are told apart by their numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TextIO

from paperbench.errors import count, duration
from paperbench.runs.history import HistoryLine
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun, places
from paperbench.runs.record import Record
from paperbench.streams import Clock, StatusLine

SECONDS_BETWEEN_LINES = 10.0
SECONDS_OF_LONG_END = 60.0


@dataclass
class _Training:
    """A run that is being trained.

    Attributes:
        here: Number of iterations done, `done` of them in this session, which ends at `last`.
        started, last_line: Times.
        tested: The last test error, in words, or that the final test has begun.
    """

    run: PlannedRun
    here: int
    last: int
    started: float
    last_line: float
    done: int = 0
    tested: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def seconds_left(self, now: float) -> float:
        """Return how long its iterations will take, going by those of this session; 0 before the first."""
        return (self.last - self.here) * (now - self.started) / self.done if self.done else 0.0


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
        self._to_do = {run.id: iterations for run, iterations in to_do}  # without those that have begun
        self._numbers: dict[str, int] = {}
        self._active: dict[str, _Training] = {}
        self._done, self._started = 0, self._clock()
        self._engine = ""
        self._take_turns = False  # or have done so
        self._skipped: dict[str, list[PlannedRun]] = {}  # by the reason; not reported yet

    def skipped(self, run: PlannedRun, why: str) -> None:
        if self._active.pop(run.id, None):
            self._say_of(run, why)
        else:
            self._skipped.setdefault(why, []).append(run)

    def all_done(self) -> None:
        """Report the skipped runs, those with the same reason in one line."""
        skipped, self._skipped = self._skipped, {}
        for why, runs in skipped.items():
            if len(runs) == 1:
                self._say_of(runs[0], why)
                continue
            first = len(self._numbers) + 1
            for run in runs:
                self._begin(run)
            self.say(f"[{first}-{len(self._numbers)}/{self._runs}] {len(runs):,} runs: {why}")

    def failed(self, run: PlannedRun, why: str) -> None:
        self._begin(run)
        self._active.pop(run.id, None)
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
        self._begin(run)
        self._active[run.id] = _Training(run, iteration, last_iteration, self._clock(), self._clock())
        self._take_turns = self._take_turns or len(self._active) > 1
        if not self._is_terminal:
            iterations = run.recipe.iterations
            of_all = f" of {iterations:,}" if last_iteration < iterations else ""
            resumed = f", resumed at {iteration:,}" if iteration else ""
            self.say(f"{self._name(run)}: to iteration {last_iteration:,}{of_all}{resumed}")
        if (text := f"engine {engine}: {reason}") != self._engine:
            self._engine = text
            self.say(f"    {text}")
        self._line.show(self._status)

    def stepped(self, run: PlannedRun, iteration: int) -> None:
        training = self._active[run.id]
        self._done += 1
        training.done += 1
        training.here = iteration
        self._line.show(self._status, now=False)

    def logged(self, run: PlannedRun, line: HistoryLine) -> None:
        training, now = self._active[run.id], self._clock()
        tested = [f"test error {line.test_error:.2f} %"] if line.test_error is not None else []
        trained = ["train loss not finite"]
        if line.train_loss is not None:
            trained = [f"train loss {line.train_loss:.4f}", f"train error {line.train_error:.2f} %"]
        training.tested = tested or training.tested
        training.facts = [*training.tested, *trained, f"lr {line.lr:.3g}"]
        self._line.show(self._status)
        is_early = not tested and now - training.last_line < SECONDS_BETWEEN_LINES
        if self._is_terminal or is_early:
            return
        training.last_line = now
        facts = [*tested, *trained, f"lr {line.lr:.3g}"]
        if training.done:  # otherwise the line belongs to an interrupted session
            images = training.done * run.recipe.batch_size
            left, how = training.seconds_left(now), "" if self._take_turns else ", one after another"
            facts.append(f"{images / (now - training.started):,.0f} images/s")
            facts.append(f"{_clock(left)} left in this run, {self._left_in_all()} in all runs{how}")
        self._say_below(run, f"{line.iteration:>6,}/{run.recipe.iterations:,}  {', '.join(facts)}")

    def finishing(self, run: PlannedRun, test_seconds: float | None) -> None:
        what, seconds = _final_work(run, test_seconds)
        is_long = seconds is not None and seconds >= SECONDS_OF_LONG_END
        if is_long or not self._is_terminal:
            self._say_below(run, f"{what}{f' (about {duration(seconds)})' if seconds and is_long else ''}")
        training = self._active[run.id]
        training.tested = training.facts = ["final test"]
        self._line.show(self._status)

    def ended(self, run: PlannedRun, record: Record) -> None:
        at, iterations, last = f"iteration {record.iteration:,}", run.recipe.iterations, self._active.pop(run.id).last
        if result := record.result:
            outcome = f"test error {result.test_error:.2f} %"
            more = f" (moving averages {result.moving_average_test_error:.2f} %)"
        elif record.divergence:
            outcome, more = "diverged", f": {record.divergence}"
        elif record.iteration == iterations:
            outcome, more = f"stopped after {at}", ", before its final test; the same command runs the test"
        elif record.iteration == last:
            outcome, more = f"paused at {at} of {iterations:,}", " as requested; a later --stop-at, or none, resumes it"
        else:
            outcome, more = f"paused at {at} of {iterations:,}", "; the same command resumes it"
        if self._is_terminal:
            self._say_of(run, f"{outcome}, took {_clock(record.seconds)}")
        else:
            self._say_below(run, f"{outcome}{more}, took {_clock(record.seconds)}")

    def _begin(self, run: PlannedRun) -> None:
        """Give a run the next number, after the skipped ones, unless it has one."""
        self.all_done()
        self._to_do.pop(run.id, None)
        self._numbers.setdefault(run.id, len(self._numbers) + 1)

    def _name(self, run: PlannedRun, is_short: bool = False) -> str:
        of_run = places(run.cells)
        what = f"{', '.join(of_run)} ({run.net_name}, seed {run.seed}, run {run.id})"
        return f"[{self._numbers[run.id]}/{self._runs}] {f'{of_run[0]}, seed {run.seed}' if is_short else what}"

    def _say_below(self, run: PlannedRun, text: str) -> None:
        """Print a line of a run, which follows the one with its name unless runs take turns."""
        self.say(f"[{self._numbers[run.id]}/{self._runs}] {text}" if self._take_turns else f"    {text}")

    def _say_of(self, run: PlannedRun, text: str) -> None:
        """Print how a run ended."""
        self._begin(run)
        self.say(f"{self._name(run, is_short=self._is_terminal)}: {text}")

    def _status(self) -> list[str]:
        """What the line of the terminal says of the runs that are being trained, the most important first."""
        facts, active = [f"{self._left_in_all()} left"], [*self._active.values()]
        if len(active) == 1:
            (one,) = active
            where = f"{one.here:,}/{one.run.recipe.iterations:,}"
            return [*facts, self._name(one.run, is_short=True), where, *one.facts]
        numbered = [(f"[{self._numbers[one.run.id]}]", one) for one in active]
        facts += [f"{number} {100 * one.here / one.run.recipe.iterations:.0f} %" for number, one in numbered]
        return facts + [f"{number} {fact}" for number, one in numbered for fact in one.tested]

    def _left_in_all(self) -> str:
        """The time left for all runs, "?" before the first iteration."""
        if not self._done:
            return "?"
        now, active = self._clock(), self._active.values()
        iterations = sum(one.last - one.here for one in active) + sum(self._to_do.values())
        in_all = iterations * (now - self._started) / self._done
        return _clock(max([in_all, *(one.seconds_left(now) for one in active)]))


def _final_work(run: PlannedRun, test_seconds: float | None) -> tuple[str, float | None]:
    """Return what is averaged and tested at the end, and how long it takes, going by a test of this length."""
    from paperbench.models.building import layout, macs  # with torch, which has been loaded when a run is shown

    recipe, dataset = run.recipe, run.dataset
    sizes = [one.crop for one in recipe.evaluations.values()] or [run.side]
    tests = {1: "", 2: " twice"}.get(len(sizes), f" {len(sizes)} times")
    what = f"testing {count(dataset.num_test, 'image')}{tests}"
    images = [(dataset.num_test, size) for size in sizes]
    has_averages = any(name.endswith("running_mean") for name in layout(run.net).state_dict())
    if recipe.batch_norm.at_test == "reestimated" and has_averages:
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
