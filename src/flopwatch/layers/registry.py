"""The layers that can be asked for by a short spec, ``kind:argument:argument``, in one table.

    dense              nn.Linear
    dyad:it:4          DYAD, variant it, 4 blocks
    dyad:ot:8:cat      variant ot, 8 blocks, computed in the form "cat"
    switchback:global  SwitchBack, int8 forward and input gradient, one scale for the weight
    llm-int8           the weight's gradient in int8 too
    fp8:rowwise        all three matmuls in float8, a scale for every row of their operands
    fp8:tensorwise     the same with one scale for a tensor
    torchao-int8       torchao's int8 training with SwitchBack's recipe, compiled: a peer

The command line, the suites and the library all read specs here. A layer of your own is one line:

    register("low-rank", lambda i, o, rank, **rest: LowRank(i, o, rank, **rest))

makes ``low-rank:64`` work in the same process: register it in the suite file that measures it, or
in a module that a package names as its plug-in (`plugins`). This module does not import torch;
makers do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flopwatch.devices.kinds import is_host
from flopwatch.errors import LayerError, PluginError
from flopwatch.plugins import describe, find_plugins, load_plugin

if TYPE_CHECKING:
    from torch import nn

Argument = int | str
Matmul = Literal["output", "input gradient", "weight gradient"]
MATMULS: dict[str, tuple[Matmul, ...]] = {
    "forward": ("output",),
    "backward": ("input gradient", "weight gradient"),
}
"""What a linear layer computes, by phase; in a dense one each takes the same FLOPs."""
COUNT = re.compile(r"[0-9]{1,12}")
"""An argument that is a number."""
Maker = Callable[..., "nn.Module"]
"""Called with in_features, out_features and the spec's arguments, whole numbers as int, and with
bias, device and dtype by name."""
INT8_TOLERANCES = {"layer": 3e-2, "model": 5e-1}
"""How far layers, and models with them, may be off, relative to the reference's largest value.
Int8 keeps 7 bits, which makes 1 % of the largest value. In a model that is enough to flip a ReLU
here and there, each of which takes its token's part of a gradient with it: up to a quarter of the
largest value was seen in OPT, and 4 % in Pythia, which has none. A layer in the wrong place, or a
gradient that is missing, gives 1 or more."""
FLOAT8_TOLERANCES = {"layer": 1.5e-1, "model": 8e-1}
"""The same of float8, whose numbers have 3 binary digits after the first, those of gradients 2: up
to 7 % of the largest value was seen in layers, and 37 % in OPT."""
FLOAT8_STAND_IN = "float32"
"""What layers in float8 compute in where the device does not."""
TOLERANCES = {
    "float32": {"layer": 1e-4, "model": 3e-3, "parts": 1e-4},
    "bfloat16": {"layer": 3e-2, "model": 2e-1, "parts": 1e-2},
    "float16": {"layer": 5e-3, "model": 2e-1, "parts": 2e-3},
}
"""Of everything else, by the dtype that it computes in. In a model rounding adds up, and the ReLU
of a value next to 0 may go either way. Parts are compared with the same arithmetic in plain torch,
so that only the rounding of their results is left."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A row of the table."""

    make: Maker
    density: Callable[..., float] | None
    """From the spec's arguments: how many of a dense layer's FLOPs it needs. None: unknown."""
    int8: Sequence[Matmul]
    """Which of its three matmuls it computes in int8; the rest are in the layer's dtype."""
    float8: Sequence[Matmul]
    """The same of float8, by `torch._scaled_mm` where the device has it, and else emulated."""
    syntax: str


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A spec taken apart."""

    kind: str
    arguments: tuple[Argument, ...]

    def __str__(self) -> str:
        return ":".join(map(str, [self.kind, *self.arguments]))


KINDS: dict[str, Kind] = {}


def register(
    name: str,
    make: Maker,
    *,
    density: Callable[..., float] | None = None,
    int8: Sequence[Matmul] = (),
    float8: Sequence[Matmul] = (),
) -> None:
    """Give a layer a name to be asked for. A name that is taken is replaced."""
    if not name or ":" in name or "," in name:
        raise LayerError(f"{name!r} is no name for a layer; take one without ':' and ','")
    syntax = _describe_syntax(name, make)
    KINDS[name] = Kind(make=make, density=density, int8=int8, float8=float8, syntax=syntax)


def parse(text: str) -> Spec:
    """Take a spec apart, and see that it can be made."""
    name, *words = text.split(":")
    if name not in KINDS:
        _register_plugin(name)
    spec = Spec(kind=name, arguments=tuple(int(w) if COUNT.fullmatch(w) else w for w in words))
    kind = KINDS[name]
    try:
        _signature(kind.make).bind(*spec.arguments)
    except TypeError:
        raise LayerError(f"{text!r} is not of the form {kind.syntax}") from None
    find_density(spec)  # it knows which arguments make sense
    return spec


def _register_plugin(name: str) -> None:
    """Import the module of another package that registers a layer of this name."""
    plugins = find_plugins("flopwatch.layers")
    if name not in plugins:
        known = dict.fromkeys([*KINDS, *plugins])
        raise LayerError(f"no layer is called {name!r}; there are {', '.join(known)}")
    try:
        load_plugin(plugins[name])
    except PluginError as error:
        raise LayerError(str(error)) from error
    if name not in KINDS:
        why = f"{plugins[name].module} does not call register({name!r}, ...)"
        raise LayerError(describe(plugins[name], why))


def make(
    spec: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> nn.Module:
    """The layer that a spec asks for, with fresh random weights."""
    parsed = parse(spec)
    return KINDS[parsed.kind].make(
        in_features, out_features, *parsed.arguments, bias=bias, device=device, dtype=dtype
    )


def count_flops(spec: str, tokens: int, in_features: int, out_features: int) -> float | None:
    """Of one forward pass, biases left out; None where the layer does not say."""
    density = find_density(parse(spec))
    return None if density is None else 2.0 * tokens * in_features * out_features * density


def count_flops_by_dtype(
    spec: str,
    tokens: int,
    in_features: int,
    out_features: int,
    dtype: str,
    device: str | None = None,
) -> dict[str, dict[str, float]]:
    """By phase and by what it is computed in, `dtype`, int8 or float8; empty where it does not say.

    With a device, whose process has torch, as that device computes it: float8 may be emulated.

    >>> count_flops_by_dtype("switchback:global", 4, 2, 3, "float32")
    {'forward': {'int8': 48.0}, 'backward': {'int8': 48.0, 'float32': 48.0}}
    """
    flops = count_flops(spec, tokens, in_features, out_features)
    if flops is None:
        return {}
    dtypes = _find_narrow_dtypes(KINDS[parse(spec).kind], device)
    counts: dict[str, dict[str, float]] = {phase: {} for phase in MATMULS}
    for phase, matmuls in MATMULS.items():
        for matmul in matmuls:
            each = dtypes.get(matmul, dtype)
            counts[phase][each] = counts[phase].get(each, 0.0) + flops
    return counts


def _find_narrow_dtypes(kind: Kind, device: str | None) -> dict[Matmul, str]:
    """Of the matmuls that are computed in another dtype than the layer's."""
    is_emulated = device is not None and bool(kind.float8) and emulates_float8(device)
    return {
        **dict.fromkeys(kind.int8, "int8"),
        **dict.fromkeys(kind.float8, FLOAT8_STAND_IN if is_emulated else "float8"),
    }


def emulates_float8(device: str) -> bool:
    """Whether layers in float8 are computed in another dtype there; needs torch but for a host."""
    if is_host(device):
        return True
    from flopwatch.layers.kernels.fp8_scaled import is_native

    return not is_native(device)


def find_density(spec: Spec) -> float | None:
    """How many of a dense layer's FLOPs it needs; None where the layer does not say."""
    density = KINDS[spec.kind].density
    return None if density is None else density(*spec.arguments)


def find_tolerance(spec: str, level: str, dtype: str) -> float:
    """Of the layer with that spec, alone ("layer") or in a model ("model")."""
    kind = KINDS[parse(spec).kind]
    if kind.float8:
        return FLOAT8_TOLERANCES[level]
    return (INT8_TOLERANCES if kind.int8 else TOLERANCES[dtype])[level]


def _signature(make: Maker) -> inspect.Signature:
    """Of the spec's arguments alone."""
    _, _, *rest = inspect.signature(make).parameters.values()
    return inspect.Signature(
        [
            parameter
            for parameter in rest
            if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
            and parameter.name not in ("bias", "device", "dtype")
        ]
    )


def _describe_syntax(name: str, make: Maker) -> str:
    """
    >>> _describe_syntax("dyad", _make_dyad)
    'dyad:VARIANT:BLOCKS[:FORM]'
    """
    parameters = _signature(make).parameters.values()
    required = "".join(f":{p.name.upper()}" for p in parameters if p.default is p.empty)
    optional = "".join(f"[:{p.name.upper()}]" for p in parameters if p.default is not p.empty)
    return name + required + optional


def _make_dense(in_features: int, out_features: int, **options: Any) -> nn.Module:
    from torch import nn

    return nn.Linear(in_features, out_features, **options)


def _make_dyad(
    in_features: int,
    out_features: int,
    variant: str,
    blocks: int,
    form: str = "fast",
    **options: Any,
) -> nn.Module:
    from flopwatch.layers.dyad_layer import Dyad

    return Dyad(in_features, out_features, blocks, variant, form=form, **options)


DYAD_WORDS = {
    "variant": ("it", "ot", "dt", "auto"),
    "form": ("fast", "split", "cat", "published", "published-cat"),
}


def _count_dyad_density(variant: str, blocks: int, form: str = "fast") -> float:
    for name, word in (("variant", variant), ("form", form)):
        if word not in DYAD_WORDS[name]:
            raise LayerError(
                f"{word!r} is no {name} of DYAD; take one of {', '.join(DYAD_WORDS[name])}"
            )
    if not isinstance(blocks, int) or blocks < 1:
        raise LayerError(f"{blocks!r} is no number of blocks; DYAD takes a whole one, such as 4")
    return 2 / blocks


def _make_switchback(
    in_features: int, out_features: int, scales: str, save: str = "inputs", **options: Any
) -> nn.Module:
    from flopwatch.layers.switchback_layer import SwitchBack

    return SwitchBack(in_features, out_features, scales=scales, save=save, **options)


def _make_llm_int8(in_features: int, out_features: int, **options: Any) -> nn.Module:
    from flopwatch.layers.switchback_layer import SwitchBack

    return SwitchBack(in_features, out_features, weight_gradient="int8", **options)


def _make_torchao(in_features: int, out_features: int, **options: Any) -> nn.Module:
    from torch import nn

    try:
        from torchao.prototype.quantized_training import Int8MixedPrecisionTrainingConfig
        from torchao.quantization import quantize_
    except ImportError:
        raise LayerError("torchao is not installed; pip install torchao") from None
    layer = nn.Linear(in_features, out_features, **options)
    quantize_(layer, Int8MixedPrecisionTrainingConfig(grad_weight=False))
    layer.compile(dynamic=True)  # in eager mode it is slower than dense
    return layer


SWITCHBACK_WORDS = {
    "scales": ("rowwise", "global"),
    "save": ("inputs", "int8"),
    "weight_gradient": ("standard", "int8"),
}


SWITCHBACK_MATMULS: tuple[Matmul, ...] = ("output", "input gradient")


def check_switchback(**words: str) -> None:
    """That SwitchBack knows these words."""
    for name, word in words.items():
        if word not in SWITCHBACK_WORDS[name]:
            raise LayerError(
                f"{name} is {word!r}, which SwitchBack does not know; "
                f"take {' or '.join(SWITCHBACK_WORDS[name])}"
            )


def _count_switchback_density(scales: str, save: str = "inputs") -> float:
    check_switchback(scales=scales, save=save)
    return 1.0


FP8_SCALES = ("rowwise", "tensorwise")


def _make_fp8(in_features: int, out_features: int, scales: str, **options: Any) -> nn.Module:
    from flopwatch.layers.fp8_layer import Fp8Linear

    return Fp8Linear(in_features, out_features, scales=scales, **options)


def check_fp8(scales: str) -> None:
    """That layers in float8 know such scales."""
    if scales not in FP8_SCALES:
        raise LayerError(
            f"scales is {scales!r}, which fp8 does not know; take {' or '.join(FP8_SCALES)}"
        )


def _count_fp8_density(scales: str) -> float:
    check_fp8(scales)
    return 1.0


register("dense", _make_dense, density=lambda: 1.0)
register("dyad", _make_dyad, density=_count_dyad_density)
register(
    "switchback",
    _make_switchback,
    density=_count_switchback_density,
    int8=SWITCHBACK_MATMULS,
)
register("torchao-int8", _make_torchao, density=lambda: 1.0, int8=SWITCHBACK_MATMULS)
register(
    "llm-int8",
    _make_llm_int8,
    density=lambda: 1.0,
    int8=("output", "input gradient", "weight gradient"),
)
register(
    "fp8",
    _make_fp8,
    density=_count_fp8_density,
    float8=("output", "input gradient", "weight gradient"),
)
