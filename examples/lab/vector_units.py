"""Residual units on vectors, as texts on the paper teach them, and their gradients beside simulated ones.

Each unit exists in NumPy with derivatives by hand, `VectorUnit`, and of torch's modules, `TorchUnit`. A layer in NumPy
returns its value and the way back: a function from dE/d(value) to dE/d(input).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paperbench.errors import PaperbenchError

Array = NDArray[Any]
Back = Callable[[Array], Array]
VectorPlacement = Literal["original", "preact"]
Normalised = Literal["batch", "features", "none"]

LAYERS: Mapping[VectorPlacement, tuple[str, ...]] = MappingProxyType(
    {"original": ("w1", "norm", "relu", "w2", "norm"), "preact": ("norm", "relu", "w1", "norm", "relu", "w2")}
)
"""F of each placement, Fig. 4(a) and (e)."""


def linear(x: Array, weights: Array) -> tuple[Array, Back]:
    """Multiply vectors (N, D) by a matrix (D, H)."""
    return x @ weights, lambda gradient: gradient @ weights.T


def relu(x: Array) -> tuple[Array, Back]:
    """Set values below zero to zero."""
    passes = x > 0
    return x * passes, lambda gradient: gradient * passes


def normalise(x: Array, over: Normalised, eps: float) -> tuple[Array, Back]:
    """Subtract the mean and divide by the standard deviation, without scale and shift.

    Args:
        over: What mean and variance are taken over: for each feature the "batch", as in batch norm; for each vector its
            "features", as in layer norm; "none" leaves x as it is.
        eps: Added to the variance.
    """
    if over == "none":
        return x, lambda gradient: gradient
    axis = 0 if over == "batch" else 1
    centred = x - x.mean(axis, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis, keepdims=True) + eps)
    z = centred / deviation

    def back(gradient: Array) -> Array:
        by_mean = gradient.mean(axis, keepdims=True)
        by_deviation = z * (gradient * z).mean(axis, keepdims=True)
        entering: Array = (gradient - by_mean - by_deviation) / deviation
        return entering

    return z, back


@dataclass(frozen=True)
class UnitGradients:
    """What a pass back through a unit found for dE/dx_{l+1}.

    Attributes:
        direct: The term of dE/dx_l that has passed no weight layer, (N, D).
        through: The term that has passed F, (N, D). dE/dx_l is the sum of both.
        w1, w2: dE/dW1 and dE/dW2.
    """

    direct: Array
    through: Array
    w1: Array
    w2: Array


@dataclass(frozen=True)
class UnitPass:
    """What a unit computed at one input.

    Attributes:
        residual: F(x_l), (N, D).
        y: lambda x_l + F(x_l).
        output: x_{l+1} = f(y).
        steps: Each layer of F: its name, input and way back.
        back_f: The way back through f.
    """

    residual: Array
    y: Array
    output: Array
    factor: float
    steps: tuple[tuple[str, Array, Back], ...]
    back_f: Back

    def direct(self, gradient: Array) -> Array:
        """Return what dE/dx_{l+1} is after the shortcut alone: the factor of Eq. (8), and the mask of f."""
        return self.factor * self.back_f(gradient)

    def backward(self, gradient: Array) -> UnitGradients:
        """Return all gradients for dE/dx_{l+1}."""
        through, weights = self.back_f(gradient), {}
        for name, entering, back in reversed(self.steps):
            if name in ("w1", "w2"):
                weights[name] = entering.T @ through
            through = back(through)
        return UnitGradients(self.direct(gradient), through, **weights)


@dataclass(frozen=True)
class VectorUnit:
    """A residual unit on vectors, x_{l+1} = f(lambda x_l + F(x_l)) of Eqs. (1), (2) and (6).

    Attributes:
        w1, w2: The weights, (D, H) and (H, D).
        placement: A key of `LAYERS`. The original unit has ReLU after the addition, the other one nothing.
        normalised: What `normalise` takes mean and variance over.
        factor: lambda.
        eps: Of `normalise`.
    """

    w1: Array
    w2: Array
    placement: VectorPlacement = "preact"
    normalised: Normalised = "batch"
    factor: float = 1.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for given, known in ((self.placement, VectorPlacement), (self.normalised, Normalised)):
            if given not in get_args(known):
                raise PaperbenchError(f"Vector units know no {given!r}. Choose from {', '.join(get_args(known))}.")
        if self.w1.ndim != 2 or self.w1.shape != self.w2.shape[::-1]:
            raise PaperbenchError(f"Weights {self.w1.shape} and {self.w2.shape} make no unit. Give (D, H) and (H, D).")

    def forward(self, x: Array) -> UnitPass:
        """Compute the unit at an input, (N, D)."""
        layers: dict[str, Callable[[Array], tuple[Array, Back]]] = {
            "w1": lambda a: linear(a, self.w1),
            "w2": lambda a: linear(a, self.w2),
            "norm": lambda a: normalise(a, self.normalised, self.eps),
            "relu": relu,
        }
        residual, steps = x, []
        for name in LAYERS[self.placement]:
            entering = residual
            residual, back = layers[name](entering)
            steps.append((name, entering, back))
        y = self.factor * x + residual
        output, back_f = relu(y) if self.placement == "original" else (y, _unchanged)
        return UnitPass(residual, y, output, self.factor, tuple(steps), back_f)


class TorchUnit(nn.Module):
    """The same unit of torch's modules. It has its own copy of the weights; its signals are float64."""

    def __init__(self, unit: VectorUnit) -> None:
        super().__init__()
        self.factor = unit.factor

        def weights(w: Array) -> nn.Linear:
            layer = nn.Linear(w.shape[0], w.shape[1], bias=False, device="meta")
            layer.weight = nn.Parameter(torch.tensor(w.T))
            return layer

        def norm(size: int) -> nn.Module:
            if unit.normalised == "batch":
                return nn.BatchNorm1d(size, unit.eps, affine=False, track_running_stats=False)
            if unit.normalised == "features":
                return nn.LayerNorm(size, unit.eps, elementwise_affine=False)
            return nn.Identity()

        (dim, hidden), relu = unit.w1.shape, nn.ReLU()
        self.w1, self.w2 = weights(unit.w1), weights(unit.w2)
        if unit.placement == "original":
            self.residual = nn.Sequential(self.w1, norm(hidden), relu, self.w2, norm(dim))
            self.after_addition: nn.Module = relu
        else:
            self.residual = nn.Sequential(norm(dim), relu, self.w1, norm(hidden), relu, self.w2)
            self.after_addition = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.after_addition(self.factor * x + self.residual(x))
        return output


def stack(
    depth: int,
    dim: int,
    hidden: int | None = None,
    *,
    placement: VectorPlacement = "preact",
    normalised: Normalised = "batch",
    factor: float = 1.0,
    seed: int = 0,
) -> list[VectorUnit]:
    """Return units in a row with He's initialisation, as in `ResidualNet.init_weights`.

    Args:
        depth: L, the number of units.
        dim, hidden: D and H; H is D by default.
    """
    random, hidden = np.random.default_rng(seed), hidden or dim

    def he(inputs: int, outputs: int) -> Array:
        return random.normal(0, np.sqrt(2 / outputs), (inputs, outputs))

    return [VectorUnit(he(dim, hidden), he(hidden, dim), placement, normalised, factor) for _ in range(depth)]


def signals(units: Sequence[VectorUnit], x: Array) -> list[UnitPass]:
    """Pass a signal through units in a row.

    Args:
        x: x_0, (N, D).
    """
    passes: list[UnitPass] = []
    for unit in units:
        passes.append(unit.forward(passes[-1].output if passes else x))
    return passes


def gradients(passes: Sequence[UnitPass], gradient: Array) -> tuple[list[Array], list[Array]]:
    """Return dE/dx_l for l = 0 to L, and its first term in Eqs. (5) and (8).

    The first term passes shortcuts alone: in the original unit, where both equations are approximate, with what ReLU
    lets pass. The second term is the difference.

    Args:
        gradient: dE/dx_L, (N, D).
    """
    whole, direct = [gradient], [gradient]
    for one in reversed(passes):
        found = one.backward(whole[-1])
        whole.append(found.direct + found.through)
        direct.append(one.direct(direct[-1]))
    return whole[::-1], direct[::-1]


def toy_gradients(
    units: Sequence[VectorUnit], gradient: Array, *, spread: float = 0.01, seed: int = 0
) -> dict[str, list[Array]]:
    """Return what texts simulate in place of dE/dx_l, for l = 0 to L.

    - "random factors" multiplies each value in each unit by lambda + z, z ~ N(0, spread^2), and in the original unit
      also by 0 or 1 at even odds, for its ReLU. It knows nothing of weights and signal.
    - "weights alone" takes F for W2 W1, without ReLU and normalisation.

    Args:
        gradient: dE/dx_L, (N, D).
        seed: Of the random factors.
    """
    random = np.random.default_rng(seed)
    factors, weights = [gradient], [gradient]
    for unit in reversed(units):
        factor = unit.factor + spread * random.standard_normal(gradient.shape)
        mask = random.integers(2, size=gradient.shape) if unit.placement == "original" else 1
        factors.append(factors[-1] * factor * mask)
        weights.append(weights[-1] * unit.factor + weights[-1] @ unit.w2.T @ unit.w1.T)
    return {"random factors": factors[::-1], "weights alone": weights[::-1]}


def norms(units: Sequence[VectorUnit], x: Array, gradient: Array, *, seed: int = 0) -> dict[str, Array]:
    """Return the norms of true and simulated gradients side by side, for l = 0 to L, each over that of dE/dx_L.

    Args:
        x: x_0, (N, D).
        gradient: dE/dx_L, (N, D).
        seed: Of the simulation.
    """
    whole, direct = gradients(signals(units, x), gradient)
    found = {"true": whole, "first term": direct, **toy_gradients(units, gradient, seed=seed)}
    length = np.linalg.norm(gradient)
    return {name: np.array([np.linalg.norm(one) / length for one in column]) for name, column in found.items()}


def _unchanged(gradient: Array) -> Array:
    return gradient
