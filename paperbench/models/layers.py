"""Convolutions, and the components between them: BN, ReLU, and those that `paperbench.models.register` adds."""

from collections.abc import Callable, Iterable

from torch import nn

from paperbench.catalogue import Convolution

MODULES: dict[str, Callable[[int], nn.Module]] = {"bn": nn.BatchNorm2d, "relu": lambda _: nn.ReLU()}
"""Makes the module of each component, for a number of channels."""


def convolution(layer: Convolution) -> nn.Conv2d:
    """Return a convolution with torch's initial weights."""
    has_bias = layer.bias is not None
    return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.kernel // 2, bias=has_bias)


def component(name: str, channels: int) -> nn.Module:
    """Return a component for the given number of channels."""
    return MODULES[name](channels)


def components(names: Iterable[str], channels: int) -> nn.Module:
    """Return components in the given order, or the identity if `names` is empty."""
    parts = nn.Sequential()
    for name in names:
        parts.add_module(name, component(name, channels))
    return parts if len(parts) else nn.Identity()
