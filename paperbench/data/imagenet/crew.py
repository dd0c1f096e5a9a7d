"""Threads that carry out what is ordered, and give the results in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 64
"""Items that are taken ahead, for each thread."""


class Order(Generic[R]):
    """A function that is to be called, and its result once that is there."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._results: SimpleQueue[tuple[list[R], BaseException | None]] = SimpleQueue()

    def carry_out(self) -> None:
        try:
            self._results.put(([self._function()], None))
        except BaseException as error:  # which whoever waits raises, or they would wait for ever
            self._results.put(([], error))

    def result(self) -> R:
        """Wait for the result, once. Raises what the function raised."""
        values, error = self._results.get()
        if error:
            raise error
        return values[0]


class Crew:
    """Threads that carry out orders one after the other, until they are dismissed.

    Attributes:
        worked: Seconds of processor time so far.
    """

    def __init__(self, threads: int) -> None:
        self._orders: SimpleQueue[Order[Any] | None] = SimpleQueue()
        self.worked, self._is_dismissed = 0.0, False
        self._lock = Lock()  # taken by threads only: a signal could interrupt others before it is released
        # Python's exit waits for threads that are no daemons before it closes what uses them, and then for ever.
        self.threads = [Thread(target=self._work, name=f"crew {n + 1}", daemon=True) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def order(self, function: Callable[[], R]) -> Order[R]:
        """Have a function called. Without threads, `catch_up` does so."""
        order = Order(function)
        self._orders.put(order)
        return order

    def catch_up(self) -> None:
        """Carry out all orders in this thread."""
        self._orders.put(None)
        self._work()

    def _work(self) -> None:
        while (order := self._orders.get()) and not self._is_dismissed:
            began = time.thread_time()
            order.carry_out()
            with self._lock:
                self.worked += time.thread_time() - began

    def dismiss(self) -> None:
        """End the threads, each after its current order."""
        self._is_dismissed = True
        for _ in self.threads:
            self._orders.put(None)
        if current_thread() not in self.threads:  # else one of them collects garbage, and the others may wait for it
            for thread in self.threads:
                thread.join()


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield the function's results in order. Only a few items at a time are taken and worked on."""
    orders, crew = deque[Order[R]](), Crew(threads)
    try:
        for item in items:
            orders.append(crew.order(partial(function, item)))
            if len(orders) > _AHEAD * threads:
                yield orders.popleft().result()
        for order in orders:
            yield order.result()
    finally:
        crew.dismiss()
