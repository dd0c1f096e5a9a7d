from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from paperbench.catalogue import DATASETS, FAMILIES, NETS, Net, resolve, tags
from paperbench.errors import ArgumentError, PaperbenchError
from paperbench.specs.run_spec import canonical_json
from paperbench.typed import from_json


def test_registered_names_are_those_of_the_paper() -> None:
    depths = ("20", "32", "44", "56", "110", "1202", "164", "1001", "110_1layer")
    imagenet_depths = ("18", "34", "50", "101", "152", "200")
    both_units = {f"{unit}_resnet{d}" for unit in ("original", "preact") for d in (*depths, *imagenet_depths)}
    placements = ("bn_after_addition", "relu_before_addition", "relu_only_preact")
    table2 = {f"resnet{depth}_{placement}" for depth in ("110", "164") for placement in placements}
    shortcuts = ("constant_scaling", "exclusive_gating", "shortcut_only_gating", "conv_shortcut", "dropout_shortcut")
    table1 = {f"resnet110_{shortcut}" for shortcut in shortcuts}
    assert set(NETS) == both_units | table2 | table1 | {"resnet101_bn_after_addition"}


def test_depth_in_the_name_counts_the_weight_layers() -> None:
    for net in NETS.values():
        assert len(net.units) == len(FAMILIES[net.family].widths)
        assert 2 + sum(net.units) * len(FAMILIES[net.family].kernels) == net.depth


@pytest.mark.parametrize(
    ("name", "depth", "neighbours"),
    [
        ("preact_resnet110", -4, "8"),
        ("original_resnet1001", 1000, "992 or 1001"),
        ("original_resnet110_1layer", 21, "20 or 23"),
        ("preact_resnet50", 110, "101 or 152"),
    ],
)
def test_illegal_depth_is_refused_with_its_neighbours(name: str, depth: int, neighbours: str) -> None:
    with pytest.raises(PaperbenchError, match=f"no depth {depth}.*Nearest: {neighbours}\\."):
        resolve(name, depth=depth)


def test_changed_depth_stays_in_the_family_of_the_name() -> None:
    """110 is legal in three families."""
    assert resolve("preact_resnet164", depth=110).family == "bottleneck"
    assert resolve("preact_resnet110_1layer").family == "one_layer"
    assert resolve("preact_resnet20", depth=110) == resolve("preact_resnet110")


@pytest.mark.parametrize(
    ("name", "kwargs", "same"),
    [
        ("original_resnet110", {"shortcut": "conv", "shortcut_bn": True}, "resnet110_conv_shortcut"),
        ("resnet110_conv_shortcut", {"shortcut": "exclusive_gating", "gate_bias": -6}, "resnet110_exclusive_gating"),
        ("resnet110_conv_shortcut", {"shortcut": "identity", "placement": "preact"}, "preact_resnet110"),
        ("original_resnet101", {"placement": "bn_after_addition"}, "resnet101_bn_after_addition"),
        ("preact_resnet164.cifar10", {}, "preact_resnet164"),
        ("preact_resnet164", {"stride_in": "first"}, "preact_resnet164"),
        ("preact_resnet110", {"transition_shortcut": "activated"}, "preact_resnet110"),
        ("resnet110_constant_scaling", {"shortcut_scale": 1, "residual_scale": 1}, "original_resnet110"),
        ("preact_resnet110", {"residual_dropout": 0}, "preact_resnet110"),
        ("preact_resnet110", {"depth": np.int64(20), "num_classes": np.uint8(10)}, "preact_resnet20"),
        ("resnet110_exclusive_gating", {"gate_bias": np.float32(-6)}, "resnet110_exclusive_gating"),
    ],
)
def test_equal_nets_are_equal_however_requested(name: str, kwargs: dict[str, Any], same: str) -> None:
    assert resolve(name, **kwargs) == NETS[same]
    assert resolve(name, **kwargs).canonical() == NETS[same].canonical()


def test_canonical_form_contains_only_set_fields() -> None:
    """So a new field does not change the digests of existing nets."""
    plain = resolve("preact_resnet110").canonical()
    assert plain == {
        "family": "basic",
        "depth": 110,
        "placement": "preact",
        "shortcut_option": "A",
        "num_classes": 10,
        "in_chans": 3,
        "shortcut": "identity",
        "stride_in": "first",
        "transition_shortcut": "activated",
    }
    gated = resolve("resnet110_exclusive_gating", gate_bias=-7).canonical()
    assert {key: value for key, value in gated.items() if plain.get(key) != value} == {
        "placement": "original",
        "shortcut": "exclusive_gating",
        "gate_bias": -7.0,
        "gate_init": "he",
    }


def test_equal_numbers_give_the_same_digest() -> None:
    zeros = (0, 0.0, -0.0, np.float32(0))
    nets = [resolve("resnet110_exclusive_gating", gate_bias=zero) for zero in zeros]
    assert len({canonical_json(net.canonical()) for net in nets}) == 1


def test_tags_set_the_number_of_classes() -> None:
    assert resolve("preact_resnet164.cifar100").num_classes == DATASETS["cifar100"].num_classes == 100
    assert resolve("preact_resnet164.cifar100", num_classes=7).num_classes == 7
    assert resolve("preact_resnet152").num_classes == 1000
    assert (tags("preact_resnet164"), tags("preact_resnet152")) == (("cifar10", "cifar100"), ("imagenet",))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("preact_resnet11", {}, "Did you mean 'preact_resnet1"),
        ("preact_resnet110.imagenet", {}, "has no tag 'imagenet'. Known: cifar10, cifar100"),
        ("preact_resnet110.cifar10.x", {}, "has no tag 'cifar10.x'. Did you mean 'cifar10'"),
        ("preact_resnet110", {"depth": "20"}, "must be a whole number"),
        ("preact_resnet110", {"depth": 6_000_002}, "Depth 6000002 of a basic net is too large: the maximum is 10,000"),
        ("preact_resnet110", {"num_classes": -1}, "must be at least 0, not -1"),
        ("preact_resnet110", {"num_classes": 10**7}, "must be at most 1000000, not 10000000"),
        ("preact_resnet110", {"in_chans": 10**7}, "must be at most 1000, not 10000000"),
        ("preact_resnet110", {"in_chans": 0}, "must be at least 1, not 0"),
        ("preact_resnet110", {"placement": "preactt"}, "unknown placement 'preactt'. Did you mean 'preact'"),
        ("preact_resnet110", {"shortcut": "gating"}, "unknown shortcut 'gating'. Known: constant_scaling, conv"),
        ("resnet110_exclusive_gating", {"gate_bias": float("nan")}, "must be a finite number, not nan"),
        ("resnet110_exclusive_gating", {"gate_bias": 10**400}, "must be a number"),
        ("resnet110_constant_scaling", {"shortcut_scale": -0.5}, "must be at least 0, not -0.5"),
        ("preact_resnet110", {"residual_dropout": -0.1}, "must be at least 0, not -0.1"),
        ("preact_resnet110", {"residual_dropout": 1}, "must be below 1, not 1"),
    ],
)
def test_bad_requests_are_refused(name: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        resolve(name, **kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs", "reason"),
    [
        ("original_resnet110", {"gate_bias": -6}, "shortcut is identity, and gate_bias is for exclusive_gating and"),
        ("resnet110_exclusive_gating", {"shortcut_scale": 0.5}, "shortcut_scale is for constant_scaling"),
        ("resnet110_conv_shortcut", {"shortcut_option": "A"}, "every shortcut is a convolution"),
        ("preact_resnet110", {"stride_in": "first"}, "only bottleneck units have this choice"),
        ("original_resnet164", {"transition_shortcut": "raw"}, "units of placement original have no pre-activation"),
        ("preact_resnet164", {"placement": "original", "transition_shortcut": "raw"}, "have no pre-activation"),
    ],
)
def test_ignored_arguments_are_refused(name: str, kwargs: dict[str, object], reason: str) -> None:
    with pytest.raises(PaperbenchError, match=f"{name} would ignore .*{reason}.*Leave it out"):
        resolve(name, **kwargs)


def test_unknown_argument_is_also_a_type_error() -> None:
    with pytest.raises(ArgumentError, match=r"has no argument 'dept'\. Did you mean 'depth'") as caught:
        resolve("preact_resnet110", dept=20)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "basics"}, "unknown family 'basics'. Did you mean 'basic'"),
        ({"filters": 16}, "filters: unknown key"),
        ({"shortcut_option": None}, "A net with shortcut identity needs shortcut_option"),
        ({"shortcut": "conv"}, "A net would ignore shortcut_option: every shortcut is a convolution"),
        ({"stride_in": "middle"}, "A net would ignore stride_in: only bottleneck units"),
        ({"placement": "original", "transition_shortcut": "raw"}, "A net would ignore transition_shortcut"),
        ({"gate_bias": -6.0}, "A net would ignore gate_bias: its shortcut is identity"),
        ({"shortcut": "dropout"}, "A net with shortcut dropout needs inverted"),
    ],
)
def test_inconsistent_values_make_no_net(changes: dict[str, Any], message: str) -> None:
    """As in an edited record."""
    values: dict[str, Any] = {**resolve("preact_resnet110").canonical(), **changes}
    with pytest.raises(PaperbenchError, match=message):
        from_json(Net, json.dumps(values))
