"""Names of operators and kernels, of all makers, and the kinds of work that they are."""

from __future__ import annotations

from collections import Counter

import pytest

from flopwatch.traces.operation_kinds import (
    NODE,
    OPERATORS,
    find_kernel_kind,
    find_kernel_name_kind,
    find_operator_kind,
    find_scope_kind,
    is_scope,
)


def test_no_operator_is_of_two_kinds() -> None:
    names = Counter(name for listed in OPERATORS.values() for name in listed.split())
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("flash_attn::_flash_attn_forward", "attention"),
        ("aten::_softmax_backward_data", "softmax"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::_fused_rms_norm", "norm"),
        ("aten::nll_loss2d_forward", "loss"),
        ("aten::_log_softmax_backward_data", "loss"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::masked_fill_", "element-wise"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_foreach_lerp_", "element-wise"),
        ("aten::linalg_vector_norm", "reduction"),
        ("aten::copy_", "memory movement"),
        ("aten::as_strided", "bookkeeping"),
        ("c10d::allreduce_", "communication"),
        ("_c10d_functional::all_gather_into_tensor", "communication"),
        ("nccl:all_reduce", "communication"),
        ("record_param_comms", "communication"),
        ("triton_red_fused_native_layer_norm_0", "norm"),
        ("mine::add_up", "other"),
        ("no namespace", "other"),
    ],
)
def test_operators_by_kind(name: str, kind: str) -> None:
    assert find_operator_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # NVIDIA: cuBLAS, CUTLASS, cuDNN
        ("ampere_sgemm_128x64_nn", "matmul"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>", "matmul"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc", "matmul"),
        ("void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", "matmul"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 32, true, 1>(float)", "norm"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(float*)", "memory movement"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<X>()", "attention"),
        ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80", "attention"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "communication"),
        # AMD: Tensile, Composable Kernel, MIOpen, AOTriton
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128", "matmul"),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", "matmul"),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64", "matmul"),
        ("batched_transpose_32x32_half", "memory movement"),
        ("MIOpenBatchNormFwdTrainSpatial", "norm"),
        ("attn_fwd", "attention"),
        ("bwd_kernel_dk_dv", "attention"),
        ("ck_tile::FmhaBwdDQDKDVKernel", "attention"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        # torch's own
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>()",
         "memory movement"),
        ("void at::native::elementwise_kernel<128, 4, gelu>()", "element-wise"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, true>",
         "softmax"),
        ("void cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>(float*)", "loss"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float, MeanOps>>", "reduction"),
        ("void (anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
         "optimizer"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)", "memory movement"),
        # torch.compile
        ("triton_poi_fused_add_mul_silu_3", "element-wise"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_5", "norm"),
        ("triton_per_fused__log_softmax_nll_loss_forward_9", "loss"),
        ("triton_tem_fused_addmm_relu_2", "matmul"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_red_fused_sum_1", "reduction"),
        ("triton_unk_fused_cat_1", "other"),
        ("somebodys_kernel", None),
    ],
)  # fmt: skip
def test_kernels_by_name(name: str, kind: str | None) -> None:
    assert find_kernel_name_kind(name) == kind


def test_a_scope_says_what_is_inside_but_for_matmuls_of_a_loss() -> None:
    assert find_kernel_kind("elementwise_kernel", "norm") == "norm"
    assert find_kernel_kind("sm90_gemm", "loss") == "matmul"
    assert find_kernel_kind("sm90_gemm", "optimizer") == "optimizer"
    assert find_kernel_kind("ncclDevKernel_AllGather", "optimizer") == "communication"
    assert find_kernel_kind("elementwise_kernel", "waiting for data") == "element-wise"


def test_operators_help_where_a_name_says_nothing() -> None:
    assert find_kernel_kind("somebodys_kernel", None, ["aten::view", "aten::bmm"]) == "matmul"
    assert find_kernel_kind("somebodys_kernel", None, ["mine::thing"]) == "other"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("## optimizer ##", "optimizer"),
        ("optimizer", "optimizer"),
        ("## loss ##", "loss"),
        ("normal", None),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "waiting for data"),
        ("nn.Module: LlamaRMSNorm_3", "norm"),
        ("nn.Module: CrossEntropyLoss_0", "loss"),
        ("nn.Module: LlamaAttention_0", None),
        ("ScaledDotProductFlashAttentionBackward0", "attention"),
        ("NllLossBackward0", "loss"),
        (f"{NODE}NativeLayerNormBackward0", None),
        ("aten::rms_norm", "norm"),
        ("aten::mm", None),
        ("my step", None),
    ],
)
def test_scopes(name: str, kind: str | None) -> None:
    assert find_scope_kind(name) == kind


def test_functions_of_autograd_do_nothing_themselves() -> None:
    assert is_scope(f"{NODE}MulBackward0")
    assert is_scope("MulBackward0")
    assert not is_scope("aten::convolution_backward")
