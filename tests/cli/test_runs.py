"""`paperbench runs`: what it prints. tests/runs/test_housekeeping.py has what it deletes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from paperbench.specs.table import Table
from tests.cli.conftest import Run
from tests.compare.judging import record, records
from tests.golden import assert_golden
from tests.report.stores import make_store


def test_counts_what_is_there_and_deletes_what_is_named(run: Run, table2: Table) -> None:
    partial = record(table2, "preact/resnet164", None, iteration=4_000)
    store = make_store(Path("results"), [*records(table2, "original/resnet110", (6.58, 6.64)), partial])
    one, _, other = (directory.path for directory in store.directories())
    for directory in (one, other):
        (directory / "checkpoint-4000-0123456789abcdef.safetensors").write_bytes(b"x" * 2_000_000)
        (directory / "record.json.12-0123abcd.tmp").write_text("x")
    shutil.copytree(one, Path("results/superseded") / f"{one.name}-1")
    Path("results/a\nlink").symlink_to(one)
    before = run("runs", "--long")[1]
    lease = store.lease(other.name)
    assert lease.acquire()
    code, out, err = run("runs", "--delete", "leftovers", "checkpoints", "superseded")
    lease.release()
    assert (code, err) == (0, "")
    out = out.replace(f"process {os.getpid()}", "process PID")
    assert_golden("runs", f"{before}\n{out}")
