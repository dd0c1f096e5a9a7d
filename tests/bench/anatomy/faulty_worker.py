"""A part's process that goes wrong as the name of its net says; it stands in for the real one, and needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from paperbench.bench.anatomy.job import Job
from paperbench.bench.anatomy.recorder import Recorder

job = Job.from_json(sys.argv[1])
with open(job.output, "a", encoding="utf-8") as stream:
    recorder = Recorder(stream, time.monotonic() + job.seconds)
    recorder.add({"before": job.model})
    match job.model:
        case "hang":
            print("waiting for a kernel that never ends", flush=True)
            print("a warning of some library", file=sys.stderr, flush=True)
            time.sleep(600)
        case "hang with a child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            recorder.add({"child": child.pid})
            time.sleep(600)
        case "abort":
            os.abort()
        case "raise":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case "raise with a path":
            raise RuntimeError("cannot read 'a/folder/of/mine/file.py' at 3 images/s")
        case "silent end":
            sys.exit(0)
        case "half a line":
            stream.write(json.dumps({"row": {"half": 1}})[:9])
            stream.flush()
            os.abort()
        case _:
            recorder.end()
