"""Families of nets: kind of residual unit, widths, legal depths."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paperbench.errors import PaperbenchError

MAX_LAYERS = 10_000
"""Largest legal depth; the paper's deepest net has 1,202 layers."""


@dataclass(frozen=True)
class Family:
    """A family of nets that differ only in depth.

    Attributes:
        kernels: Kernel sizes of the weight layers of one unit.
        widths: Inner width of the units of each stage. The first convolution has `widths[0]` channels.
        expansion: Output channels of a unit divided by its inner width.
        size: Side of the images in pixels. Nets for small images begin with a 3x3 convolution; nets for large images
            with a 7x7 convolution and max pooling, each of stride 2.
        shortcut_option: Default change of dimensions on the shortcut (options A and B of v1, Sec. 3.3).
        layers_per_n: Weight layers per unit in every stage: depth = layers_per_n * n + 2. None if the stages have
            different numbers of units.
        depths: Units of each stage by depth, if the stages have different numbers of units.
    """

    name: str
    kernels: tuple[int, ...]
    widths: tuple[int, ...]
    expansion: int
    size: int
    shortcut_option: Literal["A", "B"]
    layers_per_n: int | None = None
    depths: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """The kind of residual unit."""
        return {1: "one-layer", 2: "basic", 3: "bottleneck"}[len(self.kernels)]

    @property
    def pools_early(self) -> bool:
        """Whether the net begins with a 7x7 convolution and max pooling."""
        return self.size > 32

    @property
    def least_size(self) -> int:
        """Side of the smallest images that the nets take, in pixels: 2x2 values are left of them in the last stage."""
        return 64 if self.pools_early else 8

    def takes(self, side: int) -> bool:
        """Whether the nets take images with this side, in pixels: of their own size or somewhat smaller."""
        return self.least_size <= side <= self.size

    def units(self, depth: int) -> tuple[int, ...]:
        """Return the number of units in each stage at the given depth."""
        if depth > MAX_LAYERS:
            raise PaperbenchError(f"Depth {depth} of a {self.name} net is too large: the maximum is {MAX_LAYERS:,}.")
        step = self.layers_per_n
        legal: Sequence[int] = range(step + 2, MAX_LAYERS + step, step) if step else sorted(self.depths)
        if depth in legal:
            return (depth // step,) * len(self.widths) if step else self.depths[depth]
        rule = f"{step}n+2" if step else ", ".join(map(str, legal))
        above = bisect(legal, depth)
        neighbours = legal[max(0, above - 1) : above + 1]
        article = "An" if self.name[0] in "aeiou" else "A"
        raise PaperbenchError(
            f"{article} {self.name} net has no depth {depth}: depths are {rule}. "
            f"Nearest: {' or '.join(map(str, neighbours))}."
        )


_CIFAR_WIDTHS = (16, 32, 64)
_IMAGENET_WIDTHS = (64, 128, 256, 512)
_BASIC_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BOTTLENECK_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}

FAMILIES: Mapping[str, Family] = {
    f.name: f
    for f in (
        # v1, Sec. 4.2
        Family("basic", (3, 3), _CIFAR_WIDTHS, 1, 32, "A", layers_per_n=6),
        # the paper, Appendix
        Family("bottleneck", (1, 3, 1), _CIFAR_WIDTHS, 4, 32, "B", layers_per_n=9),
        # the paper, Sec. 4.1, "each shortcut skips only 1 layer"
        Family("one_layer", (3,), _CIFAR_WIDTHS, 1, 32, "A", layers_per_n=3),
        # v1, Table 1; the paper, footnote 3, for 200 layers
        Family("imagenet_basic", (3, 3), _IMAGENET_WIDTHS, 1, 224, "B", depths=_BASIC_DEPTHS),
        Family("imagenet_bottleneck", (1, 3, 1), _IMAGENET_WIDTHS, 4, 224, "B", depths=_BOTTLENECK_DEPTHS),
    )
}
