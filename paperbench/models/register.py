"""Components, placements and shortcuts that are not the paper's."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from paperbench.catalogue import ARGUMENTS, COMPONENTS, PLACEMENTS, SHORTCUTS, Component, Placement, Shortcut
from paperbench.errors import PaperbenchError
from paperbench.models.layers import MODULES
from paperbench.models.shortcuts import ADDITIONS
from paperbench.typed import Problem, raise_problems, unknown_words

Part = Component | Placement | Shortcut

_TAKEN = {"conv", "dropout", "pool", "training", *dir(nn.Sequential)}
"""Names of what stands beside components in a module."""


def register(part: Part, make: Callable[..., nn.Module] | None = None) -> None:
    """Make a component, placement or shortcut known in this process. The same may be registered again.

    Args:
        make: Of a component, makes its module for a number of channels; a module with parameters sets them in
            `reset_parameters`. Of a shortcut, makes its `Addition` for a unit and the values of the shortcut's
            arguments; None for h + F.
    """
    noun = type(part).__name__.lower()
    known: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "component": (COMPONENTS, MODULES),
        "placement": (PLACEMENTS, {}),
        "shortcut": (SHORTCUTS, ADDITIONS),
    }
    parts, makes = known[noun]
    if part.name not in parts:
        raise_problems(Problem((f"{noun} {part.name}", *one.path), one.message) for one in _problems(part, make))
        parts[part.name] = part
        makes |= {} if make is None else {part.name: make}
    elif _code([parts[part.name], makes.get(part.name)]) != _code([part, make]):
        raise PaperbenchError(f"There is another {noun} {part.name}. Give yours a name of its own.")


def _code(value: Any) -> Any:
    """Return a value with code in place of functions and classes, which are new ones if a file is executed again."""
    if isinstance(value, list):
        return [_code(one) for one in value]
    if isinstance(value, type | Part):
        return {name: _code(one) for name, one in vars(value).items() if name[:2] != "__" or callable(one)}
    return getattr(getattr(value, "fget", value), "__code__", value)  # of a property or function


def _problems(part: Part, make: Any) -> Iterator[Problem]:
    if not re.fullmatch("[a-z][a-z0-9_]*", part.name) or part.name in _TAKEN:
        yield Problem((), "needs another name, of lowercase letters, digits and underscores, that torch does not use.")
    match part:
        case Component():
            yield from unknown_words("kind", [((), part.kind)], ("norm", "activation"))
            if make is None:
                yield Problem((), "needs what makes its module, as the second argument.")
        case Placement():
            for position in ("before", "last", "after_addition", "between"):
                names = getattr(part, position)
                yield from unknown_words("component", [((position,), name) for name in names], COMPONENTS)
                if len({*names}) < len(names):
                    yield Problem((position,), "has a component twice.")
        case Shortcut():
            yield from unknown_words("argument", [((), key) for key in part.defaults], ARGUMENTS)
