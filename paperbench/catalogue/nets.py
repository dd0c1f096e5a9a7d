"""The nets by name, and the arguments that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import Field

from paperbench.catalogue.datasets import DATASETS
from paperbench.catalogue.families import FAMILIES, Family
from paperbench.catalogue.placements import PLACEMENTS
from paperbench.catalogue.shortcuts import SHORTCUTS
from paperbench.errors import ArgumentError, PaperbenchError, nearest
from paperbench.typed import TypedError, dump_set_fields, one_of, typed, validate


@typed
class Net:
    """One net.

    `resolve` returns nets in canonical form: equal nets have equal fields, whatever name and arguments made them.
    Illegal combinations of values raise a `PaperbenchError`.

    Attributes:
        family: A key of `FAMILIES`.
        depth: Weight layers on the main path, as the paper counts them (without those on shortcuts).
        placement: A key of `PLACEMENTS`.
        shortcut_option: The shortcut of units that change dimensions: "A" (strided identity with zero channels
            appended) or "B" (1x1 projection). None if every shortcut is a convolution.
        num_classes: Outputs of the classifier.
        in_chans: Channels of the input images.
        shortcut: A key of `SHORTCUTS`.
        shortcut_scale, residual_scale: Factors of constant scaling: lambda of Eq. (6), and "on F" of Table 1.
        gate_bias: Initial bias b_g of the gates (Sec. 3.1).
        gate_init: Initial weights of the gates: "he" like all others, or "gaussian" with standard deviation 0.01.
        shortcut_bn: Whether convolution shortcuts have BN; None for the default of the placement's projections.
        inverted: Whether dropout doubles the kept values in training instead of halving all values in testing.
        stride_in: The strided convolution of a bottleneck unit: the "first" 1x1, or the "middle" 3x3.
        transition_shortcut: Input of the shortcuts that change dimensions, in units with pre-activation: the
            "activated" or the "raw" signal.
        residual_dropout: Probability of dropout in the residual branch, before its last convolution, as in Wide ResNets
            (arXiv:1605.07146). None without it: the paper's nets.
    """

    family: Annotated[str, one_of("family", FAMILIES)]
    depth: int
    placement: Annotated[str, one_of("placement", PLACEMENTS)]
    shortcut_option: Literal["A", "B"] | None = None
    num_classes: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    in_chans: Annotated[int, Field(ge=1, le=1_000)] = 3
    shortcut: Annotated[str, one_of("shortcut", SHORTCUTS)] = "identity"
    shortcut_scale: Annotated[float, Field(ge=0)] | None = None
    residual_scale: Annotated[float, Field(ge=0)] | None = None
    gate_bias: float | None = None
    gate_init: Literal["he", "gaussian"] | None = None
    shortcut_bn: bool | None = None
    inverted: bool | None = None
    stride_in: Literal["first", "middle"] = "first"
    transition_shortcut: Literal["activated", "raw"] = "activated"
    residual_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None

    is_at_hand: ClassVar[bool] = True

    def __post_init__(self) -> None:
        family = FAMILIES[self.family]
        family.units(self.depth)
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                _check_use("A net", field.name, family, self.shortcut, self.placement)
        for key, default in SHORTCUTS[self.shortcut].arguments(family).items():
            if default is not None and getattr(self, key) is None:
                raise PaperbenchError(f"A net with shortcut {self.shortcut} needs {key}.")

    def canonical(self) -> dict[str, Any]:
        """Return the fields that are not None, as JSON values, for specs and digests."""
        return dump_set_fields(self)

    @property
    def units(self) -> tuple[int, ...]:
        """Number of residual units in each stage."""
        return FAMILIES[self.family].units(self.depth)

    @property
    def has_dropout(self) -> bool:
        """Whether a forward pass in training draws random numbers."""
        return SHORTCUTS[self.shortcut].draws or bool(self.residual_dropout)


_HINTS = get_type_hints(Net, include_extras=True)
_TYPES = {field.name: _HINTS[field.name] for field in fields(Net)[1:]}  # all but the family

ARGUMENTS: tuple[str, ...] = tuple(_TYPES)
"""Keyword arguments of `resolve`, and so of `timm.create_model`."""


def checked(owner: str, key: str, value: Any) -> Any:
    """Return the value of an argument, checked and converted to the argument's plain type.

    Args:
        owner: Name of the net, for error messages.
        key: One of `ARGUMENTS`.
        value: A plain value or a NumPy scalar.
    """
    if key not in _TYPES:
        of_module = "Only timm.create_model takes it, and no run trains such a head. Leave it out."
        advice = of_module if key in ("drop_rate", "global_pool") else nearest(key, ARGUMENTS)
        raise ArgumentError(f"{owner} has no argument {key!r}. {advice}")
    try:
        plain = validate(_TYPES[key], value.item() if hasattr(value, "item") else value)  # NumPy scalars
    except TypedError as error:
        raise PaperbenchError(f"{key} of {owner}: {error}") from error
    return plain + 0.0 if isinstance(plain, float) else plain  # turns -0.0 into 0.0, which JSON would write differently


def _check_use(name: str, key: str, family: Family, shortcut: str, placement: str) -> None:
    """Raise a `PaperbenchError` if a net of this family, shortcut and placement would ignore the argument."""
    users = [s.name for s in SHORTCUTS.values() if key in s.defaults]
    if users and shortcut not in users:
        reason = f"its shortcut is {shortcut}, and {key} is for {' and '.join(users)}"
    elif key == "shortcut_option" and SHORTCUTS[shortcut].is_convolution:
        reason = "every shortcut is a convolution"
    elif key == "stride_in" and family.unit != "bottleneck":
        reason = "only bottleneck units have this choice"
    elif key == "transition_shortcut" and not PLACEMENTS[placement].before:
        reason = f"units of placement {placement} have no pre-activation"
    else:
        return
    raise PaperbenchError(f"{name} would ignore {key}: {reason}. Leave it out.")


def _net(family: str, depth: int, placement: str = "original", shortcut: str = "identity") -> Net:
    classes = 1000 if FAMILIES[family].pools_early else 10
    arguments = SHORTCUTS[shortcut].arguments(FAMILIES[family])
    return Net(family, depth, placement, num_classes=classes, shortcut=shortcut, **arguments)


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


NETS: Mapping[str, Net] = _closed_list()
"""All registered names. A closed list: depth alone does not determine the family (110 is both 6n+2 and 9n+2)."""


def resolve(name: str, /, **kwargs: Any) -> Net:
    """Return the canonical net for a name and arguments.

    Args:
        name: A key of `NETS`, optionally followed by a dot and one of `tags(name)`, which sets the number of classes.
        kwargs: Any of `ARGUMENTS`; see `Net`. `depth` must be a legal depth of the same family.
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
        theirs, others = (SHORTCUTS[one].arguments(FAMILIES[net.family]) for one in (shortcut, net.shortcut))
        values = {**dict.fromkeys(others), **theirs, **values}
    net = replace(net, **values)
    # Of a net that can be written in two ways, one is canonical.
    if (net.shortcut_scale, net.residual_scale) == (1.0, 1.0):
        net = replace(net, shortcut="identity", shortcut_scale=None, residual_scale=None)
    if ("bn",) * bool(net.shortcut_bn) == PLACEMENTS[net.placement].projection_norm:
        net = replace(net, shortcut_bn=None)
    if net.residual_dropout == 0:
        net = replace(net, residual_dropout=None)
    return net


def tags(name: str) -> tuple[str, ...]:
    """Return the data sets of a net, which are its timm tags (`preact_resnet164.cifar100`), the default first."""
    return ("imagenet",) if FAMILIES[NETS[name].family].pools_early else ("cifar10", "cifar100")
