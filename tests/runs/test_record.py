from __future__ import annotations

import getpass
import hashlib
import json
import platform
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.planning import run_spec
from paperbench.runs.record import DataFacts, Divergence, Record, RecordError
from paperbench.specs.table import Table
from tests.helpers import a_record, a_session, a_spec

Change = Callable[[dict[str, Any]], object]


def edited(change: Change, record: Record | None = None) -> str:
    """A record with a change, and the checksum that fits: what only somebody who means it would write."""
    value = json.loads((record or a_record()).to_json())
    change(value)
    value.pop("sha256", None)
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return json.dumps({**value, "sha256": hashlib.sha256(canonical.encode()).hexdigest()})


@pytest.mark.parametrize(
    "record",
    [
        a_record(),
        a_record(status="partial"),
        a_record(status="diverged"),
        a_record(data=DataFacts("Bilder für «Übung»", '/ " \\ \n', True, "ab" * 32)),
    ],
    ids=["finished", "partial", "diverged", "odd text"],
)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert Record.from_json(record.to_json()) == record


def test_a_record_of_a_real_plan_comes_back_as_it_was(table2: Table) -> None:
    paper = table2.profiles.named("paper")
    (cell,) = table2.cells("original/resnet110")
    spec = run_spec(cell.net_in(paper), table2.recipe_in(paper), "ab" * 32, "paper", "tf32")
    record = a_record(spec=spec, iteration=64_000)
    assert Record.from_json(record.to_json()) == record


def test_the_file_is_an_object_with_the_documented_keys() -> None:
    value = json.loads(a_record().to_json())
    assert set(value) == {
        *("schema", "run", "seed", "net", "status", "iteration", "result", "seconds", "sessions", "test_every"),
        *("data", "spec", "code", "environment", "divergence", "files", "sha256"),
    }
    assert value["result"]["test_error"] == 6.5
    assert value["spec"]["recipe"]["drops"] == {"at": [50, 65], "factor": 0.1}


def test_numbers_that_json_lacks_are_never_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        a_record(seconds=float("nan")).to_json()


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
    ("change", "message"),
    [
        (setting("host", to="me"), "record has an unknown key 'host'"),
        (setting("secnods", to=1), "unknown key 'secnods'. Did you mean 'seconds'?"),
        (setting("result", "error", to=1), "record.result has an unknown key 'error'"),
        (setting("spec", "seed", to=1), "record.spec has an unknown key 'seed'"),
        (setting("environment", "hostname", to="x"), "record.environment has an unknown key 'hostname'"),
        (removing("seed"), "record lacks the key 'seed'"),
        (removing("result"), "record lacks the key 'result'"),
        (removing("data", "canonical"), "record.data lacks the key 'canonical'"),
        (removing("spec", "precision"), "record.spec lacks the key 'precision'"),
        (setting("seed", to="3"), "record.seed is '3', which is no whole number"),
        (setting("seed", to=True), "record.seed is True, which is no whole number"),
        (setting("seed", to=3.0), "record.seed is 3.0, which is no whole number"),
        (setting("seconds", to="long"), "record.seconds is 'long', which is no number"),
        (setting("seconds", to=True), "record.seconds is True, which is no number"),
        (setting("seconds", to=None), "record.seconds is None, which is no number"),
        (setting("seconds", to=10**400), "record.seconds is too large a number"),
        (setting("status", to="done"), "record.status is 'done'. Known: diverged, finished, partial."),
        (setting("status", to=["finished"]), "record.status is ['finished']"),
        (setting("data", "canonical", to=1), "record.data.canonical is 1, which is no true or false"),
        (setting("data", to=None), "record.data is no object"),
        (setting("spec", to=[]), "record.spec is no object"),
        (setting("spec", "net", to="preact_resnet110"), "record.spec.net is 'preact_resnet110', which is no object"),
        (setting("result", "test_error", to=None), "record.result.test_error is None, which is no number"),
        (setting("code", "commit", to=7), "record.code.commit is 7, which is no text"),
        (setting("schema", to=1), "has schema 1, and this version of paperbench reads 4"),
        (setting("schema", to="1"), "has schema '1', and this version of paperbench reads 4"),
        (removing("schema"), "has schema None, and this version"),
        (setting("spec", "precision", to="fp23"), "record.spec.precision is 'fp23'. Did you mean 'fp32'?"),
        (setting("sessions", to=2), "record.sessions is no list"),
        (setting("sessions", to=[{}]), "record.sessions[0] lacks the key 'first'"),
        (setting("result", to=None), "has status 'finished' without a result"),
        (setting("iteration", to=79), "is finished at iteration 79, which is not its recipe's last"),
        (setting("status", to="partial"), "has status 'partial' with a result"),
        (setting("status", to="diverged"), "has status 'diverged' with a result"),
        (setting("files", "weights_sha256", to=None), "has status 'finished' and None as hash of the weights"),
        (setting("divergence", to=vars(Divergence(5, 0.1, None, None))), "status 'finished' with a divergence"),
        (setting("divergence", to={"phase": "sideways"}), "record.divergence lacks the key 'iteration'"),
        (setting("seconds", to=-1.0), "has a negative number where no run leaves one"),
        (setting("test_every", to=0), "has a negative number where no run leaves one"),
        (setting("net", to="\ud800"), "record.net holds the character '\\ud800', which cannot be printed"),
        (
            setting("data", "name", to="\x1b[2J"),
            "record.data.name holds the character '\\x1b', which cannot be printed",
        ),
        (setting("spec", "net", "depth", to=json.loads("[" * 30 + "]" * 30)), "holds more than 20 levels of values"),
        (setting("sessions", to=[]), "has sessions that do not make up its 80 iterations"),
        (setting("sessions", 1, "first", to=6), "has sessions that do not make up its 80 iterations"),
        (setting("sessions", 1, "last", to=79), "has sessions that do not make up its 80 iterations"),
    ],
)
def test_what_no_run_leaves_is_refused(change: Change, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        Record.from_json(edited(change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        setting("seed", to=4),
        setting("run", to="0" * 12 + "-s3"),
        setting("spec", "profile", to="smoke"),
        setting("spec", "precision", to="bf16"),
        setting("spec", "recipe", "learning_rate", to=0.2),
        setting("spec", "recipe", "extra", to=None),
        setting("spec", "net", "depth", to=110),
    ],
)
def test_a_spec_that_was_edited_no_longer_gives_the_runs_id(change: Change) -> None:
    with pytest.raises(RecordError, match=r"names run '\w{12}-s3', but its spec and seed give '.*': it was edited"):
        Record.from_json(edited(change))


def test_data_other_than_the_specs_are_refused() -> None:
    with pytest.raises(RecordError, match="has another data fingerprint than its spec: it was edited"):
        Record.from_json(edited(setting("data", "fingerprint", to="cd" * 32)))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "<html>", "{}", "[" * 100_000, '{"schema": 4}'])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match=r"is no JSON|has schema None|lacks the key"):
        Record.from_json(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ['"seconds": 12.5', '"learning_rate": 0.1', '"test_error": 6.5'])
def test_numbers_that_are_not_finite_are_refused_wherever_they_stand(number: str, place: str) -> None:
    text = a_record().to_json()
    assert place in text
    with pytest.raises(RecordError, match="is no JSON"):
        Record.from_json(text.replace(place, f"{place.split(':')[0]}: {number}"))


def test_a_whole_number_stands_for_a_number() -> None:
    record = Record.from_json(edited(setting("seconds", to=12)))
    assert record.seconds == 12.0
    assert type(record.seconds) is float


@pytest.mark.parametrize("old", ["6.5,", "12.5", "random pixels", '"threads": 2', "0123456789abcdef"])
def test_an_edited_value_shows(old: str) -> None:
    text = a_record().to_json()
    assert old in text
    new = old.replace("5", "4").replace(": 2", ": 3").replace("random", "nice")
    with pytest.raises(RecordError, match="not have the values that its sha256 was taken of: it was edited or damaged"):
        Record.from_json(text.replace(old, new, 1))


def test_layout_is_no_edit() -> None:
    record = a_record()
    assert Record.from_json(json.dumps(json.loads(record.to_json()), sort_keys=True)) == record


def test_a_record_without_its_checksum_is_refused() -> None:
    value = json.loads(a_record().to_json())
    del value["sha256"]
    with pytest.raises(RecordError, match="sha256"):
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
def test_a_run_is_mixed_if_versions_changed_in_it(second: dict[str, Any], numerics: object, is_mixed: bool) -> None:
    record = a_record(sessions=(a_session(0, 5), a_session(5, 80, **second)))
    assert (record.numerics, record.is_mixed) == (numerics, is_mixed)


def test_a_record_names_no_machine_person_or_path(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"USER": "some-user-name", "HOME": "/home/some-user-name", "SECRET_TOKEN": "do-not-store-me"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    record = replace(a_record(), code=code_facts("eager"), environment=environment_facts(torch.device("cpu")))
    text = record.to_json()
    forbidden = [*secrets.values(), socket.gethostname(), platform.node(), str(Path.home()), str(Path.cwd())]
    for word in (word for word in forbidden if len(word) > 3):
        assert word not in text
    user = getpass.getuser()
    assert user not in {value for part in ("code", "environment") for value in json.loads(text)[part].values()}


def test_facts_about_this_machine_make_a_valid_record() -> None:
    record = a_record(code=code_facts("eager"), environment=environment_facts(torch.device("cpu")))
    assert Record.from_json(record.to_json()) == record
    assert record.environment.torch == torch.__version__
    assert record.environment.python == platform.python_version()
    assert record.environment.cuda is None
    assert a_spec().digest.startswith(record.run.split("-")[0])
