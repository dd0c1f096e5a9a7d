"""Singular values of the Jacobians of residual units and of chains of units.

A Jacobian takes the whole batch to the whole batch. Where BN uses statistics of the batch, it couples the images;
elsewhere the singular values are those of all images together. Dropout keeps the mask of the pass forward.

The largest values are found without forming a Jacobian J, from its products with vectors, by randomised block Lanczos
(Musco and Musco, "Randomized block Krylov methods for stronger and faster approximate singular value decomposition",
arXiv:1504.05477): JJ^T is applied to a random block again and again, and the best approximations in the space of all
blocks so far are kept. That needs fewer products than power iteration, which keeps only the last block. Of small
Jacobians all values are found, from the whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.analysis.linear import UnitAt, push
from paperbench.analysis.record import Jacobians, Spectrum
from paperbench.analysis.walk import Subject

LARGEST = 4
"""Singular values that are found of each Jacobian; also the vectors in a block."""

STEPS = 8
"""How often a Jacobian and its transpose are applied to a block."""

SMALL = 2048
"""Input and output of at most so many values: the whole matrix takes 32 MB, and its singular values a few seconds."""

_CHUNK = 256


def jacobians(subject: Subject, steps: int = STEPS, small: int = SMALL) -> Jacobians:
    """Return singular values of every unit, of every stage, and of chains of 1, 2, 4, ... and all last units.

    Args:
        steps: See `largest`.
        small: All values are computed of chains whose signals nowhere have more values than that.
    """
    units, end = list(subject.forward()), len(subject.units) - 1
    stages = [unit.stage for unit, _ in subject.units]
    of_units = [(index, index) for index in range(end + 1)]
    of_stages = [(stages.index(stage), end - stages[::-1].index(stage)) for stage in sorted(set(stages))]
    of_chains = [*((end + 1 - 2**power, end) for power in range(end.bit_length())), (0, end)]
    spans = {*of_units, *of_stages, *of_chains}
    found: dict[tuple[int, int], Spectrum] = {}
    matrices: dict[int, Tensor] = {}  # of the chain from the current unit to another one, if it is small
    for index in reversed(range(end + 1)):
        unit = units[index]
        if max(unit.x.numel(), unit.output.numel()) <= small:
            matrix = transposed_matrix(unit)
            matrices = {index: matrix, **{last: matrix @ product for last, product in matrices.items()}}
        else:
            matrices = {}
        for first, last in spans:
            if first == index:
                values = all_values(matrices[last]) if last in matrices else largest(units[first : last + 1], steps)
                found[first, last] = Spectrum(first=first, last=last, **values)
        matrices = {last: one for last, one in matrices.items() if any(a < index and last == b for a, b in spans)}
    return Jacobians(
        steps=steps,
        block=LARGEST,
        units=tuple(found[span] for span in of_units),
        stages=tuple(found[span] for span in of_stages),
        chains=tuple(found[span] for span in of_chains),
    )


def transposed_matrix(unit: UnitAt) -> Tensor:
    """Return the transposed Jacobian of a unit: (values of the input, values of the output)."""
    basis = torch.eye(unit.x.numel(), dtype=unit.x.dtype, device=unit.x.device).reshape(-1, *unit.x.shape)
    return torch.cat([_applied([unit], block).flatten(1) for block in basis.split(_CHUNK)])


def all_values(transposed: Tensor) -> dict[str, Any]:
    """Return what `Spectrum` says about a Jacobian, by name, from its singular values."""
    values = torch.linalg.svdvals(transposed)
    rank = int((values > torch.finfo(values.dtype).eps * max(transposed.shape) * values[0]).sum())
    return {
        "largest": tuple(values[:LARGEST].tolist()),
        "residual": None,
        "rms": float(torch.linalg.vector_norm(values)) / math.sqrt(len(transposed)),
        "values": tuple(values.tolist()),
        "rank": rank,
        "condition": float(values[0] / values[-1]) if rank == len(values) else None,
    }


def largest(chain: Sequence[UnitAt], steps: int) -> dict[str, Any]:
    """Return what `Spectrum` says about the Jacobian of a chain of units, by name, from its products with vectors.

    The values are approached from below.

    Args:
        steps: How often the Jacobian and its transpose are applied to a block.
    """
    like = chain[0].x
    generator = torch.Generator().manual_seed(0)  # one start for all: it only must know nothing of the Jacobian
    random = torch.randn(like.numel(), LARGEST, generator=generator, dtype=torch.float64)
    block = torch.linalg.qr(random.to(like))[0].T
    basis, columns = block.new_empty(0, like.numel()), []
    for _ in range(min(steps, like.numel() // LARGEST)):
        basis = torch.cat([basis, block])
        applied = _transposed(chain, _applied(chain, block.reshape(-1, *like.shape))).reshape(block.shape)
        columns.append(basis @ applied.T)
        remainder = (applied - columns[-1].T @ basis).T
        block, scale = torch.linalg.qr(remainder - basis.T @ (basis @ remainder))
        # Once more: where the remainder is zero, the columns of Q are not orthogonal to the basis.
        block = torch.linalg.qr(block - basis.T @ (basis @ block))[0].T
    projected = torch.cat([F.pad(column, (0, 0, 0, len(basis) - len(column))) for column in columns], 1)
    squares, vectors = torch.linalg.eigh(projected, UPLO="U")
    squares, vectors = squares.flip(0)[:LARGEST].clamp(min=0), vectors.flip(1)[:, :LARGEST]
    residuals = torch.linalg.vector_norm(scale @ vectors[-LARGEST:], dim=0)
    return {
        "largest": tuple(squares.sqrt().tolist()),
        "residual": float((residuals / squares.clamp(min=torch.finfo(like.dtype).tiny)).max()),
        "rms": float(columns[0].diagonal().mean().sqrt()),
    }


def _applied(chain: Sequence[UnitAt], block: Tensor) -> Tensor:
    """Return J v for each v of a block."""
    for unit in chain:
        block = torch.func.vmap(lambda v, at=unit: push(at.whole, at.x, v), randomness="same")(block)
    return block


def _transposed(chain: Sequence[UnitAt], block: Tensor) -> Tensor:
    """Return J^T v for each v of a block."""
    for unit in reversed(chain):
        with torch.enable_grad():
            leaf = unit.x.detach().requires_grad_()
            (block,) = torch.autograd.grad(unit.whole(leaf), leaf, block, is_grads_batched=True)
    return block
