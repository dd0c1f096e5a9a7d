from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.record import DataFacts, Divergence, Record
from paperbench.specs.recipe import Evaluation
from paperbench.typed import json_schema
from tests.helpers import CROP224, CROP320, a_photo_record, a_record, a_session, json_with_hash

Change = Callable[[dict[str, Any]], object]


def edited(change: Change, record: Record | None = None) -> str:
    """Return a record with a change and the matching sha256."""
    value = json.loads((record or a_record()).to_json())
    change(value)
    return json_with_hash(value)


def setting(*path: str | int, to: Any) -> Change:
    def change(value: dict[str, Any]) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return change


def removing(*path: str) -> Change:
    def change(value: dict[str, Any]) -> None:
        for key in path[:-1]:
            value = value[key]
        del value[path[-1]]

    return change


@pytest.mark.parametrize(
    "record",
    [
        a_record(),
        a_record(status="partial"),
        a_record(status="diverged"),
        a_photo_record(),
        a_record(data=DataFacts("Bilder für «Übung»", '/ " \\', True, "ab" * 32)),
    ],
    ids=["finished", "partial", "diverged", "photographs", "odd text"],
)
def test_record_round_trip_and_schema(record: Record) -> None:
    assert Record.from_json(record.to_json()) == record
    jsonschema.validate(json.loads(record.to_json()), json_schema(Record))


def test_record_file_has_documented_keys() -> None:
    value = json.loads(a_record().to_json())
    assert set(value) == {
        *("schema", "run", "seed", "net", "status", "iteration", "result", "divergence", "sessions", "test_every"),
        *("data", "spec", "files", "evaluations", "facts", "sha256"),
    }
    assert list(value)[-1] == "sha256"
    assert value["spec"]["recipe"]["drops"] == {"at": [50, 65], "factor": 0.1}
    assert json.loads(edited(lambda _: None)) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("sessions", 0, "environment", "hostname", to="x"), "sessions[0].environment.hostname: unknown key"),
        (setting("result", "test_error", to=100.5), "result.test_error: must be at most 100"),
        (setting("status", to="done"), "status: must be 'partial', 'finished' or 'diverged'"),
        (setting("net", to="\ud800"), "is not JSON"),
        (setting("net", to="preact\nresnet"), "net: must be one line of text without control characters"),
        (setting("data", "name", to="abc\u202e"), "data.name: must be one line of text without control characters"),
        (setting("result", to=None), "its status is 'finished' without a result"),
        (setting("files", "weights_sha256", to=None), "its status is 'finished' without a hash of the weights"),
        (setting("divergence", to=vars(Divergence(5, 0.1))), "'finished' with a divergence"),
        (setting("status", to="partial"), "its status is 'partial' with a result"),
        (setting("iteration", to=79), "it is finished at iteration 79, which is not the last of its recipe"),
        (setting("sessions", to=[]), "its sessions do not make up its 80 iterations"),
        (setting("sessions", 0, "last", to=81), "its sessions do not make up its 80 iterations"),
        (setting("sessions", 1, "last", to=79), "its sessions do not make up its 80 iterations"),
        (setting("data", "fingerprint", to="cd" * 32), "its data fingerprint is not that of its spec"),
    ],
)
def test_invalid_record_is_refused(change: Change, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        Record.from_json(edited(change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("result", "test_error", to=22.0), "its test error and test loss are not those of its first"),
        (setting("result", "test_loss", to=0.8), "its test error and test loss are not those of its first"),
        (setting("result", "evaluations", 0, "top1", to=22.0), "its test error and test loss are not those of its"),
        (setting("result", "evaluations", 1, "top5", to=21.4), "evaluations[1]: its top-5 error (21.4 %) exceeds"),
        (setting("evaluations", 1, "crop", to=300), "its result does not have its evaluations"),
        (setting("evaluations", 1, "crop", to=321), "the crop (321 pixels) must not exceed the scale (320 pixels)"),
        (setting("evaluations", to=[]), "its result does not have its evaluations"),
        (setting("result", "evaluations", to=[]), "its result does not have its evaluations"),
    ],
)
def test_evaluations_fit_each_other(change: Change, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        Record.from_json(edited(change, a_photo_record()))
    assert message in str(caught.value)


def test_error_is_that_of_the_metric_and_the_evaluation() -> None:
    record = a_photo_record()
    errors = [record.error(metric, how) for how in (CROP224, CROP320) for metric in ("top1", "top5")]
    assert errors == [23.0, 6.7, 21.3, 5.5]
    assert record.error("top1", Evaluation(299, 299)) is None
    assert a_record().error("top1", None) == 6.5
    assert a_record(status="diverged").error("top5", CROP320) == math.inf
    assert a_record(status="partial").error("top1", None) is None


@pytest.mark.parametrize(
    "change",
    [
        setting("spec", "precision", to="bf16"),
        setting("spec", "recipe", "learning_rate", to=0.2),
    ],
)
def test_edited_spec_contradicts_the_run_id(change: Change) -> None:
    with pytest.raises(RecordError, match=r"its run is '\w{12}-s3', but its spec and seed give '.*'"):
        Record.from_json(edited(change))


@pytest.mark.parametrize("change", [setting("schema", to=4), setting("schema", to="1"), removing("schema")])
def test_other_schema_is_foreign_not_damaged(change: Change) -> None:
    with pytest.raises(ForeignRecordError, match=r"has schema (4|'1'|None), and this version of paperbench reads 1"):
        Record.from_json(edited(change))


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_non_finite_numbers_are_refused(number: str) -> None:
    text = a_record().to_json()
    assert '"learning_rate": 0.1' in text
    with pytest.raises(RecordError, match="is not JSON"):
        Record.from_json(text.replace('"learning_rate": 0.1', f'"learning_rate": {number}'))


def test_edited_value_fails_the_hash() -> None:
    text = a_record().to_json()
    assert "random pixels" in text
    with pytest.raises(RecordError, match="does not have the sha256 of its values"):
        Record.from_json(text.replace("random pixels", "nice pixels"))


def test_missing_hash_is_refused_but_key_order_is_free() -> None:
    value = json.loads(a_record().to_json())
    assert Record.from_json(json.dumps(value, sort_keys=True)) == a_record()
    del value["sha256"]
    with pytest.raises(RecordError, match="does not have the sha256 of its values"):
        Record.from_json(json.dumps(value))


@pytest.mark.parametrize(
    ("second", "numerics", "is_mixed"),
    [
        ({}, (1,), False),
        ({"numerics": 2}, (1, 2), True),
        ({"torch": "3.0"}, (1,), True),
        ({"torch": "2.16"}, (1,), False),
    ],
)
def test_run_is_mixed_if_versions_changed(second: dict[str, Any], numerics: object, is_mixed: bool) -> None:
    record = a_record(sessions=(a_session(5), a_session(80, **second)))
    assert (record.numerics, record.is_mixed) == (numerics, is_mixed)
