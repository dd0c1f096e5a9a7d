"""Whether kinds of machines agree, against scipy's t-tests; and which of several records of a run counts."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paperbench.api import load_table
from paperbench.compare.origins import agreements
from paperbench.runs.external import write_external
from paperbench.runs.store import Store
from paperbench.specs.table import Table
from tests.compare.judging import external, record
from tests.compare.test_against import elsewhere
from tests.golden import assert_golden
from tests.helpers import edit
from tests.report.stores import make_store

ERROR = st.floats(4, 30)
PREACT = "preact/resnet110"


@given(st.lists(st.tuples(ERROR, ERROR), min_size=2, max_size=8), st.tuples(*[st.lists(ERROR, min_size=2)] * 2))
def test_machines_are_compared_as_in_two_known_tests(
    pairs: Sequence[tuple[float, float]], samples: tuple[list[float], list[float]]
) -> None:
    paired = stats.ttest_rel(*zip(*pairs, strict=True)).confidence_interval(0.9)
    pooled = stats.ttest_ind(*samples).confidence_interval(0.9)
    for found, expected in (
        (agreements([{"a": [one], "b": [other]} for one, other in pairs], 1.0), paired),
        (agreements([dict(zip("ab", samples, strict=True)), {"a": [5.0]}], 1.0), pooled),
    ):
        (one,) = found
        assert one.interval == pytest.approx(tuple(expected), rel=1e-6, abs=1e-6)
        is_within, is_beyond = (
            max(map(abs, expected)) <= 1,
            min(map(abs, expected)) > 1 and expected[0] * expected[1] > 0,
        )
        assert one.standing == ("agree" if is_within else "differ" if is_beyond else "undecided")


def test_of_several_records_of_a_run_the_first_counts(tmp_path: Path, table2: Table) -> None:
    """One's own comes first, even if it has not ended; then those of others by their names, if they have."""
    own = [record(table2, PREACT, None, seed=0), record(table2, PREACT, 6.0, seed=1)]
    make_store(tmp_path, own)
    ada = [record(table2, PREACT, error, seed=seed) for seed, error in enumerate((6.2, 6.1, None, 6.3))]
    bob = elsewhere(record(table2, PREACT, error, seed=seed) for seed, error in enumerate((6.2, 6.1, 6.4, 6.3)))
    make_store(tmp_path / "contributed/ada", ada)
    make_store(tmp_path / "contributed/bob", [*bob, *elsewhere([record(table2, "original/resnet110", 6.6)])])

    judged = load_table("table2").compare(tmp_path)

    runs = judged.cell(PREACT).nets[0].groups[0].runs
    assert [(run.seed, run.error) for run in runs] == [(0, None), (1, 6.0), (2, 6.4), (3, 6.3)]
    checks = [(one.by, len(one.runs), one.repeats, one.identical) for one in judged.origins.trained]
    assert checks == [("bob", 5, 2, 1), ("", 2, 0, 0), ("ada", 3, 1, 0)]
    assert_golden("origins", judged.render("table", long=True).partition("Origins\n")[2] + str(judged))
    owners = Counter(one.path.parts[-3] for one in Store(tmp_path).directories())
    assert owners == {tmp_path.name: 2, "bob": 2, "ada": 1}
    assert Store(tmp_path).directory(runs[2].run or "").path.parts[-3] == "bob"


def test_copied_files_of_other_people_change_no_verdict(tmp_path: Path, table2: Table) -> None:
    """Nor does their run take the place of one's own that is damaged, or their name break lines or JSON."""
    own = make_store(tmp_path, [record(table2, PREACT, 6.2, seed=0), record(table2, PREACT, 6.4, seed=1)])
    write_external(tmp_path, external(table2, "original/resnet110", 6.6))
    names = ["ada", os.fsdecode(b"b\n\xff")]
    for name in names:
        for part in ("runs", "external"):
            shutil.copytree(tmp_path / part, tmp_path / "contributed" / name / part)
    (tmp_path / "contributed" / "self").symlink_to("..")
    edit(own.directories()[1].record_file, '"seed": 1', '"seed": 2')
    judged = load_table("table2").compare(tmp_path)
    assert [(run.seed, run.error) for run in judged.cell(PREACT).nets[0].groups[0].runs] == [(0, 6.2)]
    assert len(judged.cell("original/resnet110").nets[0].groups[0].runs) == 1
    by = [one["by"] for one in json.loads(judged.render("json"))["origins"]["trained"]]
    assert by == ["", "ada", "b\\n\\udcff"]


def test_repeat_on_the_same_machine_is_no_further_run(tmp_path: Path, table2: Table) -> None:
    runs = [record(table2, PREACT, 6.0 + seed / 10, seed=seed) for seed in range(3)]
    on_gpu = [replace(one, environment=replace(one.environment, device="a GPU")) for one in runs[0].sessions]
    make_store(tmp_path, runs)
    make_store(tmp_path / "contributed/ada", runs)
    make_store(tmp_path / "contributed/bob", [replace(run, sessions=tuple(on_gpu)) for run in runs])
    (one,) = load_table("table2").compare(tmp_path).origins.agreements
    assert (one.machines, one.runs) == (("a CPU", "a GPU"), (3, 3))
