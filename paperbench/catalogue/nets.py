"""The nets by name, and what their arguments may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field

from paperbench.catalogue.datasets import DATASETS
from paperbench.catalogue.families import FAMILIES, Family
from paperbench.catalogue.placements import PLACEMENTS
from paperbench.catalogue.shortcuts import SHORTCUTS
from paperbench.errors import ArgumentError, PaperbenchError, nearest
from paperbench.typed import Count, TypedError, dump_set_fields, one_of, typed, validate


@typed
class Net:
    """One net. As `resolve` makes them, equal nets have equal fields, whatever they were asked for by.

    Values that make no net are refused, with a `PaperbenchError`.

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

    family: Annotated[str, one_of("family", FAMILIES)]
    depth: int
    placement: Annotated[str, one_of("placement", PLACEMENTS)]
    shortcut_option: Literal["A", "B"] | None = None
    num_classes: Annotated[int, Field(ge=0)] = 10
    in_chans: Count = 3
    shortcut: Annotated[str, one_of("shortcut", SHORTCUTS)] = "identity"
    shortcut_scale: Annotated[float, Field(ge=0)] | None = None
    residual_scale: Annotated[float, Field(ge=0)] | None = None
    gate_bias: float | None = None
    gate_init: Literal["he", "gaussian"] | None = None
    shortcut_bn: bool | None = None
    inverted: bool | None = None
    stride_in: Literal["first", "middle"] = "first"
    transition_shortcut: Literal["activated", "raw"] = "activated"

    def __post_init__(self) -> None:
        of_shortcuts = ("shortcut_option", *(key for shortcut in SHORTCUTS.values() for key in shortcut.defaults))
        family = FAMILIES[self.family]
        family.units(self.depth)
        used = {*SHORTCUTS[self.shortcut].defaults, *(() if self.shortcut == "conv" else ("shortcut_option",))}
        for key in of_shortcuts:
            is_given = getattr(self, key) is not None
            if is_given and key not in used:
                raise PaperbenchError(f"A net with shortcut {self.shortcut} has no {key}.")
            if key in used and not is_given and key != "shortcut_bn":
                raise PaperbenchError(f"A net with shortcut {self.shortcut} needs {key}.")
        for key, default in (("stride_in", "first"), ("transition_shortcut", "activated")):
            if getattr(self, key) != default:
                _check_use("A net", key, family, self.shortcut, self.placement)

    def canonical(self) -> dict[str, Any]:
        """The fields that are set, as JSON values, for specs and digests."""
        return dump_set_fields(self)

    @property
    def units(self) -> tuple[int, ...]:
        """Number of residual units in each stage."""
        return FAMILIES[self.family].units(self.depth)

    @property
    def conv_bn(self) -> bool:
        """Whether a convolution on a shortcut has BN behind it."""
        own = self.shortcut_bn
        return PLACEMENTS[self.placement].projection_bn if own is None else own


_TYPES = {key: kind for key, kind in get_type_hints(Net, include_extras=True).items() if key != "family"}

ARGUMENTS: tuple[str, ...] = tuple(_TYPES)
"""Arguments of `resolve`, and so of `timm.create_model`, that change what a name builds."""


def checked(owner: str, key: str, value: Any) -> Any:
    """The value, as a plain one of the argument's type.

    Args:
        owner: Whose argument it is, for messages.

    Raises:
        ArgumentError: There is no such argument.
        PaperbenchError: It cannot have such a value in any net.
    """
    if key not in _TYPES:
        raise ArgumentError(f"{owner} has no argument {key!r}. {nearest(key, ARGUMENTS)}")
    try:
        plain = validate(_TYPES[key], value.item() if hasattr(value, "item") else value)  # NumPy's scalars, too
    except TypedError as error:
        raise PaperbenchError(f"{key} of {owner}: {error}") from error
    return plain + 0.0 if isinstance(plain, float) else plain  # there is no -0.0: another text for the same net


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


def resolve(name: str, /, **kwargs: Any) -> Net:
    """The canonical net behind a name and its arguments.

    Args:
        name: A key of `NETS`, alone or with a tag of `tags(name)` behind a dot, which sets the number of classes.
        kwargs: Any of `ARGUMENTS`; see `Net`. `depth` must be another legal depth of the same family.

    Raises:
        ArgumentError: There is no such argument.
        PaperbenchError: Unknown name or tag, an illegal value, or an argument that the net would ignore.
    """
    name, dot, tag = str(name).partition(".")
    if name not in NETS:
        raise PaperbenchError(f"Unknown net {name!r}. {nearest(name, NETS)} `paperbench models` lists all.")
    net = NETS[name]
    if dot:
        if tag not in tags(name):
            raise PaperbenchError(f"{name} has no tag {tag!r}. {nearest(tag, tags(name))}")
        net = replace(net, num_classes=DATASETS[tag].num_classes)
    values = {key: checked(name, key, value) for key, value in kwargs.items()}
    shortcut, placement = values.get("shortcut", net.shortcut), values.get("placement", net.placement)
    for key in values:
        _check_use(name, key, FAMILIES[net.family], shortcut, placement)
    if shortcut != net.shortcut:
        others = dict.fromkeys(SHORTCUTS[net.shortcut].defaults)
        option = None if shortcut == "conv" else FAMILIES[net.family].shortcut_option
        values = {**others, "shortcut_option": option, **SHORTCUTS[shortcut].defaults, **values}
    return _canonical(replace(net, **values))


def _check_use(name: str, key: str, family: Family, shortcut: str, placement: str) -> None:
    """Whether a net of that family, shortcut and placement makes use of an argument."""
    takers = [s.name for s in SHORTCUTS.values() if key in s.defaults]
    if takers and shortcut not in takers:
        reason = f"its shortcut is {shortcut}, and {key} is for {' and '.join(takers)}"
    elif key == "shortcut_option" and shortcut == "conv":
        reason = "every shortcut is a convolution, those that change dimensions too"
    elif key == "stride_in" and not family.is_bottleneck:
        reason = "only bottleneck units have a choice"
    elif key == "transition_shortcut" and not PLACEMENTS[placement].before:
        reason = f"units of placement {placement} have no pre-activation"
    else:
        return
    raise PaperbenchError(f"{name} would ignore {key}: {reason}. Leave it out.")


def _canonical(net: Net) -> Net:
    """The one way to write a net that can be written in two."""
    if (net.shortcut_scale, net.residual_scale) == (1.0, 1.0):
        net = replace(net, shortcut="identity", shortcut_scale=None, residual_scale=None)
    if net.shortcut_bn == PLACEMENTS[net.placement].projection_bn:
        net = replace(net, shortcut_bn=None)
    return net


def tags(name: str) -> tuple[str, ...]:
    """Data sets that weights of a net can be of, timm's tags: `preact_resnet164.cifar100`. The first is the default."""
    return ("imagenet",) if FAMILIES[NETS[name].family].pools_early else ("cifar10", "cifar100")
