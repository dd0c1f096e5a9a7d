# ruff: noqa: E501
"""Classification of kernels by name, and counted work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paperbench.architecture import macs, parameters
from paperbench.bench.profiling import WorkCounter, classify, count_work
from paperbench.bench.setup import bench_training
from paperbench.catalogue import resolve
from paperbench.models import ResidualNet

NAMES = {
    "convolution forward": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
        "void cudnn::detail::implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, true, false, true>(int, int, int, float const*)",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float>(...)",
        "cudnn_infer_volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_interior_nhwc_tn_v1",
        "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int)",
        "aten::mkldnn_convolution",
    ],
    "convolution backward by data": [
        "sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_unity_stride_align8>(cutlass_tensorop_bf16_s16816dgrad)",
    ],
    "convolution backward by weights": [
        "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_kernel_cudnn",
    ],
    "convolution backward": [
        "aten::convolution_backward",
    ],
    "batch norm": [
        "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var, c10::BFloat16, float, 4>(c10::BFloat16 const*)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct, float const*)",
        "void cudnn::batchnorm_fwtr_nhwc_semiPersist<float, float, float, 3, 1, 2, 0, true>(...)",
        "triton_red_fused__native_batch_norm_legit_functional_add_2",
        "triton_red_fused_native_batch_norm_backward_threshold_backward_5",
        "triton_red_fused__to_copy_add_var_mean_4",
        "aten::native_batch_norm_backward",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::threshold_kernel_impl<float>(at::TensorIteratorBase&, float, float)::{lambda(float, float)#1}>(int)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(...)",
        "aten::threshold_backward",
        "triton_poi_fused_add_convolution_2",
    ],
    "classifier, loss": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(...)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, float const*, int, int, int)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)",
        "aten::mean",
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(...)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize64x64x32_cublas",
        "aten::addmm",
    ],
    "optimiser": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::FusedSgdMathFunctor<float, 3>, double, float*>(...)",
        "aten::_fused_sgd_",
    ],
    "copies": [
        "Memcpy DtoD (Device -> Device)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(...)",
        "triton_poi_fused__to_copy_0",
        "aten::copy_",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<c10::BFloat16, float, 2, 1, 1>, at::native::Copy<c10::BFloat16, float> >(...)",
        "triton_poi_fused_convolution_4",
    ],
    "data": [
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...> >(long)",
    ],
    "other": [
        "void some_library::mystery<int>()",
        "aten::empty",
    ],
}


@pytest.mark.parametrize("kind", NAMES)
def test_kernels_are_classified_by_name(kind: str) -> None:
    assert {name: classify(name) for name in NAMES[kind]} == dict.fromkeys(NAMES[kind], kind)


def counted(model: nn.Module, images: torch.Tensor, *, is_fused: bool = False) -> dict[str, Any]:
    """The work of a forward and backward pass."""
    with WorkCounter("meta", is_fused=is_fused) as counter:
        F.cross_entropy(model(images).float(), torch.zeros(len(images), dtype=torch.long, device="meta")).backward()
    return counter.work


@pytest.mark.parametrize("is_fused", [False, True])
def test_total_work_equals_hand_counts(is_fused: bool) -> None:
    megabytes_per_image, launches = (32.5, 980) if is_fused else (92.4, 870)  # computed by hand
    net, dtype = resolve("preact_resnet110"), torch.bfloat16 if is_fused else torch.float32
    with torch.device("meta"):
        model, images = ResidualNet(net).train().to(dtype), torch.empty(256, 3, 32, 32, dtype=dtype)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = None  # our trainer counts them on the host
    total = sum(counted(model, images, is_fused=is_fused).values())
    assert total[0] / 256 / 1e6 == pytest.approx(megabytes_per_image, rel=0.015)  # the hand count omits weights
    assert total[1] / 256 == pytest.approx(3 * 2 * macs(net), rel=1e-3)
    assert 0 <= total[2] - launches <= 15  # some for the loss


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_work_of_each_kind_is_what_it_reads_and_writes(device: str) -> None:
    with torch.device(device):
        images = torch.zeros(2, 3, 8, 8, requires_grad=True)
        conv, bn = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        bn.num_batches_tracked = None
    with WorkCounter(device) as counter:
        x = F.relu(bn(conv(images)))
        (x + x).backward(torch.ones_like(x))
    small, large, weights = 2 * 3 * 64, 2 * 4 * 64, 4 * 3 * 9
    once, flops = 4 * (small + large + weights), 2 * large * 27
    found = {kind: work.tolist() for kind, work in counter.work.items()}
    assert found["convolution forward"] == [once, flops, 1]
    if device == "cpu":
        assert found["convolution backward"] == [2 * once, 2 * flops, 2]
    else:
        assert found["convolution backward by data"] == found["convolution backward by weights"] == [once, flops, 1]
    moved, _, launches = found["batch norm"]
    assert 4 * 8 * large <= moved < 4 * (8 * large + 60)  # and some values per channel
    assert launches == 2
    # ReLU 2 and 3, the sum and that of its gradients 3 each
    assert found["elementwise"] == [4 * 11 * large, 0, 4]


def test_fused_step_takes_one_pass_with_fewer_bytes() -> None:
    training = bench_training("preact_resnet20", 128, torch.device("cpu"))  # in groups of 64
    one, two = (count_work(training, "fp32", is_fused=is_fused) for is_fused in (True, False))
    assert (one["batch norm"][2], two["batch norm"][2]) == (6 * 7, 2 * 2 * 7)
    assert one["batch norm"][0] == pytest.approx(two["batch norm"][0], rel=1e-3)
    assert list(one["optimiser"]) == [20 * parameters(training.net), 0, 1]
    assert one["elementwise"][0] < two["elementwise"][0]
    assert two["data"][0] > 0
