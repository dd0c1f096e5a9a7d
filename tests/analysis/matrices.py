"""Signal and gradient in a net by explicit matrices, on top of the independent implementation of the nets.

Every unit's shortcut becomes a sparse matrix: a product of diagonal matrices (factors, masks of ReLU, scales of BN) and
of the strided 1x1 convolution or option A on the shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse  # type: ignore[import-untyped]
from torch import Tensor

from paperbench.models import ResidualNet
from tests.reference import Parameters, State, Unit, _stem, units_of_stages

EPS = 1e-5
AFTER_ADDITION = ("original", "bn_after_addition")
GATED = ("exclusive_gating", "shortcut_only_gating")


@dataclass(frozen=True)
class Trace(Unit):
    """A unit that notes what it adds.

    Attributes:
        seen: Receives h before its factor, the factor, F with its factor, and y.
    """

    seen: dict[str, Tensor]

    def add(self, read: Tensor, f: Tensor) -> Tensor:
        net, h = self.net, self.shortcut(read)
        factor, residual = torch.ones_like(h), f
        if net.shortcut == "constant_scaling":
            assert net.shortcut_scale is not None
            assert net.residual_scale is not None
            factor, residual = factor * net.shortcut_scale, f * net.residual_scale
        elif net.shortcut in GATED:
            name = f"{self.name}.addition.gate"
            gate = torch.sigmoid(self.p.conv(name, read, 1, self.channels, self.stride, bias=True))
            factor, residual = 1 - gate, gate * f if net.shortcut == "exclusive_gating" else f
        elif net.shortcut == "dropout":
            drawn = torch.get_rng_state()
            kept = (F.dropout(torch.ones_like(h), 0.5) > 0).double() if self.p.training else 0.5 * factor
            factor = kept * (2 if net.inverted else 1)
            torch.set_rng_state(drawn)
        y = super().add(read, f)
        torch.testing.assert_close(y, factor * h + residual, rtol=1e-12, atol=1e-12)
        self.seen.update({"h": h, "read": read, "factor": factor, "residual": residual, "y": y})
        return y


class WithoutResidual(Unit):
    """A unit with F = 0."""

    def add(self, read: Tensor, f: Tensor) -> Tensor:
        return super().add(read, torch.zeros_like(f))


@dataclass
class At:
    """A unit at one input.

    Attributes:
        x, output: x_l and x_{l+1}.
        seen: See `Trace`.
        changes: Whether the unit changes dimensions.
        shares: Whether its pre-activation comes before the split.
        projects: Whether a projection changes the dimensions.
        without_residual: The unit with F = 0.
        linear: Matrix of the shortcut up to the addition's factor, from what it reads.
        matrix: Matrix of the shortcut from x_l to x_{l+1}.
        identity: Matrix of an identity shortcut.
    """

    x: Tensor
    output: Tensor
    seen: dict[str, Tensor]
    changes: bool
    shares: bool
    projects: bool
    without_residual: Callable[[Tensor], Tensor]
    linear: Any
    matrix: Any
    identity: Any


@dataclass
class Walked:
    """A net at a batch.

    Attributes:
        output: x_L.
        loss: E.
        is_conv: Whether its shortcuts are convolutions.
        ends_in_relu: Whether its units do.
    """

    units: list[At]
    output: Tensor
    loss: Tensor
    is_conv: bool
    ends_in_relu: bool


def walk(model: ResidualNet, images: Tensor, labels: Tensor, *, by_batch: bool, seed: int) -> Walked:
    """Pass images through a net in float64."""
    net = model.net
    state: State = {name: tensor.detach().clone().double() for name, tensor in model.state_dict().items()}
    p = Parameters(state, by_batch)
    x = _stem(p, net, images.double()).detach().requires_grad_()
    units: list[At] = []
    for stage, number in enumerate(units_of_stages(net.family, net.depth)):
        width = (64 if net.family.startswith("imagenet") else 16) * 2**stage
        channels = 4 * width if "bottleneck" in net.family else width
        for index in range(number):
            first, noise, stride = stage == index == 0, seed + len(units), 2 if stage and not index else 1
            own = (p, net, f"stages.{stage}.{index}", channels, stride)
            seen: dict[str, Tensor] = {}
            torch.manual_seed(noise)
            output = Trace(*own, seen)(x, first=first)
            units.append(_at(Unit(*own), x, output, seen, noise, first=first))
            x = output
    features = x
    if net.placement == "preact":
        features = p.bn("tail.bn", x)
    if "preact" in net.placement:
        features = features.clamp(min=0)
    logits = features.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    loss = -logits.log_softmax(1)[range(len(labels)), labels].mean()
    return Walked(units, x, loss, net.shortcut == "conv", net.placement in AFTER_ADDITION)


def _at(unit: Unit, x: Tensor, output: Tensor, seen: dict[str, Tensor], noise: int, *, first: bool) -> At:
    net, p, name = unit.net, unit.p, unit.name
    held = {key: tensor.detach() for key, tensor in seen.items()}
    x_at, read = x.detach(), held["read"]
    changes = unit.changes_dimensions(x)
    early = first and net.family.startswith("imagenet")
    shares = "preact" in net.placement and not early and (first or (changes and net.transition_shortcut == "activated"))

    def alone(signal: Tensor) -> Tensor:
        torch.manual_seed(noise)
        return WithoutResidual(p, net, name, unit.channels, unit.stride)(signal, first=first)

    weight = p.state.get(f"{name}.shortcut.conv.weight")
    selection = torch.eye(unit.channels, x.shape[1], dtype=torch.float64)
    linear = resizing(selection if weight is None else weight[:, :, 0, 0], read, unit.stride)
    if f"{name}.shortcut.bn.weight" in p.state:
        assert weight is not None
        linear = diagonal(bn_scale(p, f"{name}.shortcut.bn", F.conv2d(read, weight, stride=unit.stride))) @ linear
    matrix: Any = diagonal(held["factor"]) @ linear
    if shares:
        scale = bn_scale(p, f"{name}.preactivation.bn", x_at) if net.placement == "preact" else torch.ones_like(x_at)
        matrix = matrix @ diagonal(scale * (read > 0))
    if net.placement == "bn_after_addition":
        matrix = diagonal(bn_scale(p, f"{name}.after_addition.bn", held["y"])) @ matrix
    if net.placement in AFTER_ADDITION:
        matrix = diagonal((output > 0).double()) @ matrix
    is_conv = net.shortcut == "conv"
    identity = resizing(selection if weight is None or is_conv else weight[:, :, 0, 0], x_at, unit.stride)
    projects = weight is not None and not is_conv
    return At(x, output, held, changes, shares, projects, alone, linear, matrix, identity)


def resizing(weight: Tensor, x: Tensor, stride: int) -> Any:
    """Return the matrix of a strided 1x1 convolution of (N, C, H, W)."""
    images, _, height, width = x.shape
    rows, columns = (sparse.csr_matrix(np.eye(side)[::stride]) for side in (height, width))
    spatial = sparse.kron(rows, columns)
    return sparse.kron(sparse.eye(images), sparse.kron(sparse.csr_matrix(weight.numpy()), spatial)).tocsr()


def bn_scale(p: Parameters, name: str, x: Tensor) -> Tensor:
    """Return what BN multiplies each value by, if its statistics are those at x."""
    variance = ((x - x.mean((0, 2, 3), keepdim=True)) ** 2).mean((0, 2, 3))
    variance = variance if p.training else p.state[f"{name}.running_var"]
    return (p.state[f"{name}.weight"] / (variance + EPS).sqrt()).view(1, -1, 1, 1).expand_as(x)


def diagonal(values: Tensor) -> Any:
    return sparse.diags(flat(values))


def flat(x: Tensor) -> np.ndarray:
    return x.detach().numpy().ravel()


def columns(walked: Walked) -> Iterator[dict[str, Any]]:
    """Yield the values of `Passes` for each unit by name, by their definitions in paperbench.analysis.record."""
    units = walked.units
    gradients = [flat(g) for g in torch.autograd.grad(walked.loss, [unit.x for unit in units], retain_graph=True)]
    (last,) = torch.autograd.grad(walked.loss, walked.output, retain_graph=True)
    terms = [flat(units[0].x)]
    carried, alone, identity = flat(units[0].x), units[0].x.detach(), flat(units[0].x)
    for index, unit in enumerate(units):
        x, output, seen = flat(unit.x), flat(unit.output), {key: flat(value) for key, value in unit.seen.items()}
        if unit.shares:
            np.testing.assert_allclose(sum(terms), x, rtol=1e-9, atol=1e-9)  # Eq. (4)
            terms = [flat(unit.seen["read"])]
        offset = seen["h"] - unit.linear @ seen["read"]  # the shift of BN on the shortcut
        weighted = diagonal(unit.seen["factor"])
        terms = [weighted @ (unit.linear @ term) for term in terms] + [weighted @ offset, seen["residual"]]
        alone, identity = unit.without_residual(alone).detach(), unit.identity @ identity
        direct = unchanged = flat(last)
        for later in reversed(units[index:]):
            direct, unchanged = later.matrix.T @ direct, later.identity.T @ unchanged
        through = gradients[index] - direct
        norms = np.linalg.norm(direct) * np.linalg.norm(through)
        yield {
            **{f"signal_{name}": value for name, value in described(x).items()},
            **{f"residual_{name}": value for name, value in described(seen["residual"]).items()},
            "input_share": carried @ x / (x @ x),
            "sum_error": np.linalg.norm(output - sum(terms)) / np.linalg.norm(output),
            "negative": np.count_nonzero(seen["y"] < 0) / seen["y"].size,
            "cut": np.count_nonzero(output == 0) / output.size if walked.ends_in_relu else None,
            "identity_error": np.linalg.norm(flat(alone) - identity) / np.linalg.norm(identity),
            "identity_kept": flat(alone) @ identity / (identity @ identity),
            "factor": seen["factor"].mean(),
            "gradient_norm": np.linalg.norm(gradients[index]),
            "direct_norm": np.linalg.norm(direct),
            "through_norm": np.linalg.norm(through),
            "direct_share": direct @ gradients[index] / (gradients[index] @ gradients[index]),
            "cosine": direct @ through / norms if norms else None,
            "predicted": None if walked.is_conv else np.prod([later.seen["factor"].mean() for later in units[index:]]),
            "measured": direct @ unchanged / (unchanged @ unchanged),
        }
        carried = unit.matrix @ carried
        if unit.shares or unit.projects:
            identity = flat(alone)


def described(x: np.ndarray) -> dict[str, Any]:
    return {"norm": np.linalg.norm(x), "mean": x.mean(), "std": x.std()}
