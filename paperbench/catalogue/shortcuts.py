"""The six shortcut connections of Fig. 2, including the two gated ones (gating, Sec. 3.1), and their arguments.

`paperbench.models.shortcuts` implements them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Shortcut:
    """A kind of shortcut connection (Fig. 2 of the paper).

    Attributes:
        name: Value of the argument `shortcut`.
        figure: Number of the figure in the paper.
        title: Name in Table 1.
        defaults: Arguments of this kind of shortcut, with their default values.
    """

    name: str
    figure: str
    title: str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_SCALES = MappingProxyType({"shortcut_scale": 0.5, "residual_scale": 1.0})
_GATE = MappingProxyType({"gate_bias": -6.0, "gate_init": "he"})

SHORTCUTS: Mapping[str, Shortcut] = MappingProxyType(
    {
        s.name: s
        for s in (
            Shortcut("identity", "2(a)", "identity"),
            Shortcut("constant_scaling", "2(b)", "constant scaling", _SCALES),
            Shortcut("exclusive_gating", "2(c)", "exclusive gating", _GATE),
            Shortcut("shortcut_only_gating", "2(d)", "shortcut-only gating", _GATE),
            Shortcut("conv", "2(e)", "1x1 conv shortcut", MappingProxyType({"shortcut_bn": None})),
            Shortcut("dropout", "2(f)", "dropout shortcut", MappingProxyType({"inverted": False})),
        )
    }
)
