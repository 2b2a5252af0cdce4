"""Which kind of work an operator, a kernel or an annotation is: the one place that knows names.

A kernel has a kind by its own name and by what launched it: everything in `Optimizer.step` is the
optimizer's, every kernel of a fused attention operator is attention. Names differ between makers
(cuBLAS and CUTLASS, Tensile and CK, Triton), which is why operators come in where names say
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal, get_args

Kind = Literal[
    "matmul",
    "attention",
    "softmax",
    "norm",
    "loss",
    "embedding",
    "element-wise",
    "reduction",
    "memory movement",
    "bookkeeping",
    "other",
    "optimizer",
    "communication",
    "memory copies",
    "waiting for data",
    "launch gaps",
    "idle",
    "between operations",
]
"""Attention: fused. Memory movement: kernels that copy, gather or concatenate; memory copies are
transfers and fills by the driver. Bookkeeping: views, allocation, and what operators do that only
call others. The last four are times in which nothing is computed: launch gaps where the host has
queued nothing, idle where it has; between operations is the host outside of all operators (Python,
autograd's own work)."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of tables. Where several kernels run at once, their time counts for the first."""
OTHER: Kind = "other"
NOT_COMPUTING: tuple[Kind, ...] = KINDS[KINDS.index("communication") :]

OPERATORS: dict[Kind, str] = {
    "matmul": """
        addbmm addmm _addmm_activation addmv baddbmm bmm convolution _convolution
        convolution_backward cudnn_convolution dot grouped_matmul grouped_matmul_weight_gradient
        _grouped_mm _int_mm _linear_pointwise
        miopen_convolution _mkl_linear mkldnn_convolution mkldnn_linear
        mkldnn_linear_backward_input mkldnn_linear_backward_weights mm mv _scaled_grouped_mm
        _scaled_mm vdot _weight_int4pack_mm _weight_int8pack_mm
    """,
    "softmax": """
        _masked_softmax _masked_softmax_backward _safe_softmax _softmax _softmax_backward_data
    """,
    "embedding": """
        embedding embedding_dense_backward _embedding_bag _embedding_bag_backward
        _embedding_bag_dense_backward
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
        all amax amin any argmax argmin cumprod cumsum linalg_vector_norm logsumexp max mean min
        norm prod sort std sum topk var var_mean
    """,
    "memory movement": """
        arange bincount cat clone constant_pad_nd contiguous copy eye fill flip full full_like
        gather gather_backward index index_add index_copy index_fill index_put _index_put_impl
        index_select masked_scatter masked_select new_full new_ones new_zeros nonzero ones
        ones_like _pin_memory rand repeat repeat_interleave _reshape_copy roll scalar_tensor
        scatter scatter_add select_backward slice_backward stack take take_along_dim _to_copy
        unfold_backward zero zeros zeros_like
    """,
    "bookkeeping": """
        alias as_strided chunk detach diff einsum embedding_backward empty empty_like
        empty_strided expand expand_as flatten _fused_sdp_choice is_nonzero item lift_fresh linear
        _local_scalar_dense matmul movedim narrow new_empty new_empty_strided numpy_T pad permute
        reshape _reshape_alias resize resolve_conj resolve_neg result_type select set slice softmax
        split split_with_sizes squeeze stride swapaxes t to transpose type_as unbind unflatten
        unfold unsafe_chunk unsafe_split _unsafe_view unsqueeze view view_as
    """,
}
"""Names without namespace, and without the underscore of those that work in place."""

FAMILIES: dict[str, Kind] = {
    r"_scaled_dot_product_\w+|scaled_dot_product_attention": "attention",
    r"_?(flash|efficient|cudnn|flex|triton)_att(entio)?n\w*|FlashAttn\w*|fmha\w*": "attention",
    r"\w*(_loss(2d)?|cross_entropy|log_softmax|kl_div)(_\w+)?": "loss",
    r"\w*(layer|batch|group|instance|rms)_norm(_\w+)?": "norm",
    r"_fused_(adam|sgd|adagrad)\w*": "optimizer",
    r"_foreach_\w+": "element-wise",
    r"\w*embedding\w*": "embedding",
}
"""Of operators whose members differ only by what they are specialised for, as whole names."""

COMMUNICATION = re.compile(r"(nccl|rccl|c10d|gloo|mpi|ucc|hccl|xccl|_c10d_functional)::?")
"""How names of collectives begin, as operators or as annotations."""

NODE = "autograd::engine::evaluate_function: "
"""Before the name of a node that autograd evaluates."""
AUTOGRAD = (NODE, "torch::autograd::AccumulateGrad", "torch::autograd::CopySlices")
NODES: dict[str, Kind] = {
    r"ScaledDotProduct|FlashA|Attention|Attn": "attention",
    r"Loss|LogSoftmax|CrossEntropy|KlDiv": "loss",
    r"(Layer|Batch|Group|Instance|Rms|RMS)Norm": "norm",
}
"""In names of autograd's functions."""

SCOPES: dict[str, Kind] = {
    r"Optimizer\.(step|zero_grad)#|[# ]*optimizer[# ]*$": "optimizer",
    r"[# ]*loss[# ]*$": "loss",
    r"[# ]*norm[# ]*$": "norm",
    r"enumerate\(DataLoader\)#": "waiting for data",
    r"nn\.Module: \w*Norm": "norm",
    r"nn\.Module: \w*Loss": "loss",
}
"""How annotations begin that have a kind, and modules, which are in a trace with stacks."""

KERNELS: dict[str, Kind] = {
    r"nccl|rccl|msccl|cross_device_reduce|nvshmem|deep_?ep|oneccl|multimem_|all_?reduce"
    r"|reduce_?scatter|all_?gather|all_?to_?all": "communication",
    r"flash|fmha|attn|attention|sdpa|bwd_kernel_d[kq]|bwd_preprocess": "attention",
    r"nll_?loss|cross_?entropy|log_?softmax|mse_?loss|kl_?div|ctc_?loss": "loss",
    r"softmax": "softmax",
    r"embedding|pooled_embs|bounds_check_indices": "embedding",
    r"(layer|batch|group|instance|rms)_?norm|bn_(fw|bw)|welford|gammabeta|rowwisemoments": "norm",
    r"(?<!fb)gemm|cijk_|xmma|nvjet|tensorop|splitk|gemv|cublas|[wd]grad|fprop|conv(?!ert)|winograd"
    r"|xdlops|matmul|cutlass|scudnn|\bdot_kernel|_mm_|magma": "matmul",
    r"adam|lamb_|sgd_|fusedsgd|adagrad": "optimizer",
    r"catarray|copy|transpose|nchwtonhwc|nhwctonchw|index|gather|scatter|fill|subtensorop|permute"
    r"|arange|im2col|col2im|memcpy|memset|pad\d?d?_": "memory movement",
    r"reduce|cub::|radix|sort|topk|scan|argm(ax|in)|_pool": "reduction",
    r"elementwise|multi_tensor_apply|pointwise|dropout|gelu|silu|relu|activation|quantize|fp8"
    r"|rope|rotary": "element-wise",
}
"""Words in names of kernels, in any case of letters; the first that is found counts."""

TRITON: dict[str, Kind] = {
    r"attention|sdpa": "attention",
    r"^tem_": "matmul",
    r"nll_loss|log_softmax|cross_entropy|_loss": "loss",
    r"_norm|rsqrt.*(mean|var)|(mean|var).*rsqrt": "norm",
    r"softmax": "softmax",
    r"embedding": "embedding",
    r"^poi_|^for_": "element-wise",
    r"^(red|per)_": "reduction",
}
"""In names of kernels that torch.compile has made, behind `triton_`: the shape of the kernel
(poi: point-wise, red and per: reductions, tem: a matmul from a template) and what was fused."""
COMPILED = re.compile(r"triton_(?=(poi|red|per|tem|for|unk)_)|cpp_(?=fused_)")

_BY_NAME: dict[str, Kind] = {n: kind for kind, names in OPERATORS.items() for n in names.split()}


def is_scope(name: str) -> bool:
    """Whether an operator only holds others, as autograd's nodes do: what it does itself is no
    operation."""
    if name.startswith(AUTOGRAD):
        return True
    return "::" not in name and "Backward" in name


@cache
def find_operator_kind(operator: str) -> Kind:
    """
    >>> find_operator_kind("aten::addmm"), find_operator_kind("aten::add_")
    ('matmul', 'element-wise')
    >>> find_operator_kind("aten::native_layer_norm"), find_operator_kind("mine::special")
    ('norm', 'other')
    """
    if COMMUNICATION.match(operator) or operator == "record_param_comms":
        return "communication"
    if "::" not in operator:  # what torch.compile has made is named like kernels
        return find_kernel_name_kind(operator) or OTHER
    name = operator.rpartition("::")[2]
    known = _BY_NAME.get(name) or _BY_NAME.get(name.removesuffix("_"))
    return known or _search(FAMILIES, name, whole=True) or OTHER


@cache
def find_scope_kind(name: str) -> Kind | None:
    """The kind of everything inside: of an operator that is fused or named for what it is, of an
    annotation, of a function of the backward pass. None: it says nothing of what is inside.

    >>> find_scope_kind("Optimizer.step#AdamW.step"), find_scope_kind("aten::cross_entropy_loss")
    ('optimizer', 'loss')
    >>> find_scope_kind("NativeLayerNormBackward0"), find_scope_kind("aten::linear")
    ('norm', None)
    """
    scope = next((kind for start, kind in SCOPES.items() if re.match(start, name)), None)
    if scope is not None:
        return scope
    if name.startswith(NODE):  # gradients are added up there, too, of whatever used a tensor
        return None
    if is_scope(name):
        return _search(NODES, name)
    kind = find_operator_kind(name) if "::" in name else OTHER
    return kind if kind in ("attention", "norm", "loss", "optimizer") else None


@cache
def find_kernel_name_kind(kernel: str) -> Kind | None:
    """
    >>> find_kernel_name_kind("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn")
    'matmul'
    >>> find_kernel_name_kind("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64")
    'matmul'
    >>> find_kernel_name_kind("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3")
    'norm'
    >>> find_kernel_name_kind("my_kernel")
    """
    compiled = COMPILED.match(kernel)
    if compiled:
        return _search(TRITON, kernel[compiled.end() :]) or OTHER
    return _search(KERNELS, kernel.lower())


def find_kernel_kind(kernel: str, scope: Kind | None, operators: Iterable[str] = ()) -> Kind:
    """What a kernel is, in a scope and launched by operators, the innermost first.

    >>> find_kernel_kind("my_kernel", None, ["aten::view", "aten::mul"])
    'element-wise'
    >>> find_kernel_kind("ampere_sgemm_128x64_nn", "optimizer")
    'optimizer'
    """
    own = find_kernel_name_kind(kernel)
    if own == "communication":
        return own
    if scope is not None and scope != "waiting for data" and not keeps_kind(own, scope):
        return scope
    if own is not None:
        return own
    kinds = (find_operator_kind(name) for name in operators)
    return next((kind for kind in kinds if kind not in (OTHER, "bookkeeping")), OTHER)


def find_scoped_kind(operator: str, scope: Kind | None) -> Kind:
    """What an operator's own time is, in a scope.

    >>> find_scoped_kind("aten::mul", "norm"), find_scoped_kind("aten::mm", "loss")
    ('norm', 'matmul')
    """
    own = find_operator_kind(operator)
    return own if scope is None or keeps_kind(own, scope) else scope


def keeps_kind(own: Kind | None, scope: Kind) -> bool:
    """A loss may have the model's head in it: its matmuls are matmuls all the same."""
    return own in ("matmul", "attention") and scope in ("norm", "loss")


def _search(table: dict[str, Kind], name: str, *, whole: bool = False) -> Kind | None:
    find = re.fullmatch if whole else re.search
    return next((kind for pattern, kind in table.items() if find(pattern, name)), None)
