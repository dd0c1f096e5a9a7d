from __future__ import annotations

import hashlib

import pytest

from tests.helpers import SPEC_VALUES, a_spec

CANONICAL = (
    '{"data":"' + "ab" * 32 + '",'
    '"net":{"depth":8,"family":"basic","num_classes":10,"placement":"preact","shortcut_option":"A"},'
    '"precision":"fp32",'
    '"profile":"paper",'
    '"recipe":{"drops":{"at":[50,65],"factor":0.1},"iterations":80,"learning_rate":0.1,"warm_up":null}}'
)


def test_digest_is_the_sha256_of_canonical_json() -> None:
    assert a_spec().digest == hashlib.sha256(CANONICAL.encode()).hexdigest()


def test_tuple_and_list_have_the_same_digest() -> None:
    recipe = {**SPEC_VALUES["recipe"], "drops": {"at": (50, 65), "factor": 0.1}}
    assert a_spec(recipe=recipe).digest == a_spec().digest


def test_run_id_is_digest_prefix_and_seed() -> None:
    spec = a_spec()
    assert spec.run_id(0) == f"{spec.digest[:12]}-s0"
    assert spec.run_id(17) == f"{spec.digest[:12]}-s17"


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = a_spec(recipe={"rate": float("nan")}).digest
