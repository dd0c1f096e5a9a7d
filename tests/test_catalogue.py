from __future__ import annotations

import pytest

from paperbench.catalogue import FAMILIES, NETS, resolve
from paperbench.errors import PaperbenchError


def test_the_closed_list_is_the_papers_names() -> None:
    depths = ("20", "32", "44", "56", "110", "1202", "164", "1001")
    both_units = {f"{unit}_resnet{depth}" for unit in ("original", "preact") for depth in depths}
    placements = ("bn_after_addition", "relu_before_addition", "relu_only_preact")
    table2 = {f"resnet{depth}_{placement}" for depth in ("110", "164") for placement in placements}
    assert set(NETS) == both_units | table2


@pytest.mark.parametrize(
    ("name", "units"),
    [("original_resnet110", 18), ("original_resnet1202", 200), ("preact_resnet164", 18), ("preact_resnet1001", 111)],
)
def test_units_a_stage(name: str, units: int) -> None:
    assert resolve(name).units_per_stage == units


@pytest.mark.parametrize(
    ("name", "depth", "neighbours"),
    [
        ("preact_resnet110", 109, "104 or 110"),
        ("preact_resnet110", 3, "8"),
        ("preact_resnet110", -4, "8"),
        ("preact_resnet164", 110 - 1, "101 or 110"),
        ("original_resnet1001", 1000, "992 or 1001"),
    ],
)
def test_an_illegal_depth_is_refused_with_its_neighbours(name: str, depth: int, neighbours: str) -> None:
    with pytest.raises(PaperbenchError, match=f"no depth {depth}.*Nearest: {neighbours}\\."):
        resolve(name, depth=depth)


def test_110_layers_are_legal_in_both_families_and_keep_the_names_family() -> None:
    assert resolve("preact_resnet164", depth=110).family == "bottleneck"
    assert resolve("preact_resnet20", depth=110) == resolve("preact_resnet110")


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("preact_resnet11", {}, "Did you mean 'preact_resnet1"),
        ("preact_resnet110", {"dept": 20}, "Did you mean 'depth'"),
        ("preact_resnet110", {"depth": "20"}, "must be a whole number"),
        ("preact_resnet110", {"depth": True}, "must be a whole number"),
        ("preact_resnet110", {"num_classes": -1}, "must be positive"),
        ("preact_resnet110", {"in_chans": 0}, "must be positive"),
        ("preact_resnet110", {"shortcut_option": "C"}, "must be A or B"),
        ("preact_resnet164", {"shortcut_option": "A"}, "must be B"),
    ],
)
def test_bad_requests_are_refused(name: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        resolve(name, **kwargs)


def test_every_depth_in_the_list_belongs_to_its_family() -> None:
    for net in NETS.values():
        assert (net.depth - 2) % FAMILIES[net.family].layers_per_n == 0
