"""`python -m paperbench.executors ...`: `paperbench ...` in a process that gets SIGTERM when its stdin is closed.

The executor holds the other end of that pipe. Even if the executor is killed, the process saves its run and ends.
"""

from __future__ import annotations

import os
import runpy
import signal
from threading import Thread


def _stop_with_the_executor() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Thread(target=_stop_with_the_executor, daemon=True).start()
    runpy.run_module("paperbench", run_name="__main__", alter_sys=True)
