"""The process of one part: `python -m paperbench.bench.anatomy.worker JOB`."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time

from paperbench.bench.anatomy.job import Job


def main(text: str) -> None:
    """Carry out a job given as JSON."""
    started = time.monotonic()
    end_with(os.getppid())
    job = Job.from_json(text)
    from paperbench.bench.anatomy.context import Context

    with open(job.output, "a", encoding="utf-8") as stream:
        context = Context.of(job, stream, started + job.seconds)
        importlib.import_module(job.module).measure(context)
        context.recorder.end()


def end_with(parent: int) -> None:
    """End this process soon after its parent has, so that a killed command leaves nothing on the GPU."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
