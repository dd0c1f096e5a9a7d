"""What is measured beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["plain", "plain-on-device", "paperbench"]
"""plain: as public repositories ship it, with a DataLoader; plain-on-device: the same step on batches that are on the
device already; paperbench: our trainer."""


@dataclass(frozen=True)
class Variant:
    """One way to train a net.

    Attributes:
        kind: Whose loop.
        engine: Of our trainer; "eager" for the plain loops.
        precision: Arithmetic of the step.
    """

    kind: Kind
    engine: str
    precision: str

    @property
    def is_ours(self) -> bool:
        """Whether it is our trainer."""
        return self.kind == "paperbench"

    @property
    def label(self) -> str:
        """What people read."""
        names = {"plain": "plain loop", "plain-on-device": "plain loop, on-device", "paperbench": self.engine}
        return f"{names[self.kind]} {self.precision}"


def plain_precision(precision: str) -> str:
    """The precision of a plain loop that is equal to one of ours: a float32 stream within bf16 is ours alone."""
    return "bf16" if precision.startswith("bf16") else precision


def plain_variants(precisions: Sequence[str], as_shipped: str) -> tuple[Variant, ...]:
    """The plain loops that ratios are taken against: as shipped first, then at each precision, then on-device.

    Args:
        precisions: Those that ours is measured in.
        as_shipped: What the plain loop computes in when nobody tells it otherwise.
    """
    equal = list(dict.fromkeys(plain_precision(p) for p in precisions))
    with_loader = dict.fromkeys([as_shipped, *equal])
    return (
        *(Variant("plain", "eager", precision) for precision in with_loader),
        *(Variant("plain-on-device", "eager", precision) for precision in equal),
    )


def ours(engines: Sequence[str], precisions: Sequence[str]) -> Iterator[Variant]:
    """Every engine in every precision."""
    for precision in precisions:
        for engine in engines:
            yield Variant("paperbench", engine, precision)
