"""Sums in a fixed order that does not depend on how many processes share the work."""

from __future__ import annotations

import torch
from torch import Tensor


class TreeSum:
    """The sum of lists of tensors, such as the gradients of the batch-norm groups of a batch, in a binary tree.

    Pairs of neighbours are added, then pairs of these sums, and so on; of a number that is no power of two, the largest
    power of two is summed first. Two processes with half of the groups each have the halves of the same tree. At most
    log2(n) + 1 lists of n are kept. The tensors of the last list become the total: those of a net's last backward pass
    stay its gradients.
    """

    def __init__(self) -> None:
        # Numbers of lists, each a smaller power of two than the one before, and their sums.
        self._parts: list[tuple[int, list[Tensor]]] = []

    def add(self, tensors: list[Tensor]) -> None:
        """Add the next list. Its tensors may be overwritten."""
        self._parts.append((1, tensors))
        while len(self._parts) > 1 and self._parts[-2][0] == self._parts[-1][0]:
            self._add_last_two()

    def total(self) -> list[Tensor]:
        """Return the sum of all lists."""
        while len(self._parts) > 1:
            self._add_last_two()
        return self._parts[0][1]

    @torch.no_grad()
    def _add_last_two(self) -> None:
        (n, left), (m, right) = self._parts[-2:]
        torch._foreach_add_(right, left)
        self._parts[-2:] = [(n + m, right)]
