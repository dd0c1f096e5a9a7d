"""What kind of work a kernel does, by its name. Nothing here imports torch."""

from __future__ import annotations

import re
from typing import Literal, get_args

Kind = Literal[
    "convolution",
    "batch norm",
    "elementwise",
    "reduction",
    "optimiser",
    "copy, cast",
    "matrix product",
    "other",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_RULES: tuple[tuple[Kind, str], ...] = (
    # Of cuDNN, but no convolution: changes of layout before and after one.
    ("copy, cast", r"nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw|tensorTransform|scalePackedTensor|pad_channel"),
    ("optimiser", r"fused_?sgd|FusedSgd|_sgd_"),
    # BN of cuDNN (bn_fw_tr, bn_bw, batchnorm_fwtr_nhwc), of ATen, of Inductor (its kernels carry operators' names).
    ("batch norm", r"batch_?norm|\bbn_(fw|bw|add|stat|apply)|(^|_)bn_(fw|bw|stats?|apply|reduce)|var_mean|welford"),
    (
        "convolution",
        r"fprop|dgrad|wgrad|winograd|implicit_convolve|implicit_gemm|convolve|convolution|conv2d|conv_depthwise|"
        r"scudnn|cudnn_convolution|mkldnn_conv|cutlass_cudnn|cutlass__5x_cudnn|cudnn.*(xmma|cutlass)|_5x_cudnn|"
        r"cudnn::cnn|im2col|col2im|fft2d|flip_filter|computeOffsetsKernel|computeBOffsets|triton_\w*conv",
    ),
    (
        "copy, cast",
        r"memcpy|memset|FillFunctor|fill_kernel|copy_kernel|direct_copy|CatArrayBatchedCopy|aten::(copy_|_to_copy|fill_|zero_|cat|clone|contiguous)\b",
    ),
    ("copy, cast", r"^triton_\w*?fused(__?to_copy|_clone|_copy|_copy_|_convert_element_type|_view|_permute)+(_\d+)?$"),
    (
        "copy, cast",
        r"gather_kernel|vectorized_gather|index_elementwise|indexSelect|index_select|aten::(index|gather|index_select)\b",
    ),
    ("matrix product", r"gemm|gemv|nvjet|cublas|splitKreduce|cutlass|matmul|aten::(addmm|mm|bmm|linear)\b"),
    (
        "reduction",
        r"reduce_kernel|^triton_(red|per)_|softmax|SoftMax|nll_loss|cross_entropy|avg_pool|max_pool|argmax|"
        r"aten::(sum|mean|amax|argmax)\b",
    ),
    (
        "elementwise",
        r"elementwise|^triton_poi_|multi_tensor_apply|threshold|relu|where_kernel|"
        r"aten::(add|add_|mul|mul_|div|div_|sub|neg|clamp_min|threshold_backward|ne|eq|_foreach_\w+)\b",
    ),
)

_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)


def classify(name: str) -> Kind:
    """The kind of a kernel of cuDNN, cuBLAS, ATen or Inductor, or of an operator; "other" if none is recognised.

    Fused kernels count by what is most work in them: what holds batch norm's statistics or normalisation is batch norm,
    whatever ReLU or addition was fused into it.
    """
    for kind, pattern in _COMPILED:
        if pattern.search(name):
            return kind
    return "other"


_OVERHEAD = re.compile(
    r"^(autograd::|torch::autograd::|detach$|\w+Backward\d$|Optimizer\.|enumerate|\[memory\]|"
    r"aten::(empty\w*|zeros\w*|ones\w*|new_\w+|resize_|as_strided_?|slice|select|view\w*|_unsafe_view|reshape|t|transpose|"
    r"permute|expand|detach_?|to|split\w*|narrow|unbind|unsqueeze|squeeze|result_type|lift_fresh|item|"
    r"_local_scalar_dense|set_|alias|flatten|contiguous)$)"
)


def is_overhead(name: str) -> bool:
    """Whether a name is that of an operator which computes nothing: a view, an allocation, autograd's bookkeeping."""
    return bool(_OVERHEAD.search(name))
