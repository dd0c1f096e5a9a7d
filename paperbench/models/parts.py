"""Convolutions and components as modules, and `register`, for parts of units that are not the paper's."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paperbench.catalogue import ARGUMENTS, COMPONENTS, PARTS, Component, Convolution, Placement, Shortcut
from paperbench.errors import PaperbenchError
from paperbench.typed import Problem, raise_problems, unknown_words

Part = Component | Placement | Shortcut
Maker = Callable[..., Any]

MAKERS: dict[type, dict[str, Maker]] = {kind: {} for kind in PARTS}
"""What makes the modules of parts, by kind and name; see `register`."""

MAKERS[Component] |= {"bn": nn.BatchNorm2d, "relu": lambda _: nn.ReLU()}


def convolution(layer: Convolution) -> nn.Conv2d:
    """Return a convolution with torch's initial weights."""
    has_bias = layer.bias is not None
    return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.kernel // 2, bias=has_bias)


def component(name: str, channels: int) -> nn.Module:
    """Return a component for the given number of channels."""
    made: nn.Module = MAKERS[Component][name](channels)
    return made


def components(names: Iterable[str], channels: int) -> nn.Module:
    """Return components in the given order, or the identity if `names` is empty."""
    parts = nn.Sequential()
    for name in names:
        parts.add_module(name, component(name, channels))
    return parts if len(parts) else nn.Identity()


class MeanImage(nn.Module):
    """Subtracts a mean image, which weights may have beside the net: (N, C, H, W) -> (N, C, H, W).

    Attributes:
        image: (C, H, W), for pixels in [0, 1]; 0 before weights are loaded.
    """

    image: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("image", torch.zeros(*shape))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.image


MEAN_IMAGE = "stem.mean.image"
"""The mean image in the state dict of a net that subtracts it."""


def register(part: Part, make: Maker | None = None) -> None:
    """Make a component, placement or shortcut known in this process. The same may be registered again.

    Args:
        make: Of a component, makes its module for a number of channels; a module with parameters sets them in
            `reset_parameters`. Of a shortcut, makes its `Addition` for a unit and the values of the shortcut's
            arguments; None for h + F. Placements have none.
    """
    noun, known, makers = type(part).__name__.lower(), PARTS[type(part)], MAKERS[type(part)]
    if part.name not in known:
        raise_problems(Problem((f"{noun} {part.name}", *one.path), one.message) for one in _problems(part, make))
        known[part.name] = part
        makers |= {part.name: make} if make else {}
    elif [_code(known[part.name]), _code(makers.get(part.name))] != [_code(part), _code(make)]:
        raise PaperbenchError(f"There is another {noun} {part.name}. Give yours a name of its own.")


def _code(value: Any) -> Any:
    """Return a value with code in place of functions and classes, which are new ones if a file is executed again."""
    if isinstance(value, type | Part):
        return {name: _code(one) for name, one in vars(value).items() if name[:2] != "__" or callable(one)}
    if isinstance(value, partial):
        return _code(value.func), value.args, value.keywords
    return getattr(getattr(value, "fget", value), "__code__", value)  # of a property or function


def _problems(part: Part, make: Maker | None) -> Iterator[Problem]:
    is_taken = part.name in ("conv", "dropout", "pool") or hasattr(nn.Sequential(), part.name)  # beside components
    if is_taken or not re.fullmatch("[a-z][a-z0-9_]*", part.name):
        yield Problem((), "needs another name, of lowercase letters, digits and underscores, that torch does not use.")
    if not isinstance(part, Shortcut) and isinstance(part, Component) == (make is None):
        yield Problem((), "a component needs a second argument, which makes its module; a placement takes none.")
    match part:
        case Component():
            yield from unknown_words("kind", [((), part.kind)], ("norm", "activation"))
        case Placement():
            for position in ("before", "last", "after_addition", "between"):
                names = getattr(part, position)
                yield from unknown_words("component", [((position,), name) for name in names], COMPONENTS)
                if len({*names}) < len(names):
                    yield Problem((position,), "has a component twice.")
        case Shortcut():
            yield from unknown_words("argument", [((), key) for key in part.defaults], ARGUMENTS)
