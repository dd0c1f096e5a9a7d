from __future__ import annotations

import re

import pytest

from paperbench.architecture import units
from paperbench.catalogue import NETS, SHORTCUTS, resolve
from paperbench.report.description import describe

UNIT = re.compile(r"stage (\d+), units? (\d+)(?: to (\d+): (\d+) equal units)?, to (\d+ x \d+ x \d+)\. ")


def described(name: str, **kwargs: object) -> list[str]:
    return describe(resolve(name, **kwargs))


def unit(name: str, stage: int, number: int, **kwargs: object) -> str:
    """The sentences of a unit, after its place and shape."""
    lines = [(UNIT.match(line), line) for line in described(name, **kwargs)]
    (found,) = [
        line[place.end() :]
        for place, line in lines
        if place and int(place[1]) == stage and int(place[2]) <= number <= int(place[3] or place[2])
    ]
    return found


def part(sentences: str, name: str) -> str:
    """What a unit has on one of its paths; empty if nothing."""
    return next((found[1] for found in [re.search(rf"(?:^|\. ){name}: (.*?)\.(?= [A-Z]|$)", sentences)] if found), "")


def test_every_unit_of_every_net_is_described_once() -> None:
    for name, net in NETS.items():
        for shortcut in SHORTCUTS:
            lines = described(name, shortcut=shortcut)
            assert all(line.isascii() and line.isprintable() for line in lines)
            places = [place for line in lines if (place := UNIT.match(line))]
            counts = [int(place[3] or place[2]) - int(place[2]) + 1 for place in places]
            assert counts == [int(place[4] or 1) for place in places]
            assert sum(counts) == len(list(units(net)))


@pytest.mark.parametrize(
    ("name", "size", "cost"),
    [
        ("original_resnet110_1layer", "110 layers, 108 units, 1,727,962 parameters", "252.9M|3 x 32 x 32"),
        ("original_resnet50", "50 layers, 16 units, 25,557,032 parameters", "3858.0M|3 x 224 x 224"),
    ],
)
def test_heading_gives_size_and_cost(name: str, size: str, cost: str) -> None:
    lines = described(name)
    assert f"size: {size}." in lines
    assert f"cost: {cost.replace('|', ' multiply-accumulates on an image of ')}." in lines


def test_heading_gives_name_figures_and_gate_initialisation() -> None:
    lines = described("resnet110_exclusive_gating")
    assert lines[:3] == [
        "resnet110_exclusive_gating",
        "placement: original Residual Unit, Fig. 4(a) of arXiv:1603.05027.",
        "shortcut: exclusive gating, Fig. 2(c).",
    ]
    assert any(line.endswith("initial weights: He's.") for line in lines)
    lines = described("resnet110_exclusive_gating", gate_init="gaussian")
    assert any(line.endswith("initial weights: Gaussian with standard deviation 0.01.") for line in lines)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"num_classes": 100, "in_chans": 1}, "preact_resnet110"),
        ({"placement": "original", "shortcut": "conv"}, "resnet110_conv_shortcut"),
        ({"depth": 26}, "ResNet-26"),
    ],
)
def test_heading_uses_the_catalogue_name(kwargs: dict[str, object], name: str) -> None:
    assert described("preact_resnet110", **kwargs)[0] == name


RESIDUAL, SHORTCUT, BOTH, GATE, AFTER = "Residual path", "Shortcut", "On both paths", "Gate g", "After the addition"
TWO = "3x3 conv, 16, BN, ReLU, 3x3 conv, 16"
RESIZED = "every 2nd pixel, + 16 zero channels"


@pytest.mark.parametrize(
    ("name", "kwargs", "where", "expected"),
    [
        # Fig. 4
        ("original_resnet110", {}, (1, 2), {RESIDUAL: f"{TWO}, BN", AFTER: "ReLU"}),
        (
            "resnet110_bn_after_addition",
            {},
            (1, 2),
            {RESIDUAL: TWO, AFTER: "BN, ReLU"},
        ),
        (
            "resnet110_relu_before_addition",
            {},
            (1, 2),
            {RESIDUAL: f"{TWO}, BN, ReLU", AFTER: ""},
        ),
        (
            "resnet110_relu_only_preact",
            {},
            (1, 2),
            {RESIDUAL: f"ReLU, {TWO}, BN", AFTER: ""},
        ),
        (
            "preact_resnet110",
            {},
            (1, 2),
            {RESIDUAL: f"BN, ReLU, {TWO}", BOTH: "", AFTER: ""},
        ),
        # where the pre-activation is shared
        ("preact_resnet110", {}, (1, 1), {BOTH: "BN, ReLU", RESIDUAL: TWO}),
        ("preact_resnet110", {}, (2, 1), {BOTH: "BN, ReLU", SHORTCUT: RESIZED}),
        ("preact_resnet164", {"transition_shortcut": "raw"}, (2, 1), {BOTH: "", SHORTCUT: "1x1 conv, 128, /2"}),
        ("preact_resnet50", {}, (1, 1), {BOTH: "", SHORTCUT: "1x1 conv, 256"}),
        # shortcuts that change dimensions
        ("original_resnet110", {}, (1, 1), {SHORTCUT: "identity"}),
        ("original_resnet110", {}, (2, 1), {SHORTCUT: RESIZED}),
        ("original_resnet164", {}, (3, 1), {SHORTCUT: "1x1 conv, 256, /2, BN"}),
        ("preact_resnet164", {}, (1, 1), {SHORTCUT: "1x1 conv, 64"}),
        (
            "preact_resnet164",
            {"stride_in": "middle"},
            (2, 1),
            {RESIDUAL: "1x1 conv, 32, BN, ReLU, 3x3 conv, 32, /2, BN, ReLU, 1x1 conv, 128"},
        ),
        # Fig. 2
        ("resnet110_conv_shortcut", {}, (2, 2), {SHORTCUT: "1x1 conv, 32, BN"}),
        (
            "resnet110_constant_scaling",
            {},
            (1, 2),
            {SHORTCUT: "times 0.5", RESIDUAL: f"{TWO}, BN"},
        ),
        (
            "resnet110_constant_scaling",
            {"residual_scale": 0.5},
            (1, 2),
            {SHORTCUT: "times 0.5", RESIDUAL: f"{TWO}, BN, times 0.5"},
        ),
        (
            "resnet110_exclusive_gating",
            {"gate_bias": -5.5},
            (2, 1),
            {
                GATE: "1x1 conv, 32, /2, + b, -5.5 initially, sigmoid",
                SHORTCUT: f"{RESIZED}, times (1 - g)",
                RESIDUAL: "3x3 conv, 32, /2, BN, ReLU, 3x3 conv, 32, BN, times g",
            },
        ),
        (
            "resnet110_shortcut_only_gating",
            {},
            (1, 2),
            {SHORTCUT: "times (1 - g)", RESIDUAL: f"{TWO}, BN"},
        ),
        ("resnet110_dropout_shortcut", {}, (1, 2), {SHORTCUT: "dropout 0.5", GATE: ""}),
        (
            "preact_resnet164",
            {"residual_dropout": 0.3},
            (1, 2),
            {RESIDUAL: "BN, ReLU, 1x1 conv, 16, BN, ReLU, 3x3 conv, 16, BN, ReLU, dropout 0.3, 1x1 conv, 64"},
        ),
    ],
)
def test_paths_of_a_unit(
    name: str, kwargs: dict[str, object], where: tuple[int, int], expected: dict[str, str]
) -> None:
    sentences = unit(name, *where, **kwargs)
    assert {path: part(sentences, path) for path in expected} == expected


@pytest.mark.parametrize(
    ("name", "kwargs", "line"),
    [
        ("resnet110_dropout_shortcut", {}, "dropout: training drops half of the values; testing halves all values."),
        (
            "resnet110_dropout_shortcut",
            {"inverted": True},
            "dropout: training drops half of the values and doubles the others; testing changes nothing.",
        ),
        (
            "preact_resnet164",
            {"residual_dropout": 0.3},
            "dropout (F): training drops 0.3 of the values and divides the others by 0.7; testing none.",
        ),
        ("resnet110_relu_only_preact", {}, "stem, to 16 x 32 x 32. 3x3 conv, 16, BN."),
        ("original_resnet50", {}, "stem, to 64 x 56 x 56. 7x7 conv, 64, /2, BN, ReLU, 3x3 max pool, /2."),
        ("resnet110_relu_only_preact", {}, "end. ReLU, global average pool, classifier, 10."),
        ("preact_resnet110", {"num_classes": 7}, "end. BN, ReLU, global average pool, classifier, 7."),
        ("original_resnet50", {"num_classes": 0}, "end. global average pool."),
    ],
)
def test_dropout_stem_and_end(name: str, kwargs: dict[str, object], line: str) -> None:
    assert line in described(name, **kwargs)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("preact_resnet164", ["64 x 32 x 32", "128 x 16 x 16", "256 x 8 x 8"]),
        ("preact_resnet50", ["256 x 56 x 56", "512 x 28 x 28", "1024 x 14 x 14", "2048 x 7 x 7"]),
    ],
)
def test_shapes(name: str, expected: list[str]) -> None:
    assert list(dict.fromkeys(place[5] for line in described(name) if (place := UNIT.match(line)))) == expected
