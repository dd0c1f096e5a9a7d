"""The arguments that turn one net into another: what values each can have at all."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, get_args

from paperbench.catalogue.placements import PLACEMENTS
from paperbench.catalogue.shortcuts import SHORTCUTS
from paperbench.errors import ArgumentError, PaperbenchError, nearest

ShortcutOption = Literal["A", "B"]
GateInit = Literal["he", "gaussian"]
StrideIn = Literal["first", "middle"]
TransitionShortcut = Literal["activated", "raw"]


def _one_of(known: Collection[str]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"must be {' or '.join(known)}, not {value!r}")
        return value

    return check


def _whole_number(least: int | None = None) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {value!r}")
        if least is not None and number < least:
            raise ValueError(f"must be at least {least}, not {number}")
        return number

    return check


def _number(least: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        try:
            number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ValueError(f"must be a number, not {value!r}")
        if number < least:
            raise ValueError(f"must not be negative, as {value!r} is")
        return number + 0.0  # there is no -0.0: it would be another text for the same net

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "depth": _whole_number(),  # the family says which there are
        "num_classes": _whole_number(0),
        "in_chans": _whole_number(1),
        "placement": _one_of(PLACEMENTS),
        "shortcut": _one_of(SHORTCUTS),
        "shortcut_option": _one_of(get_args(ShortcutOption)),
        "shortcut_scale": _number(0.0),
        "residual_scale": _number(0.0),
        "gate_bias": _number(-math.inf),
        "gate_init": _one_of(get_args(GateInit)),
        "shortcut_bn": _flag,
        "inverted": _flag,
        "stride_in": _one_of(get_args(StrideIn)),
        "transition_shortcut": _one_of(get_args(TransitionShortcut)),
    }
)

ARGUMENTS: tuple[str, ...] = tuple(_CHECKS)
"""Arguments of `resolve`, and so of `timm.create_model`, that change what a name builds."""


def checked(owner: str, key: str, value: Any) -> Any:
    """The value, as a plain one of the argument's type.

    Args:
        owner: Whose argument it is, for messages.

    Raises:
        ArgumentError: There is no such argument.
        PaperbenchError: It cannot have such a value in any net.
    """
    if key not in _CHECKS:
        raise ArgumentError(f"{owner} has no argument {key!r}. {nearest(key, ARGUMENTS)}")
    try:
        return _CHECKS[key](value)
    except ValueError as error:
        raise PaperbenchError(f"{key} of {owner} {error}.") from error
