"""Paths through a net: its gradient by their length, and its error without single units.

A net of L residual units can be unravelled into 2^L paths, one for each choice of shortcut or weight layers in every
unit: Veit et al., "Residual Networks Behave Like Ensembles of Relatively Shallow Networks", 2016 (arXiv:1605.06431).
That paper draws paths at random and adds up the norms of their gradients. Here all paths are counted, and gradients are
added as vectors, so those of opposite directions cancel, as they do in the net.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paperbench.analysis.linear import UnitAt, pull
from paperbench.analysis.record import LeftOut, Paths
from paperbench.analysis.walk import Subject

LONGEST = 54
"""Longer paths are measured together. All nets of Tables 1 and 2 have at most that many units."""

_CHUNK = 100
"""Images at a time where they do not depend on each other."""


def gradient_by_length(subject: Subject, longest: int = LONGEST) -> Paths:
    """Measure the gradients of all paths of each length up to `longest`, and of all longer ones together."""
    parts = [part.double() for part in split_gradient(subject, longest)]
    whole = torch.stack(parts).sum(0)
    square = whole.square().sum().item() or 1.0
    norms = [part.norm().item() for part in parts]
    shares = [(part * whole).sum().item() / square for part in parts]
    return Paths(
        number=tuple(float(math.comb(len(subject.units), length)) for length, _ in enumerate(parts[: longest + 1])),
        norm=tuple(norms[: longest + 1]),
        share=tuple(shares[: longest + 1]),
        longer_norm=sum(norms[longest + 1 :]),
        longer_share=sum(shares[longest + 1 :]),
    )


def split_gradient(subject: Subject, longest: int) -> list[Tensor]:
    """Return the parts of dE/dx_0 from paths of the lengths 0, 1, ..., `longest`, then from all longer ones, if any.

    Costs about `longest` passes back, half as many if it is the number of units, and the memory of as many signals.
    """
    output, kept = subject.through()
    parts = [pull(subject.loss, output)]
    for unit in subject.backward(kept):
        _pass_back(unit, parts, longest)
    return parts


def _pass_back(unit: UnitAt, parts: list[Tensor], longest: int) -> None:
    """Take the parts of a gradient from a unit's output to its input, in place.

    What a unit's shortcut passes on keeps its length; what weight layers pass on, which is what the whole unit does
    less its shortcut, becomes longer by one.
    """
    with torch.enable_grad():
        leaf = unit.x.detach().requires_grad_()
        outputs = unit.by_shortcut(leaf), unit.whole(leaf)
    none = torch.zeros_like(parts[0])
    parts += [none] if len(parts) < longest + 2 else []
    for length in reversed(range(len(parts))):
        part, shorter = parts[length], parts[length - 1] if length else none
        cotangents = (part - shorter, shorter) if length <= longest else (-shorter, part + shorter)
        (parts[length],) = torch.autograd.grad(outputs, leaf, cotangents, retain_graph=True)


@torch.no_grad()
def leave_out(subject: Subject) -> LeftOut:
    """Measure the error of a net, and its error without each unit in turn.

    What comes before a unit is computed once, so this costs about half as many passes forward as there are units.

    Args:
        subject: As in tests: images must not depend on each other.
    """
    whole, without = 0, [0] * len(subject.units)
    for x, labels in zip(subject.enter().split(_CHUNK), subject.labels.split(_CHUNK), strict=True):
        output = x
        for index, unit in enumerate(subject.forward(x)):
            changed = unit.without_residual(unit.x)
            for _, following in subject.units[index + 1 :]:
                changed = following(changed)
            without[index] += _wrong(subject, changed, labels)
            output = unit.output
        whole += _wrong(subject, output, labels)
    images = len(subject.labels)
    return LeftOut(100 * whole / images, tuple(100 * wrong / images for wrong in without))


def _wrong(subject: Subject, output: Tensor, labels: Tensor) -> int:
    return int((subject.logits(output).argmax(1) != labels).sum())
