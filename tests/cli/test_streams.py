"""Commands whose standard streams are closed, full or gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from paperbench.runs.store import Store
from tests.cli.conftest import ONE_CELL
from tests.helpers import ROOT

ALONE = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
ALONE.pop("PYTHONUNBUFFERED", None)  # streams fail when their buffers are written

FULL = "paperbench: error: [Errno 28] No space left on device: 'standard output'. Fix this"


def command(redirection: str, *arguments: object) -> list[str]:
    """Return a command whose standard streams a shell redirects."""
    script = f'exec "$0" -m paperbench "$@" {redirection}'
    return ["sh", "-c", script, sys.executable, *map(str, arguments)]


def finished(results: Path) -> bool:
    records, complaints = Store(results).records()
    return [record.status for record in records] == ["finished"] and not complaints


@pytest.mark.parametrize(
    ("redirection", "arguments", "status", "message"),
    [
        (">&-", "list", 0, ""),
        pytest.param("<&- >&- 2>&-", "list", 0, "", marks=pytest.mark.full),
        ("2>&-", "show bad", 2, ""),
        ("2>/dev/full", "show bad", 2, ""),
        (">/dev/full", "list", 2, FULL),
        pytest.param(">/dev/full", "--help", 2, FULL, marks=pytest.mark.full),
    ],
)
def test_closed_or_full_stream_changes_no_other_output(
    redirection: str, arguments: str, status: int, message: str
) -> None:
    done = subprocess.run(
        command(redirection, *arguments.split()), capture_output=True, text=True, check=False, env=ALONE, timeout=300
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == bool(message)


@pytest.mark.full
@pytest.mark.parametrize("redirection", ["<&- >/dev/full 2>&-", ">&- 2>&-", ">&-", ">/dev/full", "2>/dev/full"])
def test_run_without_a_standard_stream_trains_and_saves(quick_specs: Path, tmp_path: Path, redirection: str) -> None:
    arguments = ("run", "table2", "--tables", quick_specs, "--results", tmp_path, *ONE_CELL)
    done = subprocess.run(
        command(redirection, *arguments), capture_output=True, text=True, check=False, env=ALONE, timeout=300
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
    assert ("standard output" in done.stderr) == (redirection == ">/dev/full")
    assert finished(tmp_path)


@pytest.mark.full
def test_run_finishes_although_its_terminal_goes_away(quick_specs: Path, tmp_path: Path) -> None:
    main, secondary = pty.openpty()
    arguments = command("", "run", "table2", "--tables", quick_specs, "--results", tmp_path, *ONE_CELL)
    with subprocess.Popen(arguments, stdin=secondary, stdout=secondary, stderr=secondary, env=ALONE) as process:
        os.close(secondary)
        assert os.read(main, 1)
        os.close(main)
        assert process.wait(timeout=300) == 0
    assert finished(tmp_path)
