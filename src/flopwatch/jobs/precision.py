"""The precision of a training job: in which dtypes it keeps, computes and sends its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from flopwatch.errors import UsageError

DTYPE_BYTES = {
    "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "float4": 1, "int8": 1
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    dtype: str
    """Of parameters, their gradients and the optimizer's state."""
    autocast: str | None = None
    """What autocast computes matmuls in; None: it is off, and everything has one dtype."""
    narrow: str | None = None
    """Of the matmuls of linear layers in blocks, where it is another than all this says."""

    @property
    def matmul_dtype(self) -> str:
        """Of linear layers in blocks, as peaks are listed by."""
        return self.narrow or self.activation_dtype

    @property
    def activation_dtype(self) -> str:
        """Of attention, the head, and what passes between operations."""
        return self.autocast or ("tf32" if self.narrow == "tf32" else self.dtype)

    @property
    def element_bytes(self) -> int:
        """Of an activation; operands of 8 bits are read with 16, to be rounded."""
        return DTYPE_BYTES[self.activation_dtype]

    @property
    def parameter_bytes(self) -> int:
        """Of a parameter, its gradient, and each of the optimizer's values."""
        return DTYPE_BYTES[self.dtype]

    @property
    def gathered_bytes(self) -> int:
        """Of a parameter that ranks gather to compute with it."""
        return self.element_bytes

    @property
    def reduced_bytes(self) -> int:
        """Of a gradient that ranks sum up."""
        return self.parameter_bytes

    @property
    def is_autocast(self) -> bool:
        return self.autocast is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The most operations in a second that a device has, of one dtype."""

    flops_per_s: float
    source: str
    """Where the figure is from: a data sheet with its year, or how it was measured."""


PRECISIONS = {
    "fp32": Precision(dtype="float32"),
    "bf16-mixed": Precision(dtype="float32", autocast="bfloat16"),
    "fp16-mixed": Precision(dtype="float32", autocast="float16"),
    "bf16": Precision(dtype="bfloat16"),
    "fp16": Precision(dtype="float16"),
    "tf32": Precision(dtype="float32", narrow="tf32"),
    "fp8": Precision(dtype="float32", autocast="bfloat16", narrow="float8"),
    "mxfp8": Precision(dtype="float32", autocast="bfloat16", narrow="float8"),
    "nvfp4": Precision(dtype="float32", autocast="bfloat16", narrow="float4"),
    "int8": Precision(dtype="float32", autocast="bfloat16", narrow="int8"),
}
BUILT = ("fp32", "bf16-mixed", "fp16-mixed", "bf16")
"""That the suite steps measures; models can also be built in pure fp16, and in tf32 where the
device has it. The others are for what is predicted."""
TF32 = "tf32"
SPELLINGS = {
    "amp_bf16": "bf16-mixed",
    "amp_fp16": "fp16-mixed",
    "amp_fp8": "fp8",
}
"""What published tables and other tools call them."""


def name_precision(dtype: str, autocast: str | None = None) -> str:
    """Of parameters in that dtype.

    >>> name_precision("float32", "bfloat16")
    'bf16-mixed'
    """
    for name, precision in PRECISIONS.items():
        if precision == Precision(dtype=dtype, autocast=autocast):
            return name
    raise UsageError(f"there is no precision with parameters in {dtype} and autocast {autocast}")


def require_built(name: str, *, has_tf32: bool) -> None:
    """Refuse what no model can be measured in, on a device with that arithmetic or without it."""
    found = find_precision(name)
    known = [one for one, precision in PRECISIONS.items() if precision.narrow is None]
    known += [TF32] if has_tf32 else []
    if found == TF32 and not has_tf32:
        raise UsageError(
            f"precision {TF32} is arithmetic of accelerators that this device does not have; "
            f"choose one of {', '.join(known)}"
        )
    if found not in known:
        raise UsageError(
            f"precision {name} can be predicted, but models are not built in it; choose one of "
            f"{', '.join(known)}"
        )


def find_precision(name: str) -> str:
    """The key of PRECISIONS.

    >>> find_precision("amp_bf16")
    'bf16-mixed'
    """
    found = SPELLINGS.get(name, name)
    if found not in PRECISIONS:
        known = ", ".join([*PRECISIONS, *SPELLINGS])
        raise UsageError(f"there is no precision {name!r}; choose one of {known}")
    return found
