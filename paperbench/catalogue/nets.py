"""The nets by name, and what their arguments may change."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from paperbench.catalogue.datasets import DATASETS
from paperbench.catalogue.families import FAMILIES
from paperbench.catalogue.placements import PLACEMENTS
from paperbench.catalogue.shortcuts import SHORTCUTS
from paperbench.errors import ArgumentError, PaperbenchError, nearest

GateInit = Literal["he", "gaussian"]


@dataclass(frozen=True)
class Net:
    """One net, canonically: two equal nets have equal fields, whatever name and arguments they were asked for by.

    Attributes:
        family: A key of `FAMILIES`.
        depth: Weight layers on the main path, as the paper counts them (those on shortcuts excluded).
        placement: A key of `PLACEMENTS`.
        shortcut_option: "A" (strided identity, zero channels added at the end) or "B" (1x1 projection): what the
            shortcut does where a unit changes dimensions. None if every shortcut is a convolution.
        num_classes: Outputs of the classifier.
        in_chans: Channels of the input images.
        shortcut: A key of `SHORTCUTS`.
        shortcut_scale, residual_scale: Factors of constant scaling, lambda of Eq. (6) and the one "on F" of Table 1.
        gate_bias: Initial b_g of a gate.
        gate_init: Initial weights of a gate: "he" as all others, or "gaussian" with standard deviation 0.01.
        shortcut_bn: Whether convolution shortcuts have BN; None if as the projections of the placement do.
        inverted: Whether dropout scales what it keeps by 2 in training, rather than everything by 0.5 in testing.
        stride_in: Which convolution of a bottleneck unit has the stride: the "first" 1x1, or the "middle" 3x3.
        transition_shortcut: What shortcuts that change dimensions read in units with pre-activation: the "activated"
            signal, or the "raw" one.
    """

    family: str
    depth: int
    placement: str
    shortcut_option: Literal["A", "B"] | None
    num_classes: int = 10
    in_chans: int = 3
    shortcut: str = "identity"
    shortcut_scale: float | None = None
    residual_scale: float | None = None
    gate_bias: float | None = None
    gate_init: GateInit | None = None
    shortcut_bn: bool | None = None
    inverted: bool | None = None
    stride_in: Literal["first", "middle"] = "first"
    transition_shortcut: Literal["activated", "raw"] = "activated"

    def __post_init__(self) -> None:
        for key, known in (("family", FAMILIES), ("placement", PLACEMENTS), ("shortcut", SHORTCUTS)):
            if getattr(self, key) not in known:
                raise PaperbenchError(f"There is no {key} {getattr(self, key)!r}. {nearest(getattr(self, key), known)}")
        FAMILIES[self.family].units(self.depth)
        for shortcut in SHORTCUTS.values():
            for key, default in shortcut.defaults.items():
                is_used, is_given = key in SHORTCUTS[self.shortcut].defaults, getattr(self, key) is not None
                if is_given > is_used or (is_used > is_given and default is not None):
                    raise PaperbenchError(
                        f"A net with shortcut {self.shortcut} {'needs' if is_used else 'has no'} {key}."
                    )

    def canonical(self) -> dict[str, Any]:
        """The fields as plain JSON values, for specs and digests.

        Fields later than the first six are left out at their default, so that the nets that were there before them
        kept their digests, and with these the names of their runs. So must be whatever is added one day.
        """
        later = {f.name: f.default for f in fields(self)[6:]}
        return {key: value for key, value in asdict(self).items() if key not in later or value != later[key]}

    @property
    def units(self) -> tuple[int, ...]:
        """Number of residual units in each stage."""
        return FAMILIES[self.family].units(self.depth)

    @property
    def conv_bn(self) -> bool:
        """Whether a convolution on a shortcut has BN behind it."""
        own = self.shortcut_bn
        return PLACEMENTS[self.placement].projection_bn if own is None else own


def _net(family: str, depth: int, placement: str = "original", shortcut: str = "identity") -> Net:
    return Net(
        family,
        depth,
        placement,
        shortcut_option=None if shortcut == "conv" else FAMILIES[family].shortcut_option,
        num_classes=1000 if FAMILIES[family].pools_early else 10,
        shortcut=shortcut,
        **SHORTCUTS[shortcut].defaults,
    )


def _closed_list() -> dict[str, Net]:
    nets: dict[str, Net] = {}
    for unit in ("original", "preact"):
        for depth in (20, 32, 44, 56, 110, 1202):
            nets[f"{unit}_resnet{depth}"] = _net("basic", depth, unit)
        for depth in (164, 1001):
            nets[f"{unit}_resnet{depth}"] = _net("bottleneck", depth, unit)
        nets[f"{unit}_resnet110_1layer"] = _net("one_layer", 110, unit)
    for placement in ("bn_after_addition", "relu_before_addition", "relu_only_preact"):
        nets[f"resnet110_{placement}"] = _net("basic", 110, placement)
        nets[f"resnet164_{placement}"] = _net("bottleneck", 164, placement)
    for shortcut in ("constant_scaling", "exclusive_gating", "shortcut_only_gating"):
        nets[f"resnet110_{shortcut}"] = _net("basic", 110, shortcut=shortcut)
    for shortcut in ("conv", "dropout"):
        nets[f"resnet110_{shortcut}_shortcut"] = _net("basic", 110, shortcut=shortcut)
    for unit in ("original", "preact"):
        for depth in (18, 34):
            nets[f"{unit}_resnet{depth}"] = _net("imagenet_basic", depth, unit)
        for depth in (50, 101, 152, 200):
            nets[f"{unit}_resnet{depth}"] = _net("imagenet_bottleneck", depth, unit)
    nets["resnet101_bn_after_addition"] = _net("imagenet_bottleneck", 101, "bn_after_addition")
    return nets


NETS: Mapping[str, Net] = MappingProxyType(_closed_list())
"""All registered names. A closed list: depth alone does not tell the family (110 is both 6n+2 and 9n+2)."""

ARGUMENTS: tuple[str, ...] = tuple(f.name for f in fields(Net) if f.name != "family")
"""Arguments of `resolve`, and so of `timm.create_model`, that change what a name builds."""

_CHOICES: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "placement": PLACEMENTS,
        "shortcut": SHORTCUTS,
        "shortcut_option": get_args(Literal["A", "B"]),
        "gate_init": get_args(GateInit),
        "stride_in": ("first", "middle"),
        "transition_shortcut": ("activated", "raw"),
    }
)
_SMALLEST = {"depth": None, "num_classes": 0, "in_chans": 1}
_NUMBERS = {"shortcut_scale": 0.0, "residual_scale": 0.0, "gate_bias": -math.inf}
_FLAGS = ("shortcut_bn", "inverted")


def resolve(name: str, /, **kwargs: Any) -> Net:
    """The canonical net behind a name and its arguments.

    Args:
        name: A key of `NETS`, alone or with a tag of `tags(name)` behind a dot, which sets the number of classes.
        kwargs: Any of `ARGUMENTS`; see `Net`. `depth` must be another legal depth of the same family.

    Raises:
        ArgumentError: There is no such argument.
        PaperbenchError: Unknown name or tag, an illegal value, or an argument that the net would ignore.
    """
    name, _, tag = name.partition(".")
    if name not in NETS:
        raise PaperbenchError(f"Unknown net {name!r}. {nearest(name, NETS)} `paperbench models` lists all.")
    net = NETS[name]
    if tag:
        if tag not in tags(name):
            raise PaperbenchError(f"{name} has no tag {tag!r}. {nearest(tag, tags(name))}")
        net = replace(net, num_classes=DATASETS[tag].num_classes)
    for key, value in kwargs.items():
        _check_argument(name, key, value)
    shortcut = SHORTCUTS[kwargs.get("shortcut", net.shortcut)]
    if shortcut.name != net.shortcut:
        option = None if shortcut.name == "conv" else FAMILIES[net.family].shortcut_option
        others = dict.fromkeys(SHORTCUTS[net.shortcut].defaults)
        net = replace(net, shortcut=shortcut.name, shortcut_option=option, **{**others, **shortcut.defaults})
    for key, value in kwargs.items():
        _check_use(name, replace(net, placement=kwargs.get("placement", net.placement)), key, value)
    values: dict[str, Any] = {key: float(value) if key in _NUMBERS else value for key, value in kwargs.items()}
    net = replace(net, **values)
    if net.shortcut_bn == PLACEMENTS[net.placement].projection_bn:
        net = replace(net, shortcut_bn=None)
    return net


def _check_argument(name: str, key: str, value: Any) -> None:
    """Whether there is such an argument, and it can have such a value in some net."""
    if key not in ARGUMENTS:
        raise ArgumentError(f"{name} has no argument {key!r}. {nearest(key, ARGUMENTS)}")
    if key in _CHOICES:
        if not isinstance(value, str) or value not in _CHOICES[key]:
            raise PaperbenchError(f"{key} of {name} must be {' or '.join(_CHOICES[key])}, not {value!r}.")
    elif key in _FLAGS:
        if not isinstance(value, bool):
            raise PaperbenchError(f"{key} of {name} must be true or false, not {value!r}.")
    elif key in _NUMBERS:
        if not _is_finite_number(value):
            raise PaperbenchError(f"{key} of {name} must be a number, not {value!r}.")
        if value < _NUMBERS[key]:
            raise PaperbenchError(f"{key} of {name} must not be negative, as {value} is.")
    elif not isinstance(value, int) or isinstance(value, bool):
        raise PaperbenchError(f"{key} of {name} must be a whole number, not {value!r}.")
    elif (smallest := _SMALLEST[key]) is not None and value < smallest:
        raise PaperbenchError(f"{key} of {name} must be positive, not {value}.")


def _is_finite_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _check_use(name: str, net: Net, key: str, value: Any) -> None:
    """Whether a net of this shortcut and placement makes use of an argument, and can have the value given."""
    takers = [s.name for s in SHORTCUTS.values() if key in s.defaults]
    family = FAMILIES[net.family]
    if takers and net.shortcut not in takers:
        reason = f"its shortcut is {net.shortcut}, and {key} is for {' and '.join(takers)}"
    elif key == "shortcut_option" and net.shortcut == "conv":
        reason = "every shortcut is a convolution, those that change dimensions too"
    elif key == "shortcut_option" and value == "A" and family.is_bottleneck:
        raise PaperbenchError(f"shortcut_option of {name} must be B, not 'A': its shortcuts also widen at stride 1.")
    elif key == "stride_in" and not family.is_bottleneck:
        reason = "only bottleneck units have a choice"
    elif key == "transition_shortcut" and not PLACEMENTS[net.placement].before:
        reason = f"units of placement {net.placement} have no pre-activation"
    else:
        return
    raise PaperbenchError(f"{name} would ignore {key}: {reason}. Leave it out.")


def tags(name: str) -> tuple[str, ...]:
    """Data sets that weights of a net can be of, timm's tags: `preact_resnet164.cifar100`. The first is the default."""
    return ("imagenet",) if FAMILIES[NETS[name].family].pools_early else ("cifar10", "cifar100")
