"""The units of traced nets compared with tables written from the paper's figures.

Independent of the package's module names and classes: the tests find the additions in a torch.fx trace and follow both
operands back to the previous addition. The common part of both paths is the part before the split.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from paperbench.catalogue import NETS, PLACEMENTS, resolve
from paperbench.models import ResidualNet

ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")


@dataclass(frozen=True)
class Path:
    """The components on a path from one node to another.

    Attributes:
        words: One word per component, in data order. "3x3" and "1x1/2" are convolutions; "/2" is the stride.
        nodes: The nodes of these components.
        gate: The convolution whose sigmoid multiplies the path.
    """

    words: tuple[str, ...] = ()
    nodes: tuple[fx.Node, ...] = ()
    gate: fx.Node | None = None

    def __str__(self) -> str:
        return " ".join(self.words)

    def __add__(self, other: Path) -> Path:
        return Path(self.words + other.words, self.nodes + other.nodes, other.gate or self.gate)

    def __getitem__(self, part: slice) -> Path:
        return Path(self.words[part], self.nodes[part], self.gate)


@dataclass(frozen=True)
class Unit:
    """A residual unit in the trace.

    Attributes:
        shared: Components between the previous addition (or the images) and the split.
        residual, shortcut: Components of the two paths from the split to the addition.
        widths: Output channels of the weight layers.
        stride: Total stride from the images to the unit's output.
        gate: The convolution of the gate, which reads the same signal as the shortcut.
    """

    shared: str
    residual: str
    shortcut: str
    widths: tuple[int, ...]
    stride: int
    gate: str | None


class Graph:
    """The units of a net, and its tail after the last addition."""

    def __init__(self, model: nn.Module) -> None:
        graph = fx.symbolic_trace(model).graph
        self.modules = dict(model.named_modules())
        additions = [node for node in graph.nodes if node.target in ADDITIONS]
        (images,) = (node for node in graph.nodes if node.op == "placeholder")
        (output,) = (node.args[0] for node in graph.nodes if node.op == "output")
        self.units: list[Unit] = []
        start, stride = images, 1
        for addition in additions:
            unit = self.unit(addition, start, stride)
            self.units.append(unit)
            start, stride = addition, unit.stride
        self.tail = str(self.path(start, output))

    def unit(self, addition: fx.Node, start: fx.Node, stride: int) -> Unit:
        paths = [self.path(start, operand) for operand in addition.all_input_nodes]
        shortcut, residual = sorted(paths, key=lambda path: sum(self.area(word) for word in path.words))
        split = 0
        for one, other in zip(shortcut.nodes, residual.nodes, strict=False):
            if one is not other:
                break
            split += 1
        read = shortcut.nodes[split - 1] if split else start
        gate = shortcut.gate or residual.gate
        for path in (shortcut, residual):
            assert path.gate in (None, gate)
        if gate is not None:
            assert self.origin(gate.all_input_nodes[0]) is read
            assert self.convolution(gate).bias is not None
        convolutions = [node for node in residual.nodes[split:] if node.op == "call_module" and self.is_conv(node)]
        for word in residual.words:
            stride *= int(word.partition("/")[2] or 1)
        return Unit(
            shared=str(residual[:split]),
            residual=str(residual[split:]),
            shortcut=str(shortcut[split:]),
            widths=tuple(self.convolution(node).out_channels for node in convolutions),
            stride=stride,
            gate=None if gate is None else self.module_word(self.convolution(gate)),
        )

    @staticmethod
    def area(word: str) -> int:
        side = word.partition("x")[0]
        return int(side) ** 2 if side.isdigit() else 0

    def is_conv(self, node: fx.Node) -> bool:
        return isinstance(self.modules[str(node.target)], nn.Conv2d)

    def convolution(self, node: fx.Node) -> nn.Conv2d:
        module = self.modules[str(node.target)]
        assert isinstance(module, nn.Conv2d)
        return module

    def origin(self, node: fx.Node) -> fx.Node:
        """The node that produced these values, skipping identities and casts."""
        while (node.op == "call_module" or node.target == "to") and not self.word(node):
            node = node.all_input_nodes[0]
        return node

    def path(self, start: fx.Node, end: fx.Node) -> Path:
        """The path from `start` (exclusive) to `end`, followed backwards."""
        path = Path()
        while end is not start:
            assert end.op != "placeholder", f"a path leads past {start}"
            before, step = self.step(end)
            path, end = step + path, before
        return path

    def step(self, node: fx.Node) -> tuple[fx.Node, Path]:
        """The input of a node, and the path that the node adds."""
        if node.target in PRODUCTS:
            return self.product(node)
        if node.target is operator.sub:
            return self.difference(node)
        before = node.args[0]
        assert isinstance(before, fx.Node)
        word = self.word(node)
        return before, Path((word,), (node,)) if word else Path()

    def word(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return self.module_word(self.modules[str(node.target)])
        if node.target == "to":  # a cast
            return ""
        if node.target is operator.getitem:
            whole, every_second = slice(None), slice(None, None, 2)
            assert node.args[1] == (whole, whole, every_second, every_second)
            return "every/2"
        if node.target is F.pad:
            sides = node.args[1]
            assert isinstance(sides, tuple)
            assert sides[:5] == (0, 0, 0, 0, 0)
            assert (node.kwargs["mode"], node.kwargs["value"]) == ("constant", None)
            return f"zeros+{sides[5]}"
        raise AssertionError(f"{node.format_node()} is not in the vocabulary of the paper's nets")

    @staticmethod
    def module_word(module: nn.Module) -> str:
        if isinstance(module, nn.Conv2d | nn.MaxPool2d):
            (side,), (stride,), (padding,) = ({s} if isinstance(s, int) else set(s) for s in sizes(module))
            assert padding == side // 2
            assert module.dilation in (1, (1, 1))
            word = f"{side}x{side}" + (f"/{stride}" if stride != 1 else "")
            if isinstance(module, nn.MaxPool2d):
                return f"max{word}"
            assert module.groups == 1
            return word
        if isinstance(module, nn.Dropout):
            return f"dropout{module.p}"
        if isinstance(module, nn.AdaptiveAvgPool2d):
            assert module.output_size in (1, (1, 1))
        words = {
            nn.BatchNorm2d: "bn",
            nn.ReLU: "relu",
            nn.Identity: "",
            nn.AdaptiveAvgPool2d: "mean",
            nn.Flatten: "",
            nn.Linear: "fc",
        }
        return words[type(module)]

    def product(self, node: fx.Node) -> tuple[fx.Node, Path]:
        """A multiplication by a number or by g(x)."""
        factors = [factor for factor in node.args if not isinstance(factor, fx.Node)]
        if factors:
            (before,) = node.all_input_nodes
            return before, Path() if factors == [1.0] else Path((f"*{factors[0]}",), (node,))
        ((gate, before),) = [
            (factor, other)
            for factor, other in itertools.permutations(node.all_input_nodes)
            if factor.target is torch.sigmoid
        ]
        return before, Path(("*g",), (node,), gate.all_input_nodes[0])

    def difference(self, node: fx.Node) -> tuple[fx.Node, Path]:
        """A multiplication by 1 - g(x), computed as h - g(x) h."""
        before, taken = node.args
        assert isinstance(taken, fx.Node)
        assert taken.target in PRODUCTS
        same, path = self.product(taken)
        assert same is before
        return same, Path(("*(1-g)",), (node,), path.gate)


def sizes(module: nn.Conv2d | nn.MaxPool2d) -> tuple[Any, Any, Any]:
    return module.kernel_size, module.stride, module.padding


@functools.cache
def graph_of(name: str, **kwargs: Any) -> Graph:
    with torch.device("meta"):
        return Graph(ResidualNet(resolve(name, **kwargs)))


# Weight layers of one unit (W - BN - ReLU - W, or with one or three W), at stride 1 and at stride 2.
WEIGHTS = {
    "basic": ("3x3 bn relu 3x3", "3x3/2 bn relu 3x3"),
    "bottleneck": ("1x1 bn relu 3x3 bn relu 1x1", "1x1/2 bn relu 3x3 bn relu 1x1"),
    "one_layer": ("3x3", "3x3/2"),
    "imagenet_bottleneck": ("1x1 bn relu 3x3 bn relu 1x1", "1x1/2 bn relu 3x3 bn relu 1x1"),
}
# Fig. 4: components between the previous addition and the split, and on the residual path, in units that keep
# dimensions and in units that change them.
KEEPS = {
    "original": ("relu", "{W} bn"),
    "bn_after_addition": ("bn relu", "{W}"),
    "relu_before_addition": ("", "{W} bn relu"),
    "relu_only_preact": ("", "relu {W} bn"),
    "preact": ("", "bn relu {W}"),
}
CHANGES = {**KEEPS, "relu_only_preact": ("relu", "{W} bn"), "preact": ("bn relu", "{W}")}
# All five placements have the same components before the first unit; for full pre-activation, see the Appendix:
# "right after conv1 (...) and before splitting into two paths".
STEM = {
    "basic": "3x3 bn relu",
    "bottleneck": "3x3 bn relu",
    "one_layer": "3x3 bn relu",
    "imagenet_bottleneck": "7x7/2 bn relu max3x3/2",
}
# After the last addition: f of Eq. (2), or for pre-activation the "extra activation" of the Appendix.
TAIL = {
    "original": "relu mean fc",
    "bn_after_addition": "bn relu mean fc",
    "relu_before_addition": "mean fc",
    "relu_only_preact": "relu mean fc",
    "preact": "bn relu mean fc",
}
PROJECTION_BN = {
    "original": " bn",
    "bn_after_addition": "",
    "relu_before_addition": " bn",
    "relu_only_preact": " bn",
    "preact": "",
}
FULL_DEPTH = {
    "basic": "original_resnet110",
    "bottleneck": "original_resnet164",
    "one_layer": "original_resnet110_1layer",
    "imagenet_bottleneck": "original_resnet101",
}
FAMILIES = [pytest.param(family, marks=pytest.mark.full if family == "one_layer" else ()) for family in FULL_DEPTH]
UNITS = {"basic": (18,) * 3, "bottleneck": (18,) * 3, "one_layer": (36,) * 3, "imagenet_bottleneck": (3, 4, 23, 3)}
CIFAR = ((16, 1), (32, 2), (64, 4))
WIDTH_AND_STRIDE = {
    "basic": CIFAR,
    "bottleneck": CIFAR,
    "one_layer": CIFAR,
    "imagenet_bottleneck": ((64, 4), (128, 8), (256, 16), (512, 32)),
}


def expected_units(
    family: str, placement: str, changes: Mapping[str, tuple[str, str]] = CHANGES, raw: bool = False
) -> list[Unit]:
    """The units of a net with identity shortcuts, from the tables above."""
    units = []
    for stage, (width, stride) in enumerate(WIDTH_AND_STRIDE[family]):
        widths = {"basic": (width, width), "one_layer": (width,)}.get(family, (width, width, 4 * width))
        for u in range(UNITS[family][stage]):
            halves, first = stage > 0 and u == 0, stage == u == 0
            shortcut, (shared, residual) = "", KEEPS[placement]
            if "bottleneck" in family and u == 0:
                shortcut = ("1x1/2" if halves else "1x1") + PROJECTION_BN[placement]
            elif halves:
                shortcut = f"every/2 zeros+{width // 2}"
            if first:
                shared, residual = STEM[family], CHANGES[placement][1]
            elif shortcut:
                shared, residual = changes[placement]
            residual = residual.format(W=WEIGHTS[family][halves])
            units.append(Unit(shared, residual, shortcut, widths, stride, gate=None))
    return units


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_placements_of_figure_4(family: str, placement: str) -> None:
    graph = graph_of(FULL_DEPTH[family], placement=placement)
    expected = expected_units(family, placement)
    for index, (unit, right) in enumerate(zip(graph.units, expected, strict=True)):
        assert unit == right, index
    assert graph.tail == TAIL[placement]


@pytest.mark.parametrize("placement", ["relu_only_preact", "preact"])
@pytest.mark.parametrize("family", FAMILIES)
def test_transition_shortcuts_can_read_the_raw_signal(family: str, placement: str) -> None:
    graph = graph_of(FULL_DEPTH[family], placement=placement, transition_shortcut="raw")
    assert graph.units == expected_units(family, placement, changes=KEEPS)


@pytest.mark.parametrize("placement", ["original", "preact"])
@pytest.mark.parametrize("family", ["bottleneck", "imagenet_bottleneck"])
def test_stride_in_the_middle(family: str, placement: str) -> None:
    graph = graph_of(FULL_DEPTH[family], placement=placement, stride_in="middle")
    strided = [unit for unit in graph.units if "/2" in unit.residual]
    weights = "1x1 bn relu 3x3/2 bn relu 1x1"
    assert len(strided) == len(UNITS[family]) - 1
    assert {(u.residual, u.shortcut) for u in strided} == {
        (f"{weights} bn", "1x1/2 bn") if placement == "original" else (weights, "1x1/2")
    }


# Fig. 2 in the original placement: the residual path, the shortcut at stride 1 and at stride 2 (with option A), and
# the gates of both.
A = "every/2 zeros+{extra}"
FIGURE_2: dict[str, tuple[str, str, str, tuple[str | None, str | None]]] = {
    "identity": ("{W} bn", "", A, (None, None)),
    "constant_scaling": ("{W} bn", "*0.5", f"{A} *0.5", (None, None)),
    "exclusive_gating": ("{W} bn *g", "*(1-g)", f"{A} *(1-g)", ("1x1", "1x1/2")),
    "shortcut_only_gating": ("{W} bn", "*(1-g)", f"{A} *(1-g)", ("1x1", "1x1/2")),
    "conv": ("{W} bn", "1x1 bn", "1x1/2 bn", (None, None)),
    "dropout": ("{W} bn", "dropout0.5 *0.5", f"{A} dropout0.5 *0.5", (None, None)),
}


@pytest.mark.parametrize("shortcut", FIGURE_2)
def test_shortcuts_of_figure_2(shortcut: str) -> None:
    graph = graph_of("original_resnet110", shortcut=shortcut)
    residual, kept, halved, gates = FIGURE_2[shortcut]
    for index, unit in enumerate(graph.units):
        stage, halves = index // 18, index in (18, 36)
        width = 16 * 2**stage
        assert unit == Unit(
            shared="3x3 bn relu" if index == 0 else "relu",
            residual=residual.format(W="3x3/2 bn relu 3x3" if halves else "3x3 bn relu 3x3"),
            shortcut=halved.format(extra=width // 2) if halves else kept,
            widths=(width, width),
            stride=2**stage,
            gate=gates[halves],
        ), index
    assert len(graph.units) == 54
    assert graph.tail == "relu mean fc"


@pytest.mark.parametrize(
    ("name", "kwargs", "shortcut", "residual"),
    [
        ("resnet110_constant_scaling", {"residual_scale": 0.5}, "*0.5", "bn *0.5"),  # frozen gates scale both paths
        ("resnet110_constant_scaling", {"shortcut_scale": 0.0}, "*0.0", "bn"),  # a plain net
        ("resnet110_dropout_shortcut", {"inverted": True}, "dropout0.5", "bn"),
    ],
)
def test_scales_and_dropout_of_the_two_paths(name: str, kwargs: dict[str, Any], shortcut: str, residual: str) -> None:
    for unit in graph_of(name, **kwargs).units:
        assert unit.shortcut.endswith(shortcut)
        assert unit.residual.endswith(residual)


@pytest.mark.parametrize("shortcut", ["exclusive_gating", "shortcut_only_gating"])
def test_gates_of_preactivation_units_read_the_shortcut_input(shortcut: str) -> None:
    """`Graph.unit` asserts that gate and shortcut read the same signal; this test asserts which one."""
    graph = graph_of("preact_resnet110", shortcut=shortcut)
    for index, unit in enumerate(graph.units):
        halves = index in (18, 36)
        assert unit.shared == ("3x3 bn relu" if index == 0 else "bn relu" if halves else "")
        assert unit.gate == ("1x1/2" if halves else "1x1")
        assert unit.shortcut.endswith("*(1-g)")


@pytest.mark.parametrize(
    ("name", "units_by_stride"),
    [
        ("original_resnet110", {1: 18, 2: 18, 4: 18}),  # 54 units
        pytest.param("preact_resnet1001", {1: 111, 2: 111, 4: 111}, marks=pytest.mark.full),  # 333 units
        ("original_resnet110_1layer", {1: 36, 2: 36, 4: 36}),  # 108 units
        ("preact_resnet152", {4: 3, 8: 8, 16: 36, 32: 3}),
        # 16 more than ResNet-152 on the map of 224 / 8 = 28 pixels
        pytest.param("preact_resnet200", {4: 3, 8: 24, 16: 36, 32: 3}, marks=pytest.mark.full),
    ],
)
def test_numbers_of_units(name: str, units_by_stride: dict[int, int]) -> None:
    assert Counter(unit.stride for unit in graph_of(name).units) == units_by_stride


@pytest.mark.parametrize("family", FAMILIES)
def test_placements_reorder_the_same_components(family: str) -> None:
    """Sec. 4: the same components in all five cases, without the shortcuts, whose BN may differ."""
    components = []
    for placement in PLACEMENTS:
        graph = graph_of(FULL_DEPTH[family], placement=placement)
        parts = [*(f"{unit.shared} {unit.residual}" for unit in graph.units), graph.tail]
        components.append(Counter(" ".join(parts).split()))
    assert all(c == components[0] for c in components)
    layers = NETS[FULL_DEPTH[family]].depth - 1
    assert (components[0]["bn"], components[0]["relu"]) == (layers, layers)
