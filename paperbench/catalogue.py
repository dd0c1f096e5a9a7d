"""Every net that paperbench knows, by name: what it is made of and where the paper shows it.

This module is read by the specs and by the models alike, so a name means the same net in both. It never imports torch.

The vocabulary is that of He et al., "Identity Mappings in Deep Residual Networks" (ECCV 2016, arXiv:1603.05027), called
"the paper" below, and of "Deep Residual Learning for Image Recognition" (CVPR 2016, arXiv:1512.03385), called "v1".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from paperbench.errors import PaperbenchError, nearest

Component = Literal["bn", "relu"]


@dataclass(frozen=True)
class Placement:
    """Where BN and ReLU stand in a residual unit (Fig. 4 of the paper).

    Between two weight layers every placement has BN and ReLU; they differ in the three other places.

    Attributes:
        name: The word used in net names.
        figure: The drawing in the paper.
        title: The row heading of Table 2.
        before: Components in front of the first weight layer, the unit's pre-activation.
        last: Components behind the last weight layer, before the addition.
        after_addition: Components behind the addition, the function f of Eq. (2).
    """

    name: str
    figure: str
    title: str
    before: tuple[Component, ...] = ()
    last: tuple[Component, ...] = ()
    after_addition: tuple[Component, ...] = ()

    @property
    def stem(self) -> tuple[Component, ...]:
        """Components behind the first convolution of the net.

        Unit 1 must read BN-ReLU of that convolution in every placement. What its own pre-activation supplies, the stem
        leaves out ("the first activation right after conv1 and before splitting into two paths", Appendix).
        """
        components: tuple[Component, ...] = ("bn", "relu")
        return tuple(c for c in components if c not in self.before)

    @property
    def tail(self) -> tuple[Component, ...]:
        """Components behind the last addition of the net ("an extra activation right after", Appendix)."""
        return self.before

    @property
    def projection_bn(self) -> bool:
        """Whether a projection shortcut has BN: where the residual branch has BN behind its last weight layer."""
        return "bn" in self.last


PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {
        p.name: p
        for p in (
            Placement("original", "4(a)", "original Residual Unit", last=("bn",), after_addition=("relu",)),
            Placement("bn_after_addition", "4(b)", "BN after addition", after_addition=("bn", "relu")),
            Placement("relu_before_addition", "4(c)", "ReLU before addition", last=("bn", "relu")),
            Placement("relu_only_preact", "4(d)", "ReLU-only pre-activation", before=("relu",), last=("bn",)),
            Placement("preact", "4(e)", "full pre-activation", before=("bn", "relu")),
        )
    }
)


@dataclass(frozen=True)
class Family:
    """A family of CIFAR nets: three stages of n equal units, on 32, 16 and 8 pixels.

    Attributes:
        name: The word used in specs.
        kernels: Kernel sizes of the weight layers of one unit.
        expansion: Output channels of a unit over its inner width.
        layers_per_n: Weight layers that n adds, over the three stages: depth = layers_per_n * n + 2.
        shortcut_option: How a shortcut changes dimensions unless told otherwise (options A and B of v1, Sec. 3.3).
        source: Where the family is described.
    """

    name: str
    kernels: tuple[int, ...]
    expansion: int
    layers_per_n: int
    shortcut_option: Literal["A", "B"]
    source: str

    def units_per_stage(self, depth: int) -> int:
        """The n of a legal depth.

        Raises:
            PaperbenchError: The family has no net of this depth; the message names the nearest legal depths.
        """
        n, rest = divmod(depth - 2, self.layers_per_n)
        if n >= 1 and rest == 0:
            return n
        below = max(n, 1) * self.layers_per_n + 2
        neighbours = str(below) if depth < below else f"{below} or {below + self.layers_per_n}"
        raise PaperbenchError(
            f"A {self.name} net has no depth {depth}: depths are {self.layers_per_n}n+2. Nearest: {neighbours}."
        )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        f.name: f
        for f in (
            Family("basic", (3, 3), 1, 6, "A", "v1, Sec. 4.2"),
            Family("bottleneck", (1, 3, 1), 4, 9, "B", "the paper, Appendix"),
        )
    }
)

STAGE_WIDTHS = (16, 32, 64)
"""Inner widths of the units of the three stages; the first convolution has the first of them."""


@dataclass(frozen=True)
class Net:
    """One net, canonically: two equal nets have equal fields, whatever name and arguments they were asked for by.

    Attributes:
        family: A key of `FAMILIES`.
        depth: Weight layers on the main path, as the paper counts them (projections excluded).
        placement: A key of `PLACEMENTS`.
        shortcut_option: "A" (strided identity, zero channels added at the end) or "B" (1x1 projection), used where a
            unit changes dimensions; everywhere else the shortcut is the identity.
        num_classes: Outputs of the classifier.
        in_chans: Channels of the input images.
    """

    family: str
    depth: int
    placement: str
    shortcut_option: Literal["A", "B"]
    num_classes: int = 10
    in_chans: int = 3

    def canonical(self) -> dict[str, Any]:
        """The fields as plain JSON values, for specs and digests.

        A field that is added one day must be left out here at the value that means today's nets: else every digest
        changes, and with it the name of every run.
        """
        return asdict(self)

    @property
    def units_per_stage(self) -> int:
        return FAMILIES[self.family].units_per_stage(self.depth)


def _closed_list() -> dict[str, Net]:
    nets: dict[str, Net] = {}

    def add(name: str, family: str, depth: int, placement: str) -> None:
        nets[name] = Net(family, depth, placement, FAMILIES[family].shortcut_option)

    for placement in ("original", "preact"):
        for depth in (20, 32, 44, 56, 110, 1202):
            add(f"{placement}_resnet{depth}", "basic", depth, placement)
        for depth in (164, 1001):
            add(f"{placement}_resnet{depth}", "bottleneck", depth, placement)
    for placement in ("bn_after_addition", "relu_before_addition", "relu_only_preact"):
        add(f"resnet110_{placement}", "basic", 110, placement)
        add(f"resnet164_{placement}", "bottleneck", 164, placement)
    return nets


NETS: Mapping[str, Net] = MappingProxyType(_closed_list())
"""All registered names. A closed list: depth alone does not tell the family (110 is both 6n+2 and 9n+2)."""

ARGUMENTS = ("depth", "shortcut_option", "num_classes", "in_chans")
"""Arguments of `resolve`, and so of `timm.create_model`, that change what a name builds."""


def resolve(name: str, /, **kwargs: Any) -> Net:
    """The canonical net behind a name and its arguments.

    Args:
        name: A key of `NETS`.
        kwargs: `depth` (another legal depth of the same family), `shortcut_option` ("A" or "B"; a bottleneck net has
            only "B", as its shortcuts also widen at stride 1), `num_classes`, `in_chans`.

    Raises:
        PaperbenchError: Unknown name or argument, or an illegal value.
    """
    if name not in NETS:
        raise PaperbenchError(f"Unknown net {name!r}. {nearest(name, NETS)} `paperbench models` lists all.")
    net = NETS[name]
    for key, value in kwargs.items():
        if key not in ARGUMENTS:
            raise PaperbenchError(f"{name} has no argument {key!r}. {nearest(key, ARGUMENTS)}")
        if key == "shortcut_option":
            legal = ("A", "B") if net.family == "basic" else ("B",)
            if value not in legal:
                raise PaperbenchError(f"shortcut_option of {name} must be {' or '.join(legal)}, not {value!r}.")
        elif not isinstance(value, int) or isinstance(value, bool):
            raise PaperbenchError(f"{key} of {name} must be a whole number, not {value!r}.")
        elif key == "depth":
            FAMILIES[net.family].units_per_stage(value)
        elif value < (0 if key == "num_classes" else 1):
            raise PaperbenchError(f"{key} of {name} must be positive, not {value}.")
    return replace(net, **kwargs)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is loaded. Images are `size` x `size` with three channels."""

    title: str
    num_classes: int
    size: int


DATASETS: Mapping[str, DatasetInfo] = MappingProxyType(
    {
        "cifar10": DatasetInfo("CIFAR-10", 10, 32),
        "cifar100": DatasetInfo("CIFAR-100", 100, 32),
        "digits": DatasetInfo("scikit-learn's handwritten digits at 32x32", 10, 32),
    }
)
