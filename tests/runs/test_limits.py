"""Signals that stop a command."""

from __future__ import annotations

import os
import signal

import pytest

from paperbench.runs.limits import REPEAT_SECONDS, Limits, stopping_on_signals


def test_second_signal_exits_unless_it_repeats_the_first() -> None:
    before, limits, now = signal.getsignal(signal.SIGTERM), Limits(), [0.0]
    with stopping_on_signals(limits, clock=lambda: now[0]):
        for _ in range(3):  # as from `timeout`, or passed on to a process that has had it
            os.kill(os.getpid(), signal.SIGTERM)
        assert limits.signal == signal.SIGTERM
        now[0] += REPEAT_SECONDS
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
