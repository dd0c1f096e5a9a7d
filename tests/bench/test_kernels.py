# ruff: noqa: E501
"""Kinds of kernels by their names, and counted work against what torch's dispatcher sees of a real step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from paperbench.architecture import macs
from paperbench.bench.kernels import Work, classify, operations, step_work
from paperbench.catalogue import resolve
from paperbench.models import ResidualNet

NAMES = {
    "convolution forward": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
        "void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_32x4_nhwc_align4>(Params)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)",
        "void cudnn::detail::implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, true, false, true>(int, int, int, float const*)",
        "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int)",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float>(...)",
        "ampere_scudnn_128x64_relu_medium_nn_v1",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "cudnn_infer_volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_interior_nhwc_tn_v1",
        "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int)",
        "aten::mkldnn_convolution",
        "aten::cudnn_convolution",
    ],
    "convolution backward by data": [
        "sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_unity_stride_align8>(cutlass_tensorop_bf16_s16816dgrad)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*, int)",
    ],
    "convolution backward by weights": [
        "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_kernel_cudnn",
        "void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true, int, float, float, float, 3, 1>(cudnn::cnn::params)",
        "void cudnn::detail::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>(int, int, int, float const*)",
    ],
    "convolution backward": [
        "aten::convolution_backward",
    ],
    "batch norm": [
        "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var, c10::BFloat16, float, 4>(c10::BFloat16 const*)",
        "void at::native::batch_norm_transform_input_channels_last_kernel<c10::BFloat16, float, c10::BFloat16, 4>(...)",
        "void at::native::batch_norm_backward_reduce_channels_last_kernel<4, c10::BFloat16, float, float>(...)",
        "void at::native::batch_norm_backward_elemt_channels_last_kernel_impl<4, float, float, float>(...)",
        "void at::native::batch_norm_backward_kernel<float, float, float, int>(...)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct, float const*)",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float)",
        "void cudnn::batchnorm_fwtr_nhwc_semiPersist<float, float, float, 3, 1, 2, 0, true>(...)",
        "void cudnn::batchnorm_bwtr_nhwc_semiPersist<float, float, float, 3, 1, 2, 0>(...)",
        "triton_red_fused__native_batch_norm_legit_functional_add_2",
        "triton_per_fused__native_batch_norm_legit_functional_1",
        "triton_poi_fused__native_batch_norm_legit_functional_relu_3",
        "triton_red_fused_native_batch_norm_backward_threshold_backward_5",
        "triton_red_fused__to_copy_add_var_mean_4",
        "aten::native_batch_norm_backward",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::threshold_kernel_impl<float>(at::TensorIteratorBase&, float, float)::{lambda(float, float)#1}>(int)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(...)",
        "triton_poi_fused_add_relu_7",
        "aten::threshold_backward",
        "aten::add_",
        "triton_poi_fused_add_convolution_2",
    ],
    "classifier, loss": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(...)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, float const*, int, int, int)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)",
        "triton_red_fused_mean_12",
        "aten::mean",
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(...)",
        "ampere_sgemm_32x32_sliced1x4_nt",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize64x64x32_cublas",
        "void gemmSN_NN_kernel<float, 128, 2, 4, 8, 9, 4, false, cublasGemvTensorStridedBatched<float const> >(...)",
        "aten::addmm",
    ],
    "optimiser": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::FusedSgdMathFunctor<float, 3>, double, float*>(...)",
        "aten::_fused_sgd_",
    ],
    "copies": [
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>)",
        "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false>(...)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(...)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<8u>, unsigned int, 1, 64, 64>(...)",
        "triton_poi_fused__to_copy_0",
        "triton_poi_fused_clone_view_3",
        "aten::copy_",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<c10::BFloat16, float, 2, 1, 1>, at::native::Copy<c10::BFloat16, float> >(...)",
        "triton_poi_fused_convolution_4",
    ],
    "data": [
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...> >(long)",
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<int, long, unsigned int, 2, 2, -2>(...)",
    ],
    "other": [
        "void some_library::mystery<int>()",
        "spin_kernel(long)",
        "aten::empty",
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_name_tells_the_kind_of_work(kind: str, name: str) -> None:
    assert classify(name) == kind


KNOWN = {
    # GFLOP forward; MB per image: unfused fp32, fused bf16; launches unfused and fused
    "preact_resnet110": (0.506, 92.4, 32.5, 870, 980),
    "preact_resnet164": (0.489, 288.8, 100.9, 1257, 1475),
    "preact_resnet1001": (2.976, 1760.7, 612.8, 7674, 9008),
}


def of_net(name: str, precision: str = "fp32", *, is_fused: bool = False, passes: int = 1) -> Work:
    """The work on one image without the batch and the optimiser."""
    work = step_work(resolve(name), precision, batch_size=1, passes=passes, is_fused=is_fused)
    assert work is not None
    return sum((done for kind, done in work.items() if kind not in ("data", "optimiser")), Work())


@pytest.mark.parametrize("name", KNOWN)
def test_totals_are_the_known_ones(name: str) -> None:
    flops, unfused, fused, launches, fused_launches = KNOWN[name]
    assert 2 * macs(resolve(name)) / 1e9 == pytest.approx(flops, abs=5e-4)
    assert of_net(name).bytes / 1e6 == pytest.approx(unfused, abs=0.05)
    assert of_net(name, "bf16", is_fused=True).bytes / 1e6 == pytest.approx(fused, abs=0.05)
    assert (of_net(name).launches, of_net(name, is_fused=True).launches) == (launches, fused_launches)


class Seen(TorchDispatchMode):
    """Operators of a step, and the elements per image that their kernels read and write."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.number: Counter[str] = Counter()
        self.elements: Counter[str] = Counter()
        self.flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = function.__name__.partition(".")[0]
        self.number[name] += 1
        match name:
            case "convolution":
                self._move("convolution", args[0], output)
                self.flops += 2 * output.numel() // self.batch * args[1][0].numel()
            case "convolution_backward":
                for needed in args[-1][:2]:
                    if needed:
                        self._move("convolution", args[0], args[1])
                        self.flops += 2 * args[0].numel() // self.batch * args[2][0].numel()
            case "native_batch_norm":
                self._move("bn", args[0], args[0], output[0])
            case "native_batch_norm_backward":
                self._move("bn", args[0], args[0], args[1], args[1], output[0])
            case "relu":
                self._move("elementwise", args[0], output)
            case "threshold_backward":
                self._move("elementwise", args[0], args[1], output)
            case "add" if output.dim() == 4:
                self._move("elementwise", args[0], args[1], output)
        return output

    def _move(self, work: str, *tensors: torch.Tensor) -> None:
        self.elements[work] += sum(t.numel() for t in tensors) // self.batch


@pytest.mark.parametrize(
    "name",
    ["preact_resnet110", "preact_resnet164", "original_resnet56", "original_resnet164", "resnet110_relu_only_preact"],
)
def test_counts_are_those_of_a_real_step(name: str) -> None:
    with torch.device("meta"):
        model = ResidualNet(resolve(name)).train()
        images, labels = torch.empty(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    with Seen(4) as real:
        F.cross_entropy(model(images), labels).backward()
    number = Counter(operation.name for operation in operations(resolve(name)))
    assert number["convolution"] + number["first convolution"] == real.number["convolution"]
    assert number["bn"] == real.number["native_batch_norm"]
    assert number["relu"] == real.number["relu"] == real.number["threshold_backward"]
    assert number["addition"] + number["accumulation"] == real.number["add"]
    work = step_work(resolve(name), "fp32", batch_size=1)
    assert work is not None
    convolutions = [done for kind, done in work.items() if kind.startswith("convolution")]
    assert sum(done.bytes for done in convolutions) == 4 * real.elements["convolution"]
    assert sum(done.flops for done in convolutions) == real.flops
    assert work["batch norm"].bytes == 4 * real.elements["bn"]
    # Option A's padding is small and not looked at in the real step.
    elements = work["elementwise"].bytes / 4
    assert real.elements["elementwise"] <= elements < 1.03 * real.elements["elementwise"]


@pytest.mark.parametrize(
    ("name", "stream"),
    [("preact_resnet110", 57.69216), ("original_resnet56", 30.94528), ("resnet110_relu_only_preact", 54.431744)],
)
def test_precisions_differ_by_the_size_of_their_elements(name: str, stream: float) -> None:
    fp32, tf32, bf16 = (of_net(name, precision).bytes for precision in ("fp32", "tf32", "bf16"))
    assert fp32 == tf32 == 2 * bf16
    assert of_net(name, "bf16-fp32-stream").bytes / 1e6 == pytest.approx(stream)


def test_passes_launch_more_kernels_and_add_up_gradients() -> None:
    net = resolve("preact_resnet20")
    one, two = (step_work(net, "bf16", batch_size=128, passes=passes) for passes in (1, 2))
    assert one is not None
    assert two is not None
    parameters = sum(p.numel() for p in ResidualNet(net).parameters())
    assert two["batch norm"] == Work(one["batch norm"].bytes, 0.0, 2 * one["batch norm"].launches)
    assert two["elementwise"].bytes - one["elementwise"].bytes == 12 * parameters
    assert one["optimiser"].bytes == 20 * parameters
    assert one["data"].bytes == 128 * 3072 * 5
    assert one["batch norm"].bytes == 128 * step_work(net, "bf16", batch_size=1)["batch norm"].bytes  # type: ignore[index]


def test_gated_shortcuts_are_not_counted() -> None:
    assert step_work(resolve("resnet110_exclusive_gating"), "fp32", batch_size=1) is None
