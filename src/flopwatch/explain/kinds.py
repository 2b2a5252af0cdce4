"""Which kind of work every operator of torch does."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal[
    "matrix product",
    "fused attention",
    "softmax",
    "element-wise",
    "reduction",
    "memory movement",
    "bookkeeping",
    "other",
    "between operations",
]
"""Bookkeeping: views, allocation, and what operators do that only call others. Between operations
is what is not inside of any operator: Python, autograd's own work and, on a GPU, waiting."""

KINDS: tuple[Kind, ...] = get_args(Kind)
OTHER: Kind = "other"

NAMES: dict[Kind, str] = {
    "matrix product": """
        addbmm addmm _addmm_activation addmv baddbmm bmm convolution _convolution
        convolution_backward dot _grouped_mm _int_mm _linear_pointwise _mkl_linear
        mkldnn_convolution mkldnn_linear mkldnn_linear_backward_input mkldnn_linear_backward_weights
        mm mv _scaled_grouped_mm _scaled_mm vdot _weight_int4pack_mm _weight_int8pack_mm
    """,
    "fused attention": """
        _cudnn_attention_backward _cudnn_attention_forward _efficient_attention_backward
        _efficient_attention_forward _flash_attention_backward _flash_attention_forward
    """,
    "softmax": """
        _log_softmax _log_softmax_backward_data _masked_softmax _masked_softmax_backward
        _safe_softmax _softmax _softmax_backward_data
    """,
    "element-wise": """
        abs add addcdiv addcmul _amp_foreach_non_finite_check_and_unscale and bernoulli bitwise_and
        bitwise_not bitwise_or ceil clamp clamp_max clamp_min cos cosh div dropout elu eq erf exp
        exp2 expm1 floor floor_divide fmod ge gelu gelu_backward glu glu_backward gt hardsigmoid
        hardswish isinf isnan le leaky_relu lerp log log1p logical_and logical_not logical_or lt
        masked_fill maximum minimum mish mul native_dropout native_dropout_backward ne neg normal
        pow reciprocal relu remainder round rsqrt rsub sigmoid sigmoid_backward sign silu
        silu_backward sin softplus softplus_backward sqrt square sub tanh tanh_backward threshold
        threshold_backward tril triu uniform where
    """,
    "reduction": """
        all amax amin any argmax argmin cumprod cumsum _fused_rms_norm _fused_rms_norm_backward
        linalg_vector_norm logsumexp max mean min native_batch_norm native_group_norm
        native_group_norm_backward native_layer_norm native_layer_norm_backward nll_loss2d_backward
        nll_loss2d_forward nll_loss_backward nll_loss_forward norm prod sort std sum topk var
        var_mean
    """,
    "memory movement": """
        arange bincount cat clone constant_pad_nd contiguous copy embedding embedding_dense_backward
        eye fill flip full full_like gather gather_backward index index_add index_copy index_fill
        index_put _index_put_impl index_select masked_scatter masked_select new_full new_ones
        new_zeros nonzero ones ones_like _pin_memory rand repeat repeat_interleave _reshape_copy
        roll scalar_tensor scatter scatter_add select_backward slice_backward stack take
        take_along_dim _to_copy unfold_backward zero zeros zeros_like
    """,
    "bookkeeping": """
        alias as_strided chunk cross_entropy_loss detach diff einsum embedding_backward empty
        empty_like empty_strided expand expand_as flatten _fused_sdp_choice is_nonzero item
        layer_norm lift_fresh linear _local_scalar_dense log_softmax matmul movedim narrow new_empty
        new_empty_strided nll_loss nll_loss_nd numpy_T pad permute reshape _reshape_alias resize
        resolve_conj resolve_neg result_type rms_norm scaled_dot_product_attention select set slice
        softmax split split_with_sizes squeeze stride swapaxes t to transpose type_as unbind
        unflatten unfold unsafe_chunk unsafe_split _unsafe_view unsqueeze view view_as
    """,
}
"""Names without namespace, and without the underscore of those that work in place."""

PREFIXES: dict[str, Kind] = {
    "_scaled_dot_product_": "fused attention",
    "_foreach_": "element-wise",
    "_fused_adam": "element-wise",
    "_fused_sgd": "element-wise",
}
"""Of families whose members differ only by what they are specialised for."""

_BY_NAME: dict[str, Kind] = {name: kind for kind, names in NAMES.items() for name in names.split()}


def find_kind(operator: str) -> Kind:
    """
    >>> find_kind("aten::addmm"), find_kind("aten::add_"), find_kind("aten::_foreach_add_")
    ('matrix product', 'element-wise', 'element-wise')
    >>> find_kind("mine::special")
    'other'
    """
    name = operator.rpartition("::")[2]
    family = next((kind for start, kind in PREFIXES.items() if name.startswith(start)), OTHER)
    return _BY_NAME.get(name) or _BY_NAME.get(name.removesuffix("_"), family)
