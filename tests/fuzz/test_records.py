from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.analysis.record import Analysis
from paperbench.errors import RunError
from paperbench.report.analyses import FORMATS, Analyses
from paperbench.runs.hashed import HashedJson, RecordError
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.record import Record
from paperbench.runs.rerun_record import Rerun, RerunRecord, Retest
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Drops, Evaluation
from paperbench.typed import TypedError, from_json
from tests.fuzz.strategies import JSON_TOKENS, JSON_VALUES, altered_trees, damaged, is_refused, times_examples
from tests.helpers import CODE, ENVIRONMENT, a_photo_record, a_record, json_with_hash
from tests.limits import limit_memory
from tests.report.made_analyses import made, with_everything

RECORD = a_photo_record().to_json()
ANALYSIS = with_everything(made()).to_json()
RETEST = Retest("its saved net", Evaluation(224, 256), 40, False, False, {"top-1 error": 1}, 0.001)
RERUN = RerunRecord(
    1, "rerun", "ab-s0", "cd", True, "cpu", CODE, ENVIRONMENT, Rerun(9, True, True, 0.0), None, None, (RETEST,), ()
)
LINE = HistoryLine(40, 1.5, 0.1, 2.25, 80.0, None, 75.5, 3.25)
HISTORY = history_bytes([LINE, replace(LINE, iteration=80)])


def read_back(record_file: Path) -> None:
    record = RunDirectory(record_file.parent).read_record()
    if record is not None:
        assert Record.from_json(record.to_json()) == record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = Store(tmp_path_factory.mktemp("results")).directory(a_record().run)
    directory.path.mkdir(parents=True)
    return directory


@times_examples(2)
@given(content=damaged(RECORD.encode(), JSON_TOKENS) | st.binary() | st.text().map(str.encode))
def test_damaged_record_is_refused(run: RunDirectory, content: bytes) -> None:
    run.record_file.write_bytes(content)
    is_refused(RecordError, read_back, run.record_file)


@pytest.mark.parametrize(("kind", "content"), [(Record, RECORD), (RerunRecord, RERUN.to_json())])
@times_examples(3)
@given(data=st.data())
def test_record_with_altered_values_is_refused(kind: type[HashedJson], content: str, data: st.DataObject) -> None:
    tree = data.draw(altered_trees(json.loads(content)) | JSON_VALUES)
    text = json_with_hash(tree) if isinstance(tree, dict) else json.dumps(tree)  # with a wrong hash, all is refused
    is_refused(RecordError, kind.from_json, text)


@times_examples(3)
@given(tree=altered_trees(json.loads(ANALYSIS)) | JSON_VALUES)
def test_analysis_with_altered_values_is_refused_or_shown(tree: Any) -> None:
    def show(text: str) -> None:
        analyses = Analyses([Analysis.from_json(text)])
        for form in FORMATS:
            analyses.render(form)

    is_refused(RecordError, show, json_with_hash(tree) if isinstance(tree, dict) else json.dumps(tree))


@times_examples(2)
@given(content=damaged(HISTORY, JSON_TOKENS) | st.binary())
def test_damaged_history_is_read_or_refused(run: RunDirectory, content: bytes) -> None:
    run.history_file.write_bytes(content)
    is_refused(RunError, run.history)


@pytest.mark.full
@pytest.mark.parametrize("part", ["sessions", "drops"])
def test_many_wrong_entries_take_little_memory(part: str) -> None:
    tree = json.loads(RECORD)
    if part == "sessions":
        tree["sessions"] = [1] * 3 * 10**5
        with limit_memory(80), pytest.raises(RecordError, match=r"sessions\[0\]: must be a mapping"):
            Record.from_json(json_with_hash(tree))
    else:
        with limit_memory(80), pytest.raises(TypedError, match="must be at least 0, not -1"):
            from_json(Drops, '{"factor": 0.1, "at": [' + "-1," * 3 * 10**5 + "-1]}")


@pytest.mark.full
def test_hundred_thousand_unknown_keys_take_little_memory() -> None:
    tree = {**json.loads(RECORD), **dict.fromkeys(map(str, range(10**5)))}
    with limit_memory(80), pytest.raises(RecordError, match="has 100,000 problems"):
        Record.from_json(json_with_hash(tree))


@pytest.mark.parametrize("place", ["schema", "key", "run", "status"])
def test_message_about_a_long_word_is_short(place: str) -> None:
    word, tree = "x" * 4_000_000, json.loads(RECORD)
    tree["a" * 4_000_000 if place == "key" else place] = word
    with pytest.raises(RecordError) as caught:
        Record.from_json(json_with_hash(tree))
    assert 20 < len(str(caught.value)) < 30_000


@pytest.mark.parametrize(("part", "depth"), [("seed", 100_000), ("spec", 210)])
def test_deeply_nested_record_is_refused(part: str, depth: int) -> None:
    tree = json.loads(RECORD)
    tree[part] = {**tree[part], "recipe": {"a": "HERE"}} if part == "spec" else "HERE"
    text = json.dumps(tree).replace('"HERE"', "[" * depth + "]" * depth)
    assert is_refused(RecordError, Record.from_json, text)
