"""The schemas that `paperbench schema` prints accept the shipped files and reject broken ones."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from paperbench.cli.main import main
from paperbench.cli.schema import FORMATS
from paperbench.specs.yaml_file import read_yaml
from tests.helpers import ROOT

FILES = {
    "experiment": sorted((ROOT / "experiments").glob("table*.yaml")),
    "expected": sorted((ROOT / "expected").glob("*.yaml")),
    "recipe": sorted((ROOT / "experiments" / "recipes").glob("*.yaml")),
    "profiles": [ROOT / "experiments" / "profiles.yaml"],
}
BREAKING: dict[str, list[dict[str, Any]]] = {
    "experiment": [{"seeds": 0}, {"rows": []}, {"titel": "x"}, {"table": "a/b"}, {"precision": "fp23"}],
    "expected": [{"cells": {"a": {"b": 101}}}, {"cells": {"a": {"b": {"valu": 1}}}}, {"source": {"papr": "x"}}],
    "recipe": [{"momentum": 1}, {"drops": {"at": [1]}}, {"silent": "x"}, {"evaluations": {"a": {"crop": 1}}}],
    "profiles": [
        {"profiles": {"paper": {}}},
        {"profiles": {"paper": {"title": "x", "seeds": 0}}},
        {"profiles": {"small": {"title": "x", "dataset": "digits"}}},
        {"profiles": {"small": {"title": "x", "datasets": {"digits": {"recipe": {}}}}}},
    ],
}


def schema_of(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["schema", name]) == 0
    schema: dict[str, Any] = json.loads(capsys.readouterr().out)
    return schema


def test_formats_are_listed_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.split() == list(FORMATS)


def test_unknown_format_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "recipes"]) == 2
    assert "Unknown format 'recipes'. Did you mean 'recipe'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", FORMATS)
def test_schemas_follow_draft_2020_12(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(name, capsys)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", FILES)
def test_shipped_files_are_valid_and_broken_ones_are_not(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(name, capsys))
    for path in FILES[name]:
        data = read_yaml(path).data
        validator.validate(data)
    for changes in BREAKING[name]:
        assert not validator.is_valid({**data, **changes}), changes
    for key in validator.schema["required"]:
        assert not validator.is_valid({k: v for k, v in data.items() if k != key}), key
