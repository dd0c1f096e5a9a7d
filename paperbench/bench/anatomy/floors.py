"""The least that a training step must do, counted from the architecture: operations, bytes, kernel launches.

Bytes are elements read and written by each kernel, all through device memory, at three levels:

- "unfused": every operation by itself, as eager PyTorch runs them. BN reads its input twice and writes once going
  forward, and reads input and gradient twice and writes once going back; ReLU 1 + 1 and 2 + 1; an addition 2 + 1; a
  gradient that comes from two consumers is added up, 2 + 1; a convolution reads or writes its input and its output in
  each of its three passes.
- "fused": BN and ReLU are one, the ReLU's mask is recomputed, and the addition is part of the statistics behind it:
  8 for an element of BN, 3 for one of the residual stream, convolutions as before.
- "ideal": the convolution before gathers the statistics and the convolution after normalises as it reads, so that BN
  and ReLU move nothing: convolutions as before, 3 for an element of the residual stream.

Caches can hold what was written a moment ago, so small tensors may beat these floors; saved activations cannot. Nothing
here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from paperbench.architecture import Convolution, Unit, macs, num_features, parameters, stem, tail, units
from paperbench.catalogue import FAMILIES, Net
from paperbench.errors import PaperbenchError

Level = Literal["unfused", "fused", "ideal"]
LEVELS: tuple[Level, ...] = get_args(Level)

Work = Literal["convolution", "normalisation"]
"""What the floors tell apart within a net. Normalisation: BN, ReLU and additions, which fuse with each other."""

BYTES_OF = {
    "fp32": (4, 4),
    "tf32": (4, 4),
    "bf16": (2, 2),
    "bf16-fp32-stream": (2, 4),
}
"""Bytes of an element by precision: of activations, and of the residual stream."""

LEVEL_OF_ENGINE: dict[str, Level] = {"eager": "unfused", "graph": "unfused", "compile": "fused"}
"""What each engine's kernels can fuse."""


def passes_of(engine: str, batch_size: int, group: int) -> int:
    """In how many parts an engine works a batch off: one a batch-norm group, but all at once if compiled."""
    return 1 if engine == "compile" else batch_size // group


@dataclass
class _Traffic:
    """Elements an image that are read or written, in activations and in the residual stream."""

    inner: float = 0.0
    stream: float = 0.0

    def add(self, inner: float = 0.0, stream: float = 0.0) -> None:
        self.inner += inner
        self.stream += stream


@dataclass
class _Counts:
    """What one pass over a net, forward and backward, consists of."""

    traffic: dict[Level, dict[Work, _Traffic]] = field(
        default_factory=lambda: {level: {"convolution": _Traffic(), "normalisation": _Traffic()} for level in LEVELS}
    )
    convolutions: int = 0
    batch_norms: int = 0
    relus: int = 0
    additions: int = 0
    accumulations: int = 0


@dataclass(frozen=True)
class PlacedConvolution:
    """A convolution of a net and the side of what it reads.

    Attributes:
        number: How often it occurs.
        needs_input_gradient: Whether anything trainable lies before it.
    """

    convolution: Convolution
    size: int
    number: int
    needs_input_gradient: bool = True


class Floors:
    """Counted work of one net.

    Args:
        net: With shortcuts that are the identity, option A or a convolution.

    Raises:
        PaperbenchError: The shortcuts are of another kind.
    """

    def __init__(self, net: Net) -> None:
        if net.shortcut not in ("identity", "conv"):
            raise PaperbenchError(
                f"Floors are counted for nets whose shortcuts are the identity or a convolution, not {net.shortcut}. "
                "Choose another net."
            )
        self.net = net
        self.parameters = parameters(net)
        self.size = FAMILIES[net.family].size
        self.forward_flops = 2 * macs(net)
        """Floating-point operations an image of the forward pass: convolutions and classifier, 2 a multiply-add."""
        first = stem(net).convolution
        self.training_flops = 3 * self.forward_flops - 2 * first.macs(self.size)
        """The same with both gradients; none is needed for the images."""
        self._counts = _count(net)

    def bytes_per_image(self, level: Level, precision: str, work: Work | None = None) -> float:
        """Bytes through device memory for one image, forward and backward, of one kind of work or of all."""
        inner, stream = BYTES_OF[precision]
        by_work = self._counts.traffic[level]
        chosen = by_work.values() if work is None else [by_work[work]]
        return sum(t.inner * inner + t.stream * stream for t in chosen)

    def input_bytes(self) -> int:
        """Bytes to make one image of a batch: pixels read as bytes, written as float32."""
        return self.size**2 * self.net.in_chans * 5

    def optimiser_bytes(self, passes: int = 1) -> int:
        """Bytes of one SGD step with momentum, and of adding up the gradients of `passes` passes, in float32."""
        return 4 * self.parameters * (5 + 3 * (passes - 1))

    def step_bytes(self, level: Level, precision: str, batch_size: int, passes: int = 1) -> float:
        """Bytes of a whole step."""
        per_image = self.bytes_per_image(level, precision) + self.input_bytes()
        return batch_size * per_image + self.optimiser_bytes(passes)

    def launches(self, level: Level, passes: int = 1) -> int:
        """Kernels of forward and backward of a batch that is worked off in `passes` passes; BN's counters excluded.

        Unfused: three a convolution, two each for BN and ReLU, one an addition. Fused, as Inductor does it: three a
        convolution and six a BN. Ideal: two a convolution, whatever the number of passes.
        """
        c = self._counts
        by_level = {
            "unfused": 3 * c.convolutions - 1 + 2 * c.batch_norms + 2 * c.relus + c.additions + c.accumulations,
            "fused": 3 * c.convolutions - 1 + 6 * c.batch_norms,
            "ideal": 2 * c.convolutions,
        }
        return by_level[level] * (1 if level == "ideal" else passes)

    @property
    def operations(self) -> dict[str, int]:
        """How many of each kind a forward pass has, and how often a gradient is added to another."""
        c = self._counts
        return {
            "convolution": c.convolutions,
            "batch_norm": c.batch_norms,
            "relu": c.relus,
            "addition": c.additions,
            "accumulation": c.accumulations,
        }


def placed_convolutions(net: Net) -> list[PlacedConvolution]:
    """The different convolutions of a net in order of first occurrence, and how often each occurs."""
    found: dict[tuple[Convolution, int, bool], int] = {}
    first = stem(net)
    size = FAMILIES[net.family].size
    found[first.convolution, size, False] = 1
    size = first.output_size(size)
    for unit in units(net):
        for convolution, its_size in _convolutions(unit, size):
            key = (convolution, its_size, True)
            found[key] = found.get(key, 0) + 1
        size = unit.output_size(size)
    return [PlacedConvolution(c, s, number, needed) for (c, s, needed), number in found.items()]


def _convolutions(unit: Unit, size: int) -> Iterator[tuple[Convolution, int]]:
    if isinstance(unit.resizing, Convolution):
        yield unit.resizing, size
    for layer in unit.weight_layers:
        yield layer, size
        size = layer.output_size(size)


def _count(net: Net) -> _Counts:
    """Walk through the net; every tensor is an activation ("inner") or part of the residual stream."""
    counts = _Counts()
    walk = _Walk(counts)
    first, size = stem(net), FAMILIES[net.family].size
    walk.convolution(first.convolution, size, writes_stream=not first.components, trains_input=False)
    size = first.convolution.output_size(size)
    channels = first.convolution.outputs
    for component in first.components:
        walk.component(component, channels * size**2)
    if first.pools:
        pooled = first.output_size(FAMILIES[net.family].size)
        walk.other(2 * channels * (size**2 + pooled**2))  # forward reads and writes; so does the way back
        size = pooled
    for unit in units(net):
        walk.unit(unit, size)
        size = unit.output_size(size)
    features = num_features(net)
    for component in tail(net):
        walk.component(component, features * size**2, reads_stream=component == tail(net)[0])
    walk.other(2 * features * size**2)  # average pooling reads; its gradient is written
    return counts


class _Walk:
    def __init__(self, counts: _Counts) -> None:
        self._counts = counts

    def _normalisation(self, level: Level) -> _Traffic:
        return self._counts.traffic[level]["normalisation"]

    def convolution(
        self,
        convolution: Convolution,
        size: int,
        *,
        reads_stream: bool = False,
        writes_stream: bool = False,
        trains_input: bool = True,
    ) -> None:
        self._counts.convolutions += 1
        passes = 3 if trains_input else 2
        read = passes * convolution.inputs * size**2
        written = passes * convolution.outputs * convolution.output_size(size) ** 2
        for level in LEVELS:
            traffic = self._counts.traffic[level]["convolution"]
            traffic.add(**{"stream" if reads_stream else "inner": read})
            traffic.add(**{"stream" if writes_stream else "inner": written})

    def component(self, name: str, elements: float, *, reads_stream: bool = False, on_stream: bool = False) -> None:
        """BN or ReLU. BN's output is an activation unless it stands behind the addition (`on_stream`)."""
        source = "stream" if reads_stream or on_stream else "inner"
        target = "stream" if on_stream else "inner"
        if name == "relu":
            self._counts.relus += 1
            self._normalisation("unfused").add(**{source: 2 * elements})  # x, its gradient
            self._normalisation("unfused").add(**{target: 3 * elements})  # y twice, its gradient
            return
        self._counts.batch_norms += 1
        for level in LEVELS[:2]:
            traffic = self._normalisation(level)
            traffic.add(**{source: 5 * elements})  # x twice forward and twice back, its gradient once
            traffic.add(**{target: 3 * elements})  # y once, its gradient twice

    def other(self, elements: float) -> None:
        """Traffic that no level saves."""
        for level in LEVELS:
            self._normalisation(level).add(inner=elements)

    def unit(self, unit: Unit, size: int) -> None:
        elements_in = unit.in_channels * size**2
        for component in unit.before:
            self.component(component, elements_in, reads_stream=component == unit.before[0])
        # Whatever feeds both shortcut and residual function gets two gradients.
        self._counts.accumulations += 1
        if unit.shortcut_reads == "activated":
            self._normalisation("unfused").add(inner=3 * elements_in)
        else:
            self._normalisation("unfused").add(stream=3 * elements_in)
        reads_raw = not unit.before
        out = unit.output_size(size)
        elements_out = unit.out_channels * out**2
        if isinstance(unit.resizing, Convolution):
            self.convolution(unit.resizing, size, reads_stream=unit.shortcut_reads == "raw")
            if unit.resizing_bn:
                self.component("bn", elements_out)
        elif unit.resizing == "zero_pad":
            for level in LEVELS[:2]:
                self._normalisation(level).add(stream=4 * elements_out)
        where = size
        for k, layer in enumerate(unit.weight_layers, start=1):
            self.convolution(layer, where, reads_stream=reads_raw and k == 1)
            where = layer.output_size(where)
            is_last = k == len(unit.weight_layers)
            for component in unit.last if is_last else ("bn", "relu"):
                self.component(component, layer.outputs * where**2)
        self._counts.additions += 1
        for level in LEVELS:
            self._normalisation(level).add(stream=3 * elements_out)
        for component in unit.after_addition:
            self.component(component, elements_out, on_stream=True)
