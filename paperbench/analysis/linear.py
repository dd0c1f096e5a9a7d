"""A residual unit at one input: the two terms of Eq. (1), and what its shortcut alone does to signal and gradient.

By the shortcut the signal and the gradient pass a unit "without concerning any weight layers" (Sec. 2). That path is
read off with everything else held fixed: gates, the noise of dropout, statistics of batch norm, and which values ReLU
lets pass. What remains is linear in the signal, unless norms or activations are others than the paper's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.architecture import Unit
from paperbench.catalogue import Convolution, Net
from paperbench.models.residual_unit import ResidualUnit
from paperbench.models.shortcuts import ZeroPadShortcut

# By torch, in its first jvp.
warnings.filterwarnings("ignore", r"`torch\.jit\.script` is deprecated", module=r"torch\.")


class UnitAt:
    """A residual unit at one input.

    Args:
        x: The input x_l, (N, C, H, W).
        noise: Seed of the dropout.

    Attributes:
        residual: F(x_l) as it is added, with its factor or gate, (N, C', H', W').
        factor: What the addition multiplies the shortcut by: lambda, 1 - g, or the mask of dropout; like `residual`.
        y: y_l of Eq. (1).
        output: x_{l+1} = f(y_l).
    """

    @torch.no_grad()
    def __init__(self, unit: ResidualUnit, x: Tensor, noise: int) -> None:
        self.unit, self.x, self._noise = unit, x, noise
        with self._same_noise():
            shortcut, residual, self._entering = unit.paths(x)
            ones = torch.ones((), dtype=x.dtype, device=x.device).expand_as(shortcut)
            self.factor, self.residual = unit.addition.weigh(ones, residual, self._entering)
        self.y = self.factor * shortcut + self.residual
        self.output: Tensor = unit.after_addition(self.y)

    def whole(self, x: Tensor) -> Tensor:
        """Compute the unit at another input, with the same noise."""
        with self._same_noise():
            paths = self.unit.paths(x)
        return self._joined(*paths)

    def by_shortcut(self, x: Tensor) -> Tensor:
        """Compute the unit at another input of the shortcut alone, with everything else held fixed."""
        return _held(self.unit.after_addition, self.factor * self.shortcut(x) + self.residual, self.y)

    def shortcut(self, x: Tensor) -> Tensor:
        """Compute the module on the shortcut path, before the addition weighs it, at another input."""
        entering = _held(self.unit.preactivation, x, self.x) if self.unit.shares_preactivation else x
        return _held(self.unit.shortcut, entering, self._entering)

    def without_residual(self, x: Tensor) -> Tensor:
        """Compute the unit at another input with F = 0."""
        entering = self.unit.preactivation(x) if self.unit.shares_preactivation else x
        shortcut = self.unit.shortcut(entering)
        return self._joined(shortcut, torch.zeros_like(shortcut), entering)

    @contextmanager
    def _same_noise(self) -> Iterator[None]:
        """Draw what every pass through this unit draws: first in the residual branch, then on the shortcut."""
        with torch.random.fork_rng():
            torch.manual_seed(self._noise)
            yield

    def _joined(self, shortcut: Tensor, residual: Tensor, entering: Tensor) -> Tensor:
        """Compute f of the sum, with the same noise."""
        if any(isinstance(part, nn.Dropout) for part in self.unit.addition.modules()):
            y = self.factor * shortcut + residual
        else:
            y = self.unit.addition(shortcut, residual, entering)
        output: Tensor = self.unit.after_addition(y)
        return output


def resizing(net: Net, facts: Unit, unit: ResidualUnit) -> nn.Module:
    """Return what an identity shortcut does in place of a unit: nothing, option A, or the convolution of option B."""
    if (facts.in_channels, facts.stride) == (facts.out_channels, 1):
        return nn.Identity()
    if net.shortcut_option is None:
        return ZeroPadShortcut(facts.in_channels, facts.out_channels, facts.stride)
    return unit.shortcut.get_submodule("conv") if isinstance(facts.resizing, Convolution) else unit.shortcut


def _held(module: nn.Module, x: Tensor, at: Tensor) -> Tensor:
    """Apply ReLU, convolutions, and BN with the statistics that it has at another input."""
    if isinstance(module, nn.Sequential):
        for part in module:
            x, at = _held(part, x, at), part(at)
        return x
    if isinstance(module, nn.BatchNorm2d):
        mean, variance = module.running_mean, module.running_var
        if mean is None or variance is None:
            variance, mean = torch.var_mean(at, dim=(0, 2, 3), correction=0)
        return F.batch_norm(x, mean, variance, module.weight, module.bias, training=False, eps=module.eps)
    y: Tensor = module(x)
    return y


def push(function: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    """Return the product of a function's Jacobian at x with a vector."""
    product: Tensor = torch.func.jvp(function, (x,), (tangent,))[1]
    return product


def pull(function: Callable[[Tensor], Tensor], x: Tensor, cotangent: Tensor | None = None) -> Tensor:
    """Return the product of a function's transposed Jacobian at x with a vector; for None, the gradient of a scalar."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (product,) = torch.autograd.grad(function(leaf), leaf, cotangent)
    return product


def norm(*tensors: Tensor) -> float:
    """Return the Euclidean norm of all values together."""
    return float(torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in tensors]).norm())
