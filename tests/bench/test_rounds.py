from __future__ import annotations

import itertools

import pytest

from paperbench.bench.rounds import Runner, Slot, interleave, steps_for, timed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake(Runner):
    """A runner whose untimed parts take time too, which must not be counted."""

    def __init__(self, name: str, step_seconds: float, clock: Clock, log: list[str]) -> None:
        self.name, self.step_seconds, self.clock, self.log = name, step_seconds, clock, log
        self.under_way = 0.0

    def begin(self) -> None:
        self.log.append(f"{self.name} begins")
        self.clock.now += 100
        self.under_way = 1000.0  # left on the device by untimed steps

    def step(self) -> None:
        self.under_way += self.step_seconds

    def wait(self) -> None:
        self.clock.now += self.under_way
        self.under_way = 0.0

    def end(self) -> None:
        self.clock.now += 100


def test_only_the_steps_are_timed_and_the_device_is_waited_for_before_and_after() -> None:
    clock = Clock()
    assert timed(Fake("a", 0.5, clock, []), 4, clock) == pytest.approx(2.0)


def test_rounds_are_filled_with_whole_steps_but_have_a_least_number_of_them() -> None:
    assert [steps_for(1.5, step, 20) for step in (0.01, 0.07, 0.4)] == [150, 22, 20]


def test_all_take_turns_and_each_round_begins_one_later() -> None:
    clock, log, reported = Clock(), [], []  # type: tuple[Clock, list[str], list[int]]
    slots = [Slot(Fake(name, seconds, clock, log), 2) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    interleave(slots, 4, report=reported.append, clock=clock)
    assert "".join(line[0] for line in log) == "abc" + "bca" + "cab" + "abc"
    assert [slot.seconds for slot in slots] == [[2.0] * 4, [4.0] * 4, [6.0] * 4]
    assert reported == [1, 2, 3, 4]


def test_one_that_breaks_has_no_more_turns_and_the_others_go_on() -> None:
    clock, log = Clock(), []  # type: tuple[Clock, list[str]]
    breaks, holds = Fake("breaks", 1.0, clock, log), Fake("holds", 1.0, clock, log)
    steps = itertools.count()

    def step() -> None:
        if next(steps) == 3:
            raise MemoryError

    breaks.step = step  # type: ignore[method-assign]
    slots = [Slot(breaks, 2), Slot(holds, 2)]
    interleave(slots, 3, report=lambda number: None, clock=clock)
    assert isinstance(slots[0].error, MemoryError)
    assert slots[0].error.__traceback__ is None  # its frames would hold tensors
    assert (len(slots[0].seconds), len(slots[1].seconds)) == (1, 3)
    assert log.count("breaks begins") == 2


def test_no_round_is_begun_too_late() -> None:
    clock = Clock()
    slot = Slot(Fake("a", 1.0, clock, []), 1)
    interleave([slot], 9, report=lambda number: None, is_late=lambda: len(slot.seconds) == 2, clock=clock)
    assert len(slot.seconds) == 2
