"""Placements of BN and ReLU in a residual unit: the five cases of Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Component = Literal["bn", "relu"]


@dataclass(frozen=True)
class Placement:
    """A placement of BN and ReLU in a residual unit (Fig. 4 of the paper).

    Those of the paper have BN and ReLU between two weight layers, and differ in three other positions.

    Attributes:
        name: The name used in net names.
        figure: Number of the figure in the paper; empty without one.
        title: Row heading in Table 2.
        before: Components before the first weight layer, the pre-activation.
        last: Components after the last weight layer, before the addition.
        after_addition: Components after the addition, the function f of Eq. (2).
        between: Components between two weight layers.
    """

    name: str
    figure: str
    title: str
    before: tuple[Component, ...] = ()
    last: tuple[Component, ...] = ()
    after_addition: tuple[Component, ...] = ()
    between: tuple[Component, ...] = ("bn", "relu")

    @property
    def projection_bn(self) -> bool:
        """Whether projection shortcuts have BN: if the residual branch has BN after its last weight layer."""
        return "bn" in self.last


PLACEMENTS: Mapping[str, Placement] = {
    p.name: p
    for p in (
        Placement("original", "4(a)", "original Residual Unit", last=("bn",), after_addition=("relu",)),
        Placement("bn_after_addition", "4(b)", "BN after addition", after_addition=("bn", "relu")),
        Placement("relu_before_addition", "4(c)", "ReLU before addition", last=("bn", "relu")),
        Placement("relu_only_preact", "4(d)", "ReLU-only pre-activation", before=("relu",), last=("bn",)),
        Placement("preact", "4(e)", "full pre-activation", before=("bn", "relu")),
    )
}
