"""What is looked at while a run trains: its lines of history, and whether its numbers are finite.

The host never waits for the device to learn a training loss. A line that is due is begun: its numbers are on their way,
and the state is copied on the device. It is finished when the numbers have arrived, some steps later on a GPU and at
once on a CPU. If they turn out not to be finite, the copy is loaded and the steps since are void: the run ends where
and as it would have ended if the host had waited.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence
from paperbench.training.divergence import Origin, find_in_test, find_in_training, is_sound
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.snapshot import Snapshot
from paperbench.training.trainer import Trainer
from paperbench.training.window import PendingMetrics, WindowMetrics

GoOn = Callable[[], None]
"""Called before each batch of a test and each step of a search. May raise to break off; the line is then still due."""


class Watch:
    """Writes the history of a run, and finds where it diverged.

    Args:
        run: What is trained.
        trainer: It, in the state that history and divergence are of.
        history, best_test_error, divergence: Of the sessions before.
        farther_back: States, the newest first, that a search which begins at some iteration may go back to if that of
            the last line will not do.
        began: When the run would have begun, on the steady clock, had it never paused.
        told: Is given each line.
        warn: Told what the user should know but need not act on.

    Attributes:
        history: All lines so far.
        best_test_error: The lowest moving-average error so far.
        divergence: Where the run's numbers broke; None while they have not.
    """

    def __init__(
        self,
        run: PlannedRun,
        trainer: Trainer,
        history: Iterable[HistoryLine],
        best_test_error: float | None,
        divergence: Divergence | None,
        *,
        farther_back: Callable[[int], Iterable[dict[str, Any]]],
        began: float,
        told: Callable[[HistoryLine], None],
        warn: Callable[[str], None],
    ) -> None:
        self._run, self._trainer = run, trainer
        self.history, self.best_test_error, self.divergence = list(history), best_test_error, divergence
        self._farther_back, self._began, self._told, self._warn = farther_back, began, told, warn
        self._last_line = Snapshot(trainer)  # the state at the last line; the loss up to it is finite
        self._next_line: Snapshot | None = None  # the state at the line that is pending
        self._pending: PendingMetrics | None = None

    def look(self, go_on: GoOn) -> None:
        """Finish a line whose numbers have arrived, and begin the one that is due, if any. For after each step.

        A line with a test is finished at once. A loss that is not finite ends the run: no later iteration can mend it.
        """
        if self._pending is not None and (self._pending.is_ready or self._is_line_due()):
            self.settle(go_on)
        if not self._is_line_due():
            return
        if self._is_test_due():
            self._finish_with_test(go_on)
            return
        if self._next_line is None:
            self._next_line = Snapshot(self._trainer)
        else:
            self._next_line.take(self._trainer)
        self._pending = self._trainer.close_window()
        if self._pending.is_ready:
            self.settle(go_on)

    def settle(self, go_on: GoOn) -> None:
        """Finish the line that is pending, if any; wait for its numbers. Before anything is made of the state."""
        if self._pending is None or self._next_line is None:
            return
        window, self._pending = self._pending.get(), None
        if math.isfinite(window.loss):
            self._add(self._next_line.iteration, window)
            self._last_line, self._next_line = self._next_line, self._last_line
        else:
            self._trainer.load_state_dict(self._next_line.state())
            self._diverge(go_on)

    @property
    def is_settled(self) -> bool:
        """Whether there is no line whose numbers are on their way."""
        return self._pending is None

    def note_test_error(self, error: float) -> float:
        """Take in a moving-average error; returns the lowest so far."""
        best = error if self.best_test_error is None else min(error, self.best_test_error)
        self.best_test_error = best
        return best

    def diverge_in_test(self, go_on: GoOn) -> None:
        """Find where the net's outputs stop being finite, of one that only its test has shown to be broken."""
        self.divergence = self._located(find_in_test(self._trainer, go_on))

    def _is_line_due(self) -> bool:
        """Whether one has not been begun: of this iteration, or one that was interrupted while it was tested."""
        iteration = self._trainer.iteration
        if self._pending is not None and self._next_line is not None:
            begun = self._next_line.iteration
        else:
            begun = self.history[-1].iteration if self.history else 0
        return iteration > begun and (iteration % self._run.recipe.monitoring.log_every == 0 or self._is_test_due())

    def _is_test_due(self) -> bool:
        iteration = self._trainer.iteration
        return iteration % self._run.recipe.monitoring.test_every == 0 or iteration == self._run.recipe.iterations

    def _finish_with_test(self, go_on: GoOn) -> None:
        window = self._trainer.window_metrics()
        if not math.isfinite(window.loss):
            self._diverge(go_on)
            return
        tested = self._trainer.test(go_on)
        self.note_test_error(tested.error)
        self._add(self._trainer.iteration, window, tested)
        self._trainer.begin_window()
        self._last_line.take(self._trainer)

    def _diverge(self, go_on: GoOn) -> None:
        """End the run at the present iteration, by whose line the loss is not finite."""
        self.divergence = self._located(self._origin(go_on))
        self._add(self._trainer.iteration, None)
        self._trainer.begin_window()

    def _add(self, iteration: int, window: WindowMetrics | None, tested: EvaluationMetrics | None = None) -> None:
        line = HistoryLine(
            iteration=iteration,
            epoch=round(iteration * self._run.recipe.batch_size / len(self._run.dataset.x_train), 4),
            lr=self._run.recipe.rate_at(iteration - 1),
            train_loss=window.loss if window else None,
            train_error=window.error if window else None,
            test_loss=tested.loss if tested and math.isfinite(tested.loss) else None,
            test_error=tested.error if tested else None,
            seconds=round(time.monotonic() - self._began, 3),
        )
        self.history.append(line)
        self._told(line)

    def _origin(self, go_on: GoOn) -> Origin | None:
        """Repeat the last iterations from a sound state, and leave the trainer as it is."""
        self._warn("a training loss is not finite; repeating the last iterations to find where that began")
        present = Snapshot(self._trainer)
        try:
            for earlier in chain([self._last_line.state()], self._farther_back(present.iteration)):
                self._trainer.load_state_dict(earlier)
                if is_sound(self._trainer):
                    return find_in_training(self._trainer, present.iteration, go_on)
            return None
        finally:
            self._trainer.load_state_dict(present.state())

    def _located(self, origin: Origin | None) -> Divergence:
        iteration = origin.iteration if origin else self._trainer.iteration
        rate = self._run.recipe.rate_at(iteration - 1)
        return Divergence(iteration, rate, origin.phase if origin else None, origin.module if origin else None)
