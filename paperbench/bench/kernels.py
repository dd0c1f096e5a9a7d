"""What kind of work a kernel does, by its name."""

from __future__ import annotations

import re

_RULES = (
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
"""Kinds and patterns of names; the first that fits counts. "convolution backward" are operators of CPUs, which do both;
"elementwise" is ReLU, additions and sums of gradients; "data" makes the batch; "copies" are casts, too."""


def classify(name: str) -> str:
    """The kind of a kernel of cuDNN, cuBLAS, ATen or Inductor, or of an operator; "other" if none is recognised.

    Fused kernels count as what most of their work is: what holds batch norm's statistics or normalisation is batch
    norm, whatever ReLU or addition is fused into it.
    """
    return next((kind for kind, pattern in _RULES if re.search(pattern, name, re.IGNORECASE)), "other")
