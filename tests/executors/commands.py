"""`paperbench run` of some cells in another process, whose workers can be found and whose results compared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paperbench.runs.store import Store
from tests.helpers import ROOT
from tests.runs.running import assert_same

SECONDS = 150.0
CELLS = ("original/resnet110", "preact/resnet110", "relu_only_preact/resnet110")


def arguments(specs: Path, results: Path, *more: str) -> list[str]:
    where = ("--tables", str(specs), "--results", str(results))
    return ["run", "table2", *where, "--profile", "smoke", "--device", "cpu", "--cells", *CELLS, *more]


class Command:
    """`paperbench run` of some cells, with one thread per process."""

    def __init__(self, specs: Path, results: Path, *more: str) -> None:
        self.results, self._log = results, results.with_name(f"{results.name} {time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "paperbench", *arguments(specs, results, *more)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        of_ray = {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled"}
        environment = {**os.environ, **of_ray, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def status(self) -> int:
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def has_saved(self, runs: int) -> bool:
        return len({path.parent for path in self.results.glob("runs/*/checkpoint*")}) >= runs

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended
                words = file.read_bytes().decode(errors="replace").split("\0")
                if "paperbench.executors" in words and f"--results={self.results}" in words:
                    found.append(int(file.parent.name))
        return found


def write_program(path: Path, text: str) -> Path:
    """Write a shell script that can be executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


class StandIn:
    """A package of the same name as paperbench, which runs a shell script in the place of each worker."""

    def __init__(self, folder: Path) -> None:
        self._script, program = folder / "script", folder / "paperbench" / "executors" / "__main__.py"
        program.parent.mkdir(parents=True)
        for package in program.parents[:2]:
            (package / "__init__.py").touch()
        program.write_text(f"import os, sys\nos.execv({str(self._script)!r}, ['script', *sys.argv[1:]])\n")
        self.imports = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}

    def does(self, text: str) -> None:
        write_program(self._script, text)


def assert_results(results: Path, expected: Store) -> None:
    assert len(list(expected.directories())) == len(CELLS)
    for directory in expected.directories():
        assert_same(Store(results).directory(directory.path.name), directory)
