"""torch's global switches of arithmetic on GPUs: read, set, put back.

All of it goes through `fp32_precision`. After that has been set, reading the older `allow_tf32` can raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Flags:
    """The switches.

    Attributes:
        convolution, product: "ieee", "tf32", or "none" where torch leaves it to a broader switch, which is off.
        benchmark: Whether cuDNN chooses algorithms by timing them.
        deterministic: Whether it must choose such as repeat themselves.
    """

    convolution: str
    product: str
    benchmark: bool
    deterministic: bool

    @staticmethod
    def now() -> Flags:
        """As they are."""
        cudnn = torch.backends.cudnn
        return Flags(
            cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
            torch.backends.cuda.matmul.fp32_precision,
            cudnn.benchmark,
            cudnn.deterministic,
        )

    def set(self) -> None:
        """Make torch compute so."""
        torch.backends.cudnn.conv.fp32_precision = self.convolution  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision = self.product
        torch.backends.cudnn.benchmark = self.benchmark
        torch.backends.cudnn.deterministic = self.deterministic


@contextmanager
def put_back() -> Iterator[None]:
    """Leave the switches, whatever is done to them within, as they were before."""
    before = Flags.now()
    try:
        yield
    finally:
        before.set()
