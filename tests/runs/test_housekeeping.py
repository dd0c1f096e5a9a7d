"""What `paperbench runs` counts, deletes and keeps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.options import Deletable
from paperbench.runs.housekeeping import delete, survey
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import verify
from tests.runs.running import assert_same, plan_run, train

KINDS = get_args(Deletable)
LEFTOVER = "record.json.12-0123abcd.tmp"
OLD = "checkpoint-8-0123456789abcdef.safetensors"


CHANGES: dict[str, Callable[[RunDirectory], object]] = {
    "as trained": lambda run: None,
    "net deleted": lambda run: run.weights_file.unlink(missing_ok=True),
    "net edited": lambda run: run.weights_file.write_bytes(b"x"),
    "history cut short": lambda run: run.history_file.write_text(""),
    "record damaged": lambda run: run.record_file.write_text("{"),
    "record missing": lambda run: run.record_file.unlink(),
}


@pytest.fixture(scope="module")
def runs(run: PlannedRun, expected: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """A run of each status. Tests must not change them."""
    root = tmp_path_factory.mktemp("runs")
    hot = plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)
    paused = train(replace(run, seed=1), root, stop_at=13)[0]
    return {"finished": expected, "paused": paused, "diverged": train(hot, root)[0]}


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, tuple[str, bool, bool, bool]]:
    """For each status a change, and whether a process holds the run, it is a link, and it has more files to delete."""
    one = st.tuples(st.sampled_from(sorted(CHANGES)), st.booleans(), st.booleans(), st.booleans())
    return {status: draw(one) for status in ("finished", "paused", "diverged")}


def verdicts(store: Store) -> list[tuple[object, ...]]:
    return [(replace(one, remarks=[]), store.readable_record(one.run)) for one in verify(store)]


@given(mixture=mixtures(), kinds=st.sets(st.sampled_from(KINDS)))
def test_verify_says_after_a_deletion_what_it_said_before(
    runs: dict[str, RunDirectory], mixture: dict[str, tuple[str, bool, bool, bool]], kinds: set[Any]
) -> None:
    with TemporaryDirectory() as place, ExitStack() as stack:
        store, out_of_reach = Store(Path(place, "results")), set()
        for status, (change, is_held, is_linked, has_more) in mixture.items():
            copy = store.directory(runs[status].path.name)
            shutil.copytree(runs[status].path, copy.path)
            CHANGES[change](copy)
            aside = store.root / "superseded" / f"{copy.path.name}-1"
            if has_more:
                shutil.copytree(runs[status].path, aside)
                for name in (LEFTOVER, f"{OLD}.damaged", "notes.txt"):
                    (copy.path / name).write_text("x")
                    (aside / name).write_text("x")
            if is_held:
                lease = store.lease(copy.path.name)
                assert lease.acquire()
                stack.callback(lease.release)
                out_of_reach |= {*copy.path.iterdir(), *(aside.iterdir() if has_more else ())}
            if is_linked:
                copy.path.rename(elsewhere := Path(place, status))
                copy.path.symlink_to(elsewhere)
                out_of_reach |= {*copy.path.iterdir()}
        said = verdicts(store)
        before = {file.path: file.kind for file in survey(store)}
        outcomes = [*delete(store, kinds)]
        after = {file.path: file.kind for file in survey(store) if file.kind != "leases"}
        assert verdicts(store) == said
        gone = {path for path in before if not path.exists() and before[path] != "leases"}
        assert gone == {file.path for files, why_kept in outcomes if not why_kept for file in files}
        assert gone.isdisjoint(out_of_reach)
        assert {before[path] for path in gone} <= kinds
        assert {file.path for files, why_kept in outcomes for file in files if why_kept} == {
            path for path, kind in after.items() if kind in kinds
        }


@pytest.mark.parametrize(
    ("status", "change", "gone"),
    [
        ("finished", "as trained", {"checkpoints", "damaged"}),
        ("finished", "net deleted", {"damaged"}),
        ("finished", "net edited", {"damaged"}),
        ("finished", "history cut short", {"damaged"}),
        ("finished", "record damaged", set()),
        ("paused", "as trained", {"damaged"}),
        ("paused", "record missing", set()),
        ("diverged", "as trained", {"damaged"}),
    ],
)
def test_what_a_run_rests_on_is_kept(
    runs: dict[str, RunDirectory], tmp_path: Path, status: str, change: str, gone: set[str]
) -> None:
    store = Store(tmp_path)
    copy = store.directory(runs[status].path.name)
    shutil.copytree(runs[status].path, copy.path)
    CHANGES[change](copy)
    for name in (LEFTOVER, f"{OLD}.damaged"):
        (copy.path / name).write_text("x")
    assert {files[0].kind for files, why_kept in delete(store, KINDS) if not why_kept} == {"leftovers", *gone}
    assert bool(copy.checkpoints.newest_first()) is ("checkpoints" not in gone)


def test_paused_run_resumes_bit_for_bit_after_a_deletion(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    directory, _ = train(run, tmp_path, stop_at=13)
    (directory.path / LEFTOVER).write_text("x")
    assert [why_kept for _, why_kept in delete(Store(tmp_path), KINDS)] == [""]
    directory, log = train(run, tmp_path)
    assert log.steps[0] == 14
    assert_same(directory, expected)
