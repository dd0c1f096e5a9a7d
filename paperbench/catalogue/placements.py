"""Placements of BN and ReLU in a residual unit: the five cases of Fig. 4. `paperbench.models.register` adds others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Component:
    """What stands between weight layers, such as BN.

    Attributes:
        name: The name used in placements and in the names of modules.
        title: Name in sentences and drawings.
        kind: Whether it normalises the signal or is its nonlinearity.
        parameters: Trainable parameters per channel.
    """

    name: str
    title: str
    kind: Literal["norm", "activation"]
    parameters: int = 0


COMPONENTS: dict[str, Component] = {
    c.name: c for c in (Component("bn", "BN", "norm", parameters=2), Component("relu", "ReLU", "activation"))
}


@dataclass(frozen=True)
class Placement:
    """A placement of BN and ReLU in a residual unit (Fig. 4 of the paper).

    Those of the paper have BN and ReLU between two weight layers, and differ in three other positions.

    Attributes:
        name: The name used in net names.
        figure: Number of the figure in the paper; empty without one.
        title: Row heading in Table 2.
        before: Names of components before the first weight layer, the pre-activation.
        last: Components after the last weight layer, before the addition.
        after_addition: Components after the addition, the function f of Eq. (2).
        between: Components between two weight layers.
    """

    name: str
    figure: str
    title: str
    before: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    after_addition: tuple[str, ...] = ()
    between: tuple[str, ...] = ("bn", "relu")

    @property
    def projection_norm(self) -> tuple[str, ...]:
        """The norm of projection shortcuts: that of the residual branch after its last weight layer, if it has one."""
        return tuple(name for name in self.last if COMPONENTS[name].kind == "norm")


PLACEMENTS: dict[str, Placement] = {
    p.name: p
    for p in (
        Placement("original", "4(a)", "original Residual Unit", last=("bn",), after_addition=("relu",)),
        Placement("bn_after_addition", "4(b)", "BN after addition", after_addition=("bn", "relu")),
        Placement("relu_before_addition", "4(c)", "ReLU before addition", last=("bn", "relu")),
        Placement("relu_only_preact", "4(d)", "ReLU-only pre-activation", before=("relu",), last=("bn",)),
        Placement("preact", "4(e)", "full pre-activation", before=("bn", "relu")),
    )
}
