"""How fast matmuls are: a quick probe for estimates, and a sweep from small to large for peaks.

Matmuls of a sweep are those of a linear layer: rows of inputs times a weight that is stored by its
outputs. CPUs that emulate a dtype are up to ten times slower with the weight stored the other way.
Results go into memory that is there already, inputs are random: GPUs draw less power for zeros, and
clock higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from statistics import median
from typing import Any

from flopwatch.devices.base import Clock, open_backend
from flopwatch.devices.best_times import Run, Trial, sustain
from flopwatch.devices.kinds import is_host
from flopwatch.devices.measured_peaks import Curve, Matmul
from flopwatch.settings import Device
from flopwatch.worker.failure import explain

Shape = tuple[int, int, int]
"""Rows, inner, columns."""
SQUARES = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
LAYERS = ((2048, 768), (2048, 1024), (4096, 2048), (8192, 4096), (8192, 8192))
"""Tokens and width of feed-forward layers, which are four times as wide inside."""
SHAPES: Sequence[Shape] = sorted(
    [
        *((size, size, size) for size in SQUARES),
        *((tokens, width, 4 * width) for tokens, width in LAYERS),
    ],
    key=math.prod,
)

HOST_DTYPES = ("float32", "bfloat16", "float16", "int8")
ACCELERATOR_DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8", "int8")

PROBE_SIZE, HOST_PROBE_SIZE, LARGEST_PROBE = 512, 768, 4096
"""Of a matmul that is large enough for its usual rate: anywhere, and one that emulates short types
is over in a second; on CPUs, where threads of a smaller one wait for one another far longer than
those of a layer do while other programs compute; and on the fastest accelerators, which are done
with a small one before the next is launched."""
ENOUGH_TIMES, LONGEST = 8, 3.0
"""On a busy machine fewer say little: they may take up to three times as long together."""
EMULATED_NS = 5e8
"""What takes longer is not tried in larger sizes."""
BUSY_NS = 1e6
"""What a probe of an accelerator takes, if it is not the largest."""
ENOUGH_NS, ENOUGH_OF_ACCELERATORS_NS = 1e9, 1e7
"""What all probes take: on a CPU they wait for other programs now and then."""
EMULATED = 2.0
"""Matmuls that take this many times as long as float32's do not use what the hardware is for."""


def list_dtypes(device: Device) -> Sequence[str]:
    """What is tried; torch may still refuse."""
    return HOST_DTYPES if is_host(device) else ACCELERATOR_DTYPES


def _bind(torch: Any, a: Any, b: Any, out: Any) -> Run:
    return partial(torch.mm, a, b, out=out)


def _bind_int8(torch: Any, a: Any, b: Any, out: Any) -> Run:
    """On a CPU the fastest that our own layers use: without VNNI, torch's is a plain loop."""
    if not is_host(a.device.type):
        return partial(torch._int_mm, a, b, out=out)
    from flopwatch.layers.int8_ops import multiply

    return partial(multiply, a, b, torch.ones(len(a)), torch.ones(()), None, torch.float32)


def _bind_float8(torch: Any, a: Any, b: Any, out: Any) -> Run:
    one = torch.ones((), device=a.device)
    # Sums that are not widened after every few products are what makers state peaks for.
    fast = {} if is_host(a.device.type) else {"use_fast_accum": True}
    return partial(torch._scaled_mm, a, b, one, one, out_dtype=out.dtype, out=out, **fast)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """How torch computes a matmul."""

    dtype: str
    result_dtype: str
    bind: Callable[[Any, Any, Any, Any], Run] = _bind
    precision: str = "highest"
    """What torch may compute float32 with."""


ARITHMETIC = {
    "float32": Arithmetic(dtype="float32", result_dtype="float32"),
    "tf32": Arithmetic(dtype="float32", result_dtype="float32", precision="high"),
    "bfloat16": Arithmetic(dtype="bfloat16", result_dtype="bfloat16"),
    "float16": Arithmetic(dtype="float16", result_dtype="float16"),
    "float8": Arithmetic(dtype="float8_e4m3fn", result_dtype="bfloat16", bind=_bind_float8),
    "int8": Arithmetic(dtype="int8", result_dtype="int32", bind=_bind_int8),
}


def find_arithmetic(dtype: str, device: Device) -> Arithmetic:
    """Of the two kinds of float8, AMD's MI300 have the other one."""
    found = ARITHMETIC[dtype]
    if dtype != "float8" or is_host(device):
        return found
    import torch

    if not torch.version.hip:
        return found
    is_other = torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx94")
    return replace(found, dtype="float8_e4m3fnuz") if is_other else found


class Operands:
    """The matrices of all matmuls of one kind: views of the same memory, which grows."""

    def __init__(self, arithmetic: Arithmetic, device: Device) -> None:
        self._arithmetic = arithmetic
        self._device = device
        self._flat: dict[str, Any] = {}

    def grow(self, shape: Shape) -> None:
        """Allocate enough for matmuls of that shape."""
        import torch

        rows, inner, columns = shape
        self._allocate("inputs", rows * inner, self._make_random)
        self._allocate("weight", columns * inner, self._make_random)
        dtype = getattr(torch, self._arithmetic.result_dtype)
        make_result = partial(torch.empty, dtype=dtype, device=self._device)
        self._allocate("result", rows * columns, make_result)

    def _allocate(self, name: str, count: int, make: Callable[[int], Any]) -> None:
        if name not in self._flat or len(self._flat[name]) < count:
            self._flat.pop(name, None)  # before the next is made
            self._flat[name] = make(count)

    def bind(self, shape: Shape) -> Run:
        import torch

        rows, inner, columns = shape
        torch.set_float32_matmul_precision(self._arithmetic.precision)
        a = self._flat["inputs"][: rows * inner].view(rows, inner)
        weight = self._flat["weight"][: columns * inner].view(columns, inner)
        out = self._flat["result"][: rows * columns].view(rows, columns)
        return self._arithmetic.bind(torch, a, weight.t(), out)

    def _make_random(self, count: int) -> Any:
        import torch

        dtype = getattr(torch, self._arithmetic.dtype)
        if not dtype.is_floating_point:
            return torch.randint(-127, 128, (count,), dtype=dtype, device=self._device)
        return torch.randn(count, device=self._device).to(dtype)


class MatmulSweep:
    """Matmuls in one dtype. The shapes grow until the next would take too long or too much memory:
    a busy moment must not stop that for good, so it is tried again before every round."""

    def __init__(self, arithmetic: Arithmetic, device: Device, longest_ns: float) -> None:
        self._operands = Operands(arithmetic, device)
        self._clock = open_backend(device).clock
        self._longest_ns = longest_ns
        self._left = list(SHAPES)
        self.trials: dict[Shape, Trial] = {}
        self.reason: str | None = None
        """Why torch refused a shape; there is no larger one then."""
        self.sustained_flops_per_s: float | None = None

    def extend(self) -> list[Trial]:
        """All trials, the new ones begun."""
        while self._left and self._predict_ns(self._left[0]) <= self._longest_ns:
            shape = self._left.pop(0)
            prepare = partial(self._operands.bind, shape)
            trial = Trial(work=count_flops(shape), prepare=prepare, clock=self._clock)
            try:
                self._operands.grow(shape)
                trial.begin()
            except (AttributeError, MemoryError, RuntimeError, TypeError) as error:
                self.reason = explain(error)
                self._left = []
                for smaller in self.trials:
                    self._operands.grow(smaller)
            else:
                self.trials[shape] = trial
        return list(self.trials.values())

    def sustain(self, load_s: float, seconds: float) -> None:
        """Measure what the fastest of them keeps up under load."""
        fastest = max(self.trials.values(), key=lambda trial: trial.rate_per_s, default=None)
        if fastest is not None:
            run_ns = sustain(fastest, load_s, seconds)
            self.sustained_flops_per_s = fastest.work / run_ns * 1e9

    def _predict_ns(self, shape: Shape) -> float:
        rates_per_s = [trial.rate_per_s for trial in self.trials.values()]
        return count_flops(shape) / max(rates_per_s) * 1e9 if rates_per_s else 0.0


def count_flops(shape: Shape) -> float:
    return 2.0 * math.prod(shape)


def list_curves(sweeps: Mapping[str, MatmulSweep]) -> list[Curve]:
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        Curve(
            dtype=dtype,
            measured_at=measured_at,
            points=[
                Matmul(
                    rows=rows,
                    inner=inner,
                    columns=columns,
                    flops_per_s=trial.rate_per_s,
                    blocks=len(trial.blocks_ns),
                    repeats=trial.repeats,
                )
                for (rows, inner, columns), trial in sweep.trials.items()
            ],
            reason=None if sweep.trials else sweep.reason,
            sustained_flops_per_s=sweep.sustained_flops_per_s,
        )
        for dtype, sweep in sweeps.items()
    ]


@cache
def describe_emulation(dtype: str, device: Device) -> str | None:
    """A sentence where matmuls in that dtype are slower than in float32; otherwise None."""
    if dtype == "float32":
        return None
    clock = open_backend(device).clock
    # The fastest: what disturbs a moment says nothing about the hardware.
    plain, short = (
        min(time_matmuls(each, device, clock), default=None) for each in ("float32", dtype)
    )
    if plain is None or short is None or short / plain < EMULATED:
        return None
    return (
        f"{dtype} is emulated here: a plain matmul takes {short / plain:.0f} times as long as in "
        "float32"
    )


def measure_rate(dtype: str, device: Device, clock: Clock) -> float | None:
    """FLOP/s of a matmul in that dtype, for estimates only; None where torch has none.

    The median, not the best: where other programs compute, threads wait for one another, and small
    matmuls may be 20 times slower for as long as that lasts. Not the mean either: on a very busy
    machine one of them in a few waits for seconds.
    """
    size = PROBE_SIZE
    if is_host(device):
        first_ns = time_matmuls(dtype, device, clock, size, enough_ns=1.0)
        if first_ns and first_ns[0] < EMULATED_NS:
            size = HOST_PROBE_SIZE
        times_ns = time_matmuls(dtype, device, clock, size)
    else:
        times_ns = time_matmuls(dtype, device, clock, size)
        while times_ns and min(times_ns) < BUSY_NS and size < LARGEST_PROBE:
            size *= 2
            times_ns = time_matmuls(dtype, device, clock, size)
    return count_flops((size,) * 3) / median(times_ns) * 1e9 if times_ns else None


def time_matmuls(
    dtype: str,
    device: Device,
    clock: Clock,
    size: int = PROBE_SIZE,
    enough_ns: float | None = None,
) -> list[float]:
    """Nanoseconds of one matmul after the other, at least one; nothing where torch has none in that
    dtype."""
    import torch

    times_ns: list[float] = []
    if enough_ns is None:
        enough_ns = ENOUGH_NS if is_host(device) else ENOUGH_OF_ACCELERATORS_NS
    try:
        a = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
        torch.mm(a, a)  # the first one pays for one-time costs
        while (taken_ns := sum(times_ns)) < enough_ns or (
            len(times_ns) < ENOUGH_TIMES and taken_ns < LONGEST * enough_ns
        ):
            start = clock.mark()
            torch.mm(a, a)
            times_ns += clock.elapsed_ns([start, clock.mark()])
    except (AttributeError, MemoryError, RuntimeError, TypeError):
        return []
    return times_ns
