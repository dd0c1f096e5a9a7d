"""Where BN and ReLU stand in a residual unit: the five cases of Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Component = Literal["bn", "relu"]


@dataclass(frozen=True)
class Placement:
    """Where BN and ReLU stand in a residual unit (Fig. 4 of the paper).

    Between two weight layers every placement has BN and ReLU; they differ in the three other places.

    Attributes:
        name: The word used in net names.
        figure: The drawing in the paper.
        title: The row heading of Table 2.
        before: Components in front of the first weight layer, the unit's pre-activation.
        last: Components behind the last weight layer, before the addition.
        after_addition: Components behind the addition, the function f of Eq. (2).
    """

    name: str
    figure: str
    title: str
    before: tuple[Component, ...] = ()
    last: tuple[Component, ...] = ()
    after_addition: tuple[Component, ...] = ()

    @property
    def stem(self) -> tuple[Component, ...]:
        """Components behind the first convolution of the net.

        Unit 1 must read BN-ReLU of that convolution in every placement. What its own pre-activation supplies, the stem
        leaves out ("the first activation right after conv1 and before splitting into two paths", Appendix).
        """
        components: tuple[Component, ...] = ("bn", "relu")
        return tuple(c for c in components if c not in self.before)

    @property
    def tail(self) -> tuple[Component, ...]:
        """Components behind the last addition of the net ("an extra activation right after", Appendix)."""
        return self.before

    @property
    def projection_bn(self) -> bool:
        """Whether a projection shortcut has BN: where the residual branch has BN behind its last weight layer."""
        return "bn" in self.last


PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {
        p.name: p
        for p in (
            Placement("original", "4(a)", "original Residual Unit", last=("bn",), after_addition=("relu",)),
            Placement("bn_after_addition", "4(b)", "BN after addition", after_addition=("bn", "relu")),
            Placement("relu_before_addition", "4(c)", "ReLU before addition", last=("bn", "relu")),
            Placement("relu_only_preact", "4(d)", "ReLU-only pre-activation", before=("relu",), last=("bn",)),
            Placement("preact", "4(e)", "full pre-activation", before=("bn", "relu")),
        )
    }
)
