"""What kind of work a kernel does, by its name, and the least that each kind must do in a training step.

Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from paperbench.architecture import Convolution, num_features, parameters, stem, tail, units
from paperbench.catalogue import FAMILIES, Net

Kind = Literal[
    "convolution forward",
    "convolution backward by data",
    "convolution backward by weights",
    "convolution backward",
    "batch norm",
    "elementwise",
    "optimiser",
    "data",
    "copies",
    "classifier, loss",
    "other",
]
"""convolution backward: operators of CPUs, which do both. elementwise: ReLU, additions, sums of gradients. data: making
the batch. copies: casts and changes of layout, too."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_RULES: tuple[tuple[Kind, str], ...] = (
    # Changes of layout before and after convolutions, by cuDNN and Inductor.
    ("copies", r"nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|tensorTransform|scalePackedTensor|pad_channel"),
    (
        "copies",
        r"^triton_poi_fused(__?to_copy|_clone|_copy_?|_convert_element_type|_view|_permute|_convolution)+(_\d+)?$",
    ),
    ("optimiser", r"fused_?sgd|_sgd_"),
    # BN of cuDNN (bn_fw_tr, bn_bw, batchnorm_fwtr_nhwc), of ATen, of Inductor, whose kernels carry operators' names.
    ("batch norm", r"batch_?norm|\bbn_(fw|bw|add|stat|apply)|(^|_)bn_(fw|bw|stats?|apply|reduce)|var_mean|welford"),
    ("elementwise", r"^triton_poi_"),
    ("classifier, loss", r"^triton_(red|per)_"),
    ("convolution backward by data", r"dgrad|col2im"),
    ("convolution backward by weights", r"wgrad"),
    ("convolution backward", r"convolution_backward"),
    (
        "convolution forward",
        r"fprop|winograd|implicit_convolve|implicit_gemm|convolve|convolution|conv2d|conv_depthwise|scudnn|mkldnn_conv|"
        r"cutlass_cudnn|cutlass__5x_cudnn|cudnn.*(xmma|cutlass)|_5x_cudnn|cudnn::cnn|im2col|fft2d|flip_filter|"
        r"compute(B)?OffsetsKernel|triton_tem_fused_\w*conv",
    ),
    ("data", r"gather_kernel|vectorized_gather|index_elementwise|index_?select|aten::(index|gather|index_select)\b"),
    (
        "copies",
        r"memcpy|memset|FillFunctor|fill_kernel|copy_kernel|direct_copy|Copy(Functor)?<|CatArrayBatchedCopy|"
        r"aten::(copy_|_to_copy|_foreach_copy_|fill_|zero_|cat|clone|contiguous)\b",
    ),
    (
        "classifier, loss",
        r"gemm|gemv|nvjet|cublas|splitKreduce|cutlass|matmul|reduce_kernel|softmax|nll_loss|"
        r"cross_entropy|avg_pool|max_pool|argmax|aten::(addmm|mm|bmm|linear|sum|mean|amax|argmax)\b",
    ),
    (
        "elementwise",
        r"elementwise|multi_tensor_apply|threshold|relu|where_kernel|"
        r"aten::(add|add_|mul|mul_|div|div_|sub|neg|clamp_min|threshold_backward|ne|eq|_foreach_\w+)\b",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)


def classify(name: str) -> Kind:
    """The kind of a kernel of cuDNN, cuBLAS, ATen or Inductor, or of an operator; "other" if none is recognised.

    Fused kernels count as what most of their work is: what holds batch norm's statistics or normalisation is batch
    norm, whatever ReLU or addition is fused into it.
    """
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), "other")


BYTES_OF = {"fp32": (4, 4), "tf32": (4, 4), "bf16": (2, 2), "bf16-fp32-stream": (2, 4)}
"""Bytes of an element by precision: of activations, and of the residual stream."""


@dataclass(frozen=True)
class Work:
    """The least that kernels must do: bytes through device memory, floating-point operations, launches."""

    bytes: float = 0.0
    flops: float = 0.0
    launches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops, self.launches + other.launches)


@dataclass(frozen=True)
class Operation:
    """An operation on one image, named as in `_KERNELS`: elements read and written, and whether of the stream."""

    name: str
    inputs: int = 0
    outputs: int = 0
    macs: int = 0
    from_stream: bool = False
    to_stream: bool = False


_KERNELS: dict[str, tuple[tuple[Kind, int, int, int, int], ...]] = {
    "first convolution": (("convolution forward", 1, 1, 1, 1), ("convolution backward by weights", 1, 1, 1, 1)),
    "convolution": (
        ("convolution forward", 1, 1, 1, 1),
        ("convolution backward by data", 1, 1, 1, 1),
        ("convolution backward by weights", 1, 1, 1, 1),
    ),
    "bn": (("batch norm", 5, 3, 2, 6),),
    "relu": (("elementwise", 2, 3, 2, 0),),
    "addition": (("elementwise", 0, 3, 1, 0),),
    "accumulation": (("elementwise", 0, 3, 1, 0),),  # of the gradients of two consumers
    "padding": (("elementwise", 0, 4, 0, 0),),  # of option A
    "pooling": (("classifier, loss", 2, 0, 0, 0),),
}
"""Of each operation, by kind: how often inputs and outputs go through memory, forward and backward together (BN reads
its input twice on either way); launches if each operation is a kernel, and if Inductor fuses them."""

_FUSED = ("relu", "accumulation")
"""Operations that move nothing once they are fused: BN recomputes the ReLU's mask."""


def step_work(
    net: Net, precision: str, *, batch_size: int, passes: int = 1, is_fused: bool = False
) -> dict[Kind, Work] | None:
    """The least work of a training step by kind; None for gated and dropout shortcuts, which are not counted.

    Bytes are counted without caches, which can hold what was written a moment ago: small tensors may beat the floor.

    Args:
        passes: In how many parts the batch goes through the net.
        is_fused: Whether BN, ReLU and additions share kernels.
    """
    if net.shortcut not in ("identity", "conv"):
        return None
    # SGD reads parameter, gradient and momentum and writes two of them; gradients of further passes are added up.
    # Images are read as bytes and written as float32.
    parameter_bytes, pixels = 4 * parameters(net), FAMILIES[net.family].size ** 2 * net.in_chans
    found: dict[Kind, Work] = {
        "elementwise": Work(3 * (passes - 1) * parameter_bytes),
        "optimiser": Work(5 * parameter_bytes, 0.0, 1),
        "data": Work(5 * pixels * batch_size, 0.0, 1),
    }
    size, stream_size = BYTES_OF[precision]
    for operation in operations(net):
        if is_fused and operation.name in _FUSED:
            continue
        for kind, reads, writes, launches, fused_launches in _KERNELS[operation.name]:
            moved = reads * operation.inputs * (stream_size if operation.from_stream else size)
            moved += writes * operation.outputs * (stream_size if operation.to_stream else size)
            number = passes * (fused_launches if is_fused else launches)
            work = Work(moved * batch_size, 2 * operation.macs * batch_size, number)
            found[kind] = found.get(kind, Work()) + work
    return found


def operations(net: Net) -> Iterator[Operation]:
    """The operations of a net for 32-pixel images, in order."""
    first, size = stem(net), FAMILIES[net.family].size
    elements = first.convolution.outputs * size**2
    yield Operation(
        "first convolution",
        first.convolution.inputs * size**2,
        elements,
        first.convolution.macs(size),
        to_stream=not first.components,
    )
    for name in first.components:
        yield Operation(name, elements, elements)
    for unit in units(net):
        elements = unit.in_channels * size**2
        for name in unit.before:
            yield Operation(name, elements, elements, from_stream=name == unit.before[0])
        reads_raw = unit.shortcut_reads == "raw"
        yield Operation("accumulation", outputs=elements, to_stream=reads_raw)
        out_size = unit.output_size(size)
        out_elements = unit.out_channels * out_size**2
        if isinstance(unit.resizing, Convolution):
            yield Operation("convolution", elements, out_elements, unit.resizing.macs(size), from_stream=reads_raw)
            if unit.resizing_bn:
                yield Operation("bn", out_elements, out_elements)
        elif unit.resizing == "zero_pad":
            yield Operation("padding", outputs=out_elements, to_stream=True)
        for k, layer in enumerate(unit.weight_layers, start=1):
            inputs, macs_here = layer.inputs * size**2, layer.macs(size)
            size = layer.output_size(size)
            outputs = layer.outputs * size**2
            from_stream = k == 1 and not unit.before
            yield Operation("convolution", inputs, outputs, macs_here, from_stream=from_stream)
            for name in unit.last if k == len(unit.weight_layers) else ("bn", "relu"):
                yield Operation(name, outputs, outputs)
        yield Operation("addition", outputs=out_elements, to_stream=True)
        for name in unit.after_addition:
            yield Operation(name, out_elements, out_elements, from_stream=True, to_stream=True)
    features = num_features(net) * size**2
    for name in tail(net):
        yield Operation(name, features, features, from_stream=name == tail(net)[0])
    yield Operation("pooling", features)
