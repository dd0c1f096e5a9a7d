from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paperbench
from paperbench.api import Plan
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.report.json_format import ComparisonDocument
from paperbench.runs.limits import Limits, stopping_on_signals
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store
from paperbench.specs.table import Table
from paperbench.typed import from_json
from tests.cli.test_compare import MATCHING
from tests.compare.judging import records
from tests.helpers import change_yaml, copy_of_photo_specs, copy_of_tiny_specs
from tests.report.stores import make_store


def test_cells_and_claims_are_objects_with_verdicts(tmp_path: Path, table2: Table) -> None:
    make_store(tmp_path, records(table2, "preact/resnet110", MATCHING))
    judged = paperbench.load_table("table2").compare(tmp_path)
    cell = judged.cell("preact/resnet110")
    assert cell.verdict == "reproduced"
    (net,) = cell.nets
    assert net.shown
    assert [run.error for run in net.shown.runs] == list(MATCHING)
    assert {other.verdict for other in judged.cells} == {"reproduced", "not run"}
    assert {claim.standing for claim in judged.claims} == {"not run"}
    assert judged.holds()
    assert not judged.holds("reproduced")
    assert from_json(ComparisonDocument, judged.render("json")) == judged.document
    assert "6.38 (+0.01) | reproduced" in judged._repr_markdown_()
    assert repr(judged) == "<table2 compared: 1 reproduced, 9 not run; claims: 22 not run>"
    with pytest.raises(PaperbenchError, match="Did you mean 'preact/resnet110'"):
        judged.cell("preact/resnet11")


def test_notebook_shows_markdown_and_print_shows_text(tmp_path: Path) -> None:
    damaged = tmp_path / "runs" / os.fsdecode(b"damaged\xff-s0")  # no text that could be written as UTF-8
    damaged.mkdir(parents=True)
    (damaged / "record.json").write_text("{")
    table = paperbench.load_table("table2")
    assert "| full pre-activation" in table._repr_markdown_()
    assert "full pre-activation       4(e)        6.37        5.46" in str(table)
    assert repr(table) == "<table2: Test error (%) on CIFAR-10 by placement of the activations>"
    judged = table.compare(tmp_path)
    assert b"damaged\\udcff-s0" in judged._repr_markdown_().partition("Left out: ")[2].encode()
    assert "No run of this table" in str(judged)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    table = paperbench.load_table("table2")
    with pytest.raises(PaperbenchError, match="does not exist"):
        table.compare(tmp_path / "none")
    with pytest.raises(PaperbenchError, match="Did you mean 'latex'"):
        table.compare(tmp_path).render("latxe")  # type: ignore[arg-type]


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """`paperbench.plan` for one cell in a profile of six iterations."""
    monitoring = {"log_every": 2, "test_every": 6, "checkpoint_every": 2, "checkpoint_share": 1.0}
    root = copy_of_tiny_specs(tmp_path, monitoring=monitoring)

    def planned(**choices: Any) -> Plan:
        values = {"cells": "preact/resnet110", "profile": "smoke", "device": "cpu", "root": root, **choices}
        return paperbench.plan("table2", tmp_path / "results", **values)

    return planned


def test_table_is_planned_trained_and_judged(plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = plan(stop_at=4)
    assert first.unnamed_rows == ()
    assert {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ), "OpenMP threads sleep in notebooks too"
    assert "not started" in str(first)
    assert repr(first) == "<plan of table2, profile smoke: 1 run, 1 to do>"
    assert repr(first.runs) == f"[<{first.runs[0].id}: preact_resnet110(depth=8)>]"
    assert "1 run, 4 iterations to do, about 2.2 MB of disk" in str(first)
    assert not (tmp_path / "results").exists()
    outcome = paperbench.run(first)
    assert (outcome.failed, outcome.remaining, outcome.is_cut_short, outcome.signal) == ([], [], False, None)
    assert repr(outcome) == "<outcome of table2: 0 failed, 0 to do>"
    out, err = capsys.readouterr()
    assert out == ""
    assert "paused at iteration 4 of 6 as requested" in err
    assert outcome.advice == "Next: give the same command without --stop-at, or with a later one."
    assert "preact/resnet110" in outcome.summary()
    assert outcome.summary().endswith(f"\nRuns that count: 1 per cell (seed 0).\n\n{outcome.advice}")

    second = plan(engine="eager")
    ((run, left),) = second.remaining
    assert left == 2
    assert plan(incompatible="restart").bytes_needed > second.bytes_needed, "what is kept aside makes no room"
    assert " at 4 " in str(second)
    engines: list[tuple[str, str]] = []

    class Noting(Observer):
        def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
            engines.append((engine, reason))

    outcome = paperbench.run(second, Noting())
    assert engines == [("eager", "as requested")]
    assert capsys.readouterr() == ("", "")
    record = Store(tmp_path / "results").readable_record(run.id)
    assert record
    assert record.result
    (cell,) = outcome.judged.cells
    assert cell.nets[0].shown
    assert cell.nets[0].shown.median == record.result.test_error
    options = f"--cells preact/resnet110 --profile smoke --results {tmp_path / 'results'} --tables {tmp_path}"
    assert outcome.advice == f"Next, print the report:\npaperbench compare table2 {options}"
    assert plan().remaining == []
    assert "1 run, all finished." in str(plan())


def test_outcome_has_failed_and_remaining_runs(plan: Any, tmp_path: Path) -> None:
    both = plan(seeds=2)
    damaged, other = both.runs
    directory = tmp_path / "results" / "runs" / damaged.id
    directory.mkdir(parents=True)
    (directory / "record.json").write_text("{")
    assert "no record" in str(both)
    outcome = paperbench.run(both, Observer())
    assert outcome.failed == outcome.remaining == [damaged]
    assert outcome.advice == "Next: fix the errors above, then give the same command again (1 run to do)."
    assert not outcome.is_cut_short
    assert other.id in {r.run for r in Store(tmp_path / "results").records()[0]}
    outcome = paperbench.run(plan(cells="*/resnet110", max_seconds=1e-9), Observer())
    assert (len(outcome.remaining), outcome.failed, outcome.is_cut_short, outcome.signal) == (5, [], True, None)
    assert outcome.advice == "Next: give the same command again (5 runs to do)."
    again = plan(seeds=2, incompatible="restart")
    outcome = paperbench.run(again, Observer())
    assert outcome.failed == []
    (net,) = outcome.judged.cells[0].nets
    assert net.shown
    assert [run.counted for run in net.shown.runs] == [True, True]
    assert outcome.judged.comparison.planned == 2
    assert "Runs that count: 2 per cell (seeds 0-1)." in outcome.summary()
    assert "--seeds 2" in again.compare_command, "it prints the same table"


def test_twice_the_runs_of_the_paper_profile_are_its_extension(
    plan: Any, small_dataset: ImageDataset, tmp_path: Path
) -> None:
    """Any other number is taken as fixed beforehand."""
    assert [plan(seeds=seeds).seeds for seeds in (None, 1, 2, 3)] == [1, 1, 2, 3]
    parts = ("x_train", "y_train", "x_test", "y_test")
    np.savez(tmp_path / "cifar10.npz", **{part: getattr(small_dataset, part) for part in parts})
    plans = {seeds: plan(profile="paper", seeds=seeds, data=tmp_path) for seeds in (None, 10, 7)}
    assert [(len(one.runs), one.seeds) for one in plans.values()] == [(5, 5), (10, 5), (7, 7)]
    assert plans[10].counted == (
        "Runs that count: 5 per cell (seeds 0-4); seeds 5-9: the extension, for cells that these leave undecided."
    )


def test_precision_is_the_users_or_tables_or_devices(plan: Any, tmp_path: Path) -> None:
    def chosen(**choices: Any) -> set[str]:
        return {run.spec.precision for run in plan(**choices).runs}

    assert chosen() == {"fp32"}
    change_yaml(tmp_path / "experiments/table2.yaml", (("precision",), "bf16"))
    assert chosen() == {"bf16"}
    assert chosen(precision="fp32") == {"fp32"}


def test_signal_stops_a_run_and_handlers_are_restored(plan: Any) -> None:
    received: list[int] = []

    class Sending(Observer):
        def stepped(self, run: object, iteration: int) -> None:
            if iteration == 3:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        outcome = paperbench.run(plan(), Sending())
        assert received == []
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    assert (outcome.is_cut_short, outcome.signal, len(outcome.remaining)) == (True, signal.SIGINT, 1)


@pytest.mark.full
def test_slurm_may_repeat_its_signal(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends SIGTERM when it preempts a job, and again at the end of the grace time, long before SIGKILL."""
    monkeypatch.setenv("PAPERBENCH_SAVED", str(tmp_path / "saved"))

    class Sending(Observer):
        def stepped(self, run: object, iteration: int) -> None:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1.1)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        outcome = paperbench.run(plan(), Sending())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome.signal == signal.SIGTERM
    assert (tmp_path / "saved").exists()


class Listening(Observer):
    """Keeps what is said; sends a signal when a text begins with some words."""

    def __init__(self, stop_at: str = "never") -> None:
        self.texts: list[str] = []
        self._stop_at = stop_at

    def warned(self, run: PlannedRun, text: str) -> None:
        self.texts.append(text)
        if text.startswith(self._stop_at):
            os.kill(os.getpid(), signal.SIGTERM)

    def finishing(self, run: PlannedRun, test_seconds: float | None) -> None:
        self.texts.append(f"finishing: {'unknown' if test_seconds is None else 'known'}")


@pytest.mark.full
def test_long_passes_say_how_far_they_are_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paperbench.streams.Count.is_due", lambda _: True)
    root = copy_of_photo_specs(tmp_path / "specs", crop=18)

    def trained(stop_at: str = "never") -> tuple[paperbench.api.Outcome, list[str]]:
        cells, observer = "original_resnet101/*", Listening(stop_at)
        plan = paperbench.plan("table5", tmp_path / "r", profile="smoke", cells=cells, device="cpu", root=root)
        return paperbench.run(plan, observer), [re.sub(r"about .* left", "...", text) for text in observer.texts]

    mean = [f"mean image, computed once: {done} of 48 training images, ..." for done in range(8, 49, 8)]
    far = [f"averaging BN statistics: {done} of 48 training images, ..." for done in range(4, 49, 4)]
    stopped, texts = trained(stop_at=mean[1].partition(" of")[0])
    assert texts == mean[:2]
    stopped, texts = trained(stop_at="averaging BN statistics: 8")
    assert texts == [*mean, "finishing: known", *far[:2]]
    assert (stopped.signal, len(stopped.remaining), stopped.failed) == (signal.SIGTERM, 1, [])
    finished, texts = trained()
    assert texts == ["finishing: unknown", *far]
    assert (finished.signal, finished.remaining) == (None, [])


def test_run_in_another_thread_installs_no_handlers(plan: Any) -> None:
    """Python allows none there; a notebook may run in such a thread."""
    with ThreadPoolExecutor() as pool:
        outcome = pool.submit(lambda: paperbench.run(plan(max_seconds=1e-9), Observer())).result()
    assert (outcome.is_cut_short, outcome.signal, len(outcome.remaining)) == (True, None, 1)


def test_ignored_signal_stays_ignored() -> None:
    before, limits = signal.signal(signal.SIGHUP, signal.SIG_IGN), Limits()
    try:
        with stopping_on_signals(limits):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert limits.signal is None


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"profile": "smok"}, "Did you mean 'smoke'"),
        ({"cells": "x/y"}, "No cell of table2 matches 'x/y'"),
        ({"engine": "fast"}, "Unknown engine 'fast'"),
        ({"precision": "fp16"}, "Unknown precision 'fp16'"),
        ({"device": "gpu"}, "Unknown device 'gpu'"),
        ({"seeds": 0}, "seeds must be from 1 to"),
        ({"stop_at": 0}, "stop_at must be at least 1"),
        ({"max_seconds": float("nan")}, "max_seconds must be a positive number"),
        ({"incompatible": "restrat"}, "Did you mean 'restart'"),
    ],
)
def test_invalid_plan_is_refused(plan: Any, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        plan(**choices)


def test_runs_at_once_need_streams_and_a_process_of_their_own(tmp_path: Path) -> None:
    """torch has 32 streams. A run with a captured step of two BN groups uses four, and others two."""
    plan = partial(paperbench.plan, "table2", tmp_path, device="cuda", estimate_only=True)
    seven = plan(at_once=7)
    with pytest.raises(PaperbenchError, match="At most 7 of these runs can share a GPU"):
        plan(at_once=8)
    plan(at_once=14, engine="eager")
    with pytest.raises(PaperbenchError, match="omit one of them"):
        seven.check_processes(2)
