"""Failing disks, kills, suspensions, too little memory or disk space; and the estimate of the space that runs need."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError, format_bytes
from paperbench.runs.disk_space import bytes_needed, check_disk_space
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from tests.helpers import ROOT
from tests.runs.running import Log, assert_same, fill, train

FAULTS = {
    "limit memory": ((18, 1, 3), (4, 1, 12), (1, 1, 48)),
    "fail": ((180, 1, 5), (6, 1, 140), (1, 4, 3_000)),
    "kill before": ((120, 1, 1), (4, 1, 40), (1, 1, 150)),
    "kill after": ((120, 1, 1), (4, 1, 40), (1, 1, 150)),
    "suspend": ((300, 1, 2), (8, 1, 100), (1, 3, 2_000)),
    "fail at images": ((300, 1, 2), (12, 1, 50), (1, 1, 500)),
    "kill with images": ((120, 1, 1), (6, 1, 25), (1, 1, 150)),
}
"""For each kind of fault, by default, with --full and with --stress: see `Task` for the first two numbers; the third is
how many trainings that disturbs at least."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not shutil.which("cc"), reason="needs glibc and a C compiler")
def test_disturbed_trainings_end_clearly_and_lose_nothing(tmp_path: Path, full: bool, stress: bool) -> None:
    """Of a run that starts and of one that resumes, disturbed at their calls to the C library or by limits on memory.
    On small images, and on photographs, whose files cannot be read at times.

    A training ends with a clear error, unless it is killed; oneDNN crashes at times when it gets no memory. Nothing but
    the results directory changes. A second training ends with the same bits as one that was never disturbed, and starts
    no earlier than at the last saved iteration. A process that was suspended until another has taken over changes none
    of its files.
    """
    shim = tmp_path / "shim.so"
    source = Path(__file__).with_name("faulty_libc.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", shim, source, "-ldl"], check=True)
    tasks = {kind: tiers[full + stress] for kind, tiers in FAULTS.items()}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.faults", shim, tmp_path]
        + [json.dumps({"kind": kind, "stride": stride, "variants": n}) for kind, (stride, n, _) in tasks.items()],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"},
        timeout=20_000,
        check=True,
    )
    answers = dict(zip(tasks, map(json.loads, done.stdout.splitlines()), strict=True))
    print({kind: answer["ends"] for kind, answer in answers.items()})
    problems = [problem for answer in answers.values() for problem in answer["problems"]]
    assert not problems, "\n\n".join([f"{len(problems)} problems", *problems[:5]])
    for kind, (*_, cases) in tasks.items():
        assert sum(answers[kind]["ends"].values()) >= cases, kind
    assert answers["limit memory"]["ends"].keys() & {"failed", "refused"}, "the limits were tight"


@pytest.fixture
def partial(run: PlannedRun, small_disk: Path) -> PlannedRun:
    """The run, paused at iteration 8 on the small disk."""
    train(run, small_disk, stop_at=8)
    return run


@pytest.mark.parametrize(
    ("leave", "fills_up_at"), [(0, 0), (4096, 9), (100_000, 9), pytest.param(900_000, 0, marks=pytest.mark.full)]
)
def test_full_disk_ends_the_run_and_loses_nothing(
    partial: PlannedRun, expected: RunDirectory, small_disk: Path, leave: int, fills_up_at: int
) -> None:
    """The disk fills up at the start or at iteration 9 of 20; a line is due at 10, checkpoints at 16 and 20."""

    def fill_up(iteration: int) -> None:
        if iteration == fills_up_at:
            fill(small_disk, leave)

    fill_up(0)
    log, directory = Log(fill_up), Store(small_disk).directory(partial.id)
    size = directory.checkpoints.newest_first()[0].path.stat().st_size
    assert 100_000 < size < 900_000
    with pytest.raises(PaperbenchError, match=r"No space left on device\. Free some space or choose another directory"):
        train(partial, small_disk, log=log)
    if leave == 100_000:
        assert log.steps[-1] == 16, "the save failed"
    if leave == fills_up_at == 0:
        assert log.steps == []
    record = directory.read_record()
    assert record
    assert record.iteration == 8 if leave < size else record.iteration in (8, 16)
    assert any(file.read() for file in directory.checkpoints.newest_first())
    assert list((small_disk / "leases").iterdir()) == []
    (small_disk / "ballast").unlink()
    directory, log = train(partial, small_disk)
    assert log.warnings == []
    assert_same(directory, expected)


def test_too_little_disk_space_is_refused(run: PlannedRun, small_disk: Path) -> None:
    store = Store(small_disk / "results" / "not there yet")
    needed = bytes_needed([run], store)
    fill(small_disk, needed - 10_000)
    message = r"The remaining runs need about .* in .*not there yet, which has .* left\. Free some space"
    with pytest.raises(PaperbenchError, match=message):
        check_disk_space(needed, store.root)
    (small_disk / "ballast").unlink()
    fill(small_disk, needed + 50_000)
    check_disk_space(needed, store.root)
    train(run, store.root)
    assert bytes_needed([], store) == 0


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_directory_is_an_error(run: PlannedRun, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir(mode=0o500)
    with pytest.raises(PaperbenchError, match=r"Permission denied\. Choose another directory"):
        train(run, tmp_path / "results")


def test_read_only_disk_is_an_error(partial: PlannedRun, expected: RunDirectory, small_disk: Path) -> None:
    before = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
    remount = ["mount", "-o", "remount,{}", "tmpfs", str(small_disk)]
    subprocess.run([word.format("ro") for word in remount], check=True)
    try:
        with pytest.raises(PaperbenchError, match=r"Read-only file system\. Choose another directory"):
            train(partial, small_disk)
    finally:
        subprocess.run([word.format("rw") for word in remount], check=True)
    assert {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()} == before
    assert_same(train(partial, small_disk)[0], expected)


@pytest.mark.parametrize("stop_at", [8, 13])
def test_disk_estimate_is_a_close_upper_bound(run: PlannedRun, tmp_path: Path, stop_at: int) -> None:
    most = 0

    def measure(_: int = 0) -> None:
        nonlocal most
        most = max(most, sum(path.stat().st_size for path in (tmp_path / "runs").rglob("*") if path.is_file()))

    store = Store(tmp_path)
    predicted = bytes_needed([run], store)
    directory, _ = train(run, tmp_path, log=Log(measure), stop_at=stop_at)
    measure()
    files = directory.checkpoints.newest_first()
    assert most + files[0].path.stat().st_size <= predicted, "plus the checkpoint that is being written"
    if stop_at == 13:
        assert predicted <= 1.5 * (most + files[0].path.stat().st_size)
    else:
        assert bytes_needed([run], store) == predicted - files[0].path.stat().st_size
    assert bytes_needed([run], store, start_anew=True) == predicted


def test_disk_estimate_for_several_runs(run: PlannedRun, tmp_path: Path) -> None:
    runs = [replace(run, seed=seed) for seed in range(3)]
    store = Store(tmp_path)
    predicted = bytes_needed(runs, store) - bytes_needed(runs[:1], store)
    left = [sum(file.stat().st_size for file in train(one, tmp_path)[0].path.iterdir()) for one in runs[1:]]
    assert sum(left) <= predicted <= 1.15 * sum(left)


@pytest.mark.parametrize(("size", "text"), [(900, "1 kB"), (51_200, "51 kB"), (14_000_000, "14.0 MB"), (3e9, "3.0 GB")])
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text
