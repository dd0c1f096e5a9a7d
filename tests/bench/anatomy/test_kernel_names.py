# ruff: noqa: E501
"""Names as profilers print them: of cuDNN, cuBLAS, ATen, Inductor, and operators on CPUs."""

from __future__ import annotations

import pytest

from paperbench.bench.anatomy.kernels import classify, is_overhead

NAMES = {
    "convolution": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
        "sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn",
        "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_kernel_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128_32x5_nhwc_unity_stride_align8>(cutlass_tensorop_bf16_s16816dgrad)",
        "void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_32x4_nhwc_align4>(Params)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)",
        "void cudnn::detail::implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, true, false, true>(int, int, int, float const*)",
        "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int)",
        "void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true, int, float, float, float, 3, 1>(cudnn::cnn::params)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*, int)",
        "void cudnn::detail::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>(int, int, int, float const*)",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float>(...)",
        "ampere_scudnn_128x64_relu_medium_nn_v1",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "cudnn_infer_volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_interior_nhwc_tn_v1",
        "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int)",
        "aten::convolution_backward",
        "aten::mkldnn_convolution",
        "aten::cudnn_convolution",
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
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(...)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, float const*, int, int, int)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)",
        "triton_red_fused_mean_12",
        "aten::mean",
    ],
    "optimiser": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::FusedSgdMathFunctor<float, 3>, double, float*>(...)",
        "aten::_fused_sgd_",
    ],
    "copy, cast": [
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>)",
        "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false>(...)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(...)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<8u>, unsigned int, 1, 64, 64>(...)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...> >(long)",
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<int, long, unsigned int, 2, 2, -2>(...)",
        "triton_poi_fused__to_copy_0",
        "triton_poi_fused_clone_view_3",
        "aten::copy_",
    ],
    "matrix product": [
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(...)",
        "ampere_sgemm_32x32_sliced1x4_nt",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize64x64x32_cublas",
        "void gemmSN_NN_kernel<float, 128, 2, 4, 8, 9, 4, false, cublasGemvTensorStridedBatched<float const> >(...)",
        "aten::addmm",
    ],
    "other": ["void some_library::mystery<int>()", "spin_kernel(long)", "aten::empty"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_name_tells_the_kind_of_work(kind: str, name: str) -> None:
    assert classify(name) == kind


def test_operators_that_compute_nothing_are_not_listed_as_unknown() -> None:
    assert is_overhead("aten::empty")
    assert is_overhead("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
    assert not is_overhead("void some_library::mystery<int>()")
    assert not is_overhead("aten::convolution_backward")
