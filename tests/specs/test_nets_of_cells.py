"""The net, data set and recipe of each cell, and the printed parameter counts."""

from __future__ import annotations

import pytest

from paperbench import architecture
from paperbench.catalogue import Convolution, Net
from paperbench.specs.cell import Cell
from paperbench.specs.table import Table

TABLE1 = {  # differences from the original ResNet-110, net by net
    "original": [{}],
    "plain": [{"shortcut": "constant_scaling", "shortcut_scale": 0.0, "residual_scale": 1.0}],
    "constant_scaling_unscaled": [{"shortcut": "constant_scaling", "shortcut_scale": 0.5, "residual_scale": 1.0}],
    "constant_scaling": [{"shortcut": "constant_scaling", "shortcut_scale": 0.5, "residual_scale": 0.5}],
    "exclusive_gating_0_to_5": [{"shortcut": "exclusive_gating", "gate_bias": b} for b in (0, -1, -2, -3, -4, -5)],
    "exclusive_gating_6": [{"shortcut": "exclusive_gating", "gate_bias": -6}],
    "exclusive_gating_7": [{"shortcut": "exclusive_gating", "gate_bias": -7}],
    "shortcut_only_gating_0": [{"shortcut": "shortcut_only_gating", "gate_bias": 0}],
    "shortcut_only_gating_6": [{"shortcut": "shortcut_only_gating", "gate_bias": -6}],
    "conv_shortcut": [{"shortcut": "conv"}],
    "dropout_shortcut": [{"shortcut": "dropout"}],
}
OF_SHORTCUTS = ("shortcut", "shortcut_scale", "residual_scale", "gate_bias")

NETS = {  # family, layers, placement, classes, data set, recipe
    "table2": {
        f"{row}/{net}": (family, depth, row, 10, "cifar10", "cifar")
        for net, family, depth in (("resnet110", "basic", 110), ("resnet164", "bottleneck", 164))
        for row in ("original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "preact")
    },
    "table3": {
        "cifar10_resnet110_1layer/original": ("one_layer", 110, "original", 10, "cifar10", "cifar"),
        "cifar10_resnet110_1layer/preact": ("one_layer", 110, "preact", 10, "cifar10", "cifar"),
        "cifar10_resnet110/original": ("basic", 110, "original", 10, "cifar10", "cifar"),
        "cifar10_resnet110/preact": ("basic", 110, "preact", 10, "cifar10", "cifar"),
        "cifar10_resnet164/original": ("bottleneck", 164, "original", 10, "cifar10", "cifar"),
        "cifar10_resnet164/preact": ("bottleneck", 164, "preact", 10, "cifar10", "cifar"),
        "cifar10_resnet1001/original": ("bottleneck", 1001, "original", 10, "cifar10", "cifar"),
        "cifar10_resnet1001/preact": ("bottleneck", 1001, "preact", 10, "cifar10", "cifar"),
        "cifar100_resnet164/original": ("bottleneck", 164, "original", 100, "cifar100", "cifar"),
        "cifar100_resnet164/preact": ("bottleneck", 164, "preact", 100, "cifar100", "cifar"),
        "cifar100_resnet1001/original": ("bottleneck", 1001, "original", 100, "cifar100", "cifar"),
        "cifar100_resnet1001/preact": ("bottleneck", 1001, "preact", 100, "cifar100", "cifar"),
        "cifar10_resnet164_no_warm_up/preact": ("bottleneck", 164, "preact", 10, "cifar10", "cifar_no_warm_up"),
    },
    "table4": {
        "resnet110/cifar10": ("basic", 110, "original", 10, "cifar10", "cifar"),
        "resnet1202/cifar10": ("basic", 1202, "original", 10, "cifar10", "cifar"),
        "resnet164/cifar100": ("bottleneck", 164, "original", 100, "cifar100", "cifar"),
        "resnet1001/cifar100": ("bottleneck", 1001, "original", 100, "cifar100", "cifar"),
        "preact_resnet164/cifar10": ("bottleneck", 164, "preact", 10, "cifar10", "cifar"),
        "preact_resnet164/cifar100": ("bottleneck", 164, "preact", 100, "cifar100", "cifar"),
        "preact_resnet1001/cifar10": ("bottleneck", 1001, "preact", 10, "cifar10", "cifar"),
        "preact_resnet1001/cifar100": ("bottleneck", 1001, "preact", 100, "cifar100", "cifar"),
        "preact_resnet1001_batch64/cifar10": ("bottleneck", 1001, "preact", 10, "cifar10", "cifar_torch"),
    },
}
TABLE5 = {  # layers, placement, shortcut, convolution with the stride, recipe
    "original_resnet152_224": (152, "original", "identity", "first", "imagenet"),
    "original_resnet152": (152, "original", "identity", "first", "imagenet"),
    "preact_resnet152": (152, "preact", "identity", "first", "imagenet"),
    "original_resnet200": (200, "original", "identity", "first", "imagenet"),
    "preact_resnet200": (200, "preact", "identity", "first", "imagenet"),
    "preact_resnet200_aspect": (200, "preact", "identity", "middle", "imagenet_torch"),
    "original_resnet101": (101, "original", "identity", "first", "imagenet"),
    "resnet101_bn_after_addition": (101, "bn_after_addition", "identity", "first", "imagenet"),
    "resnet101_constant_scaling": (101, "original", "constant_scaling", "first", "imagenet"),
    "resnet101_exclusive_gating": (101, "original", "exclusive_gating", "first", "imagenet"),
    "resnet101_shortcut_only_gating": (101, "original", "shortcut_only_gating", "first", "imagenet"),
    "resnet101_conv_shortcut": (101, "original", "conv", "first", "imagenet"),
    "resnet101_dropout_shortcut": (101, "original", "dropout", "first", "imagenet"),
}


def nets(table: Table, cell: Cell) -> list[Net]:
    paper = table.profiles.named("paper")
    return [cell.net_in(paper, setting) for setting in cell.settings]


@pytest.mark.parametrize("row", TABLE1)
def test_rows_of_table1_differ_only_by_shortcut(tables: dict[str, Table], row: str) -> None:
    table = tables["table1"]
    found = nets(table, table.cell(f"{row}/resnet110"))
    plain = {"shortcut": "identity", **dict.fromkeys(OF_SHORTCUTS[1:])}
    assert [{name: getattr(net, name) for name in OF_SHORTCUTS} for net in found] == [
        {**plain, **differing} for differing in TABLE1[row]
    ]
    for net in found:
        assert (net.family, net.depth, net.placement, net.num_classes) == ("basic", 110, "original", 10)
        assert net.shortcut_option == (None if row == "conv_shortcut" else "A"), "v1, Sec. 4.2"
        assert (net.gate_init, net.inverted, net.shortcut_bn) == (
            "he" if "gating" in net.shortcut else None,
            False if net.shortcut == "dropout" else None,
            None,
        )


def test_table1_is_complete(tables: dict[str, Table]) -> None:
    assert [row.id for row in tables["table1"].experiment.rows] == list(TABLE1)
    assert {(cell.dataset, cell.recipe) for cell in tables["table1"].all_cells} == {("cifar10", "cifar")}


@pytest.mark.parametrize("name", NETS)
def test_nets_of_tables_2_to_4(tables: dict[str, Table], name: str) -> None:
    table, found = tables[name], {}
    for cell in table.all_cells:
        (net,) = nets(table, cell)
        assert net.shortcut == "identity"
        found[cell.id] = (net.family, net.depth, net.placement, net.num_classes, cell.dataset, cell.recipe)
    assert found == NETS[name]


def test_nets_of_table5(tables: dict[str, Table]) -> None:
    table, found = tables["table5"], {}
    for row in table.experiment.rows:
        cells = [table.cell(f"{row.id}/{column}") for column in row.cells]
        assert len({str(nets(table, cell)) for cell in cells}) == 1, row.id
        (net,) = nets(table, cells[0])
        assert (net.family, net.num_classes, cells[0].dataset) == ("imagenet_bottleneck", 1000, "imagenet")
        found[row.id] = (net.depth, net.placement, net.shortcut, net.stride_in, cells[0].recipe)
    assert found == TABLE5


def test_halted_imagenet_nets_use_the_values_of_figure_3(tables: dict[str, Table]) -> None:
    table = tables["table5"]
    found = {}
    for name in ("constant_scaling", "exclusive_gating", "shortcut_only_gating"):
        (net,) = nets(table, table.cell(f"resnet101_{name}/top1"))
        found[name] = (net.shortcut_scale, net.residual_scale, net.gate_bias)
    assert found == {
        "constant_scaling": (0.5, 0.5, None),
        "exclusive_gating": (None, None, -6),
        "shortcut_only_gating": (None, None, 0),
    }


def convolution_weights(net: Net) -> int:
    """Weights of all convolutions including projections, without gates."""
    convolutions: list[Convolution] = [architecture.stem(net).convolution]
    for unit in architecture.units(net):
        convolutions += unit.weight_layers
        if isinstance(unit.resizing, Convolution):
            convolutions.append(unit.resizing)
    return sum(c.inputs * c.outputs * c.kernel**2 for c in convolutions)


def test_printed_parameter_counts(tables: dict[str, Table]) -> None:
    """10.2M counts the weights of convolutions alone; 19.4M, from v1, all; 1.7M is either (paper.md, 3.9)."""
    counted = {110: ("conv", "all"), 164: ("conv", "all"), 1001: ("conv",), 1202: ("all",)}
    for cell in tables["table4"].all_cells:
        (net,) = nets(tables["table4"], cell)
        counts = {"conv": convolution_weights(net), "all": architecture.parameters(net)}
        fitting = tuple(what for what, n in counts.items() if f"{n / 1e6:.1f}M" == cell.expected.params)
        assert fitting == counted[net.depth], (cell.id, counts)
    assert {c.expected.params for name, table in tables.items() if name != "table4" for c in table.all_cells} == {None}
