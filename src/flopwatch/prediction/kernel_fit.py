"""Fitting the costs of kernels to the published SwitchBack benchmark, and judging them on shapes
that they were not fitted to.

Kernels are fitted by families, whose kinds have all parameters in common. These are fitted as
logarithms, and a weak prior keeps where it is expected what the data do not determine. A residual
is the logarithm of predicted over measured time, in units of SCATTER; large ones count in
proportion instead of by their square.

What disturbs the host only ever makes it slower. Where the host matters, times that are longer than
predicted therefore count less than shorter ones: `Family.slow_weight`.

Times of one shape at different batches are alike, so that errors of parameters are found by leaving
out whole shapes (the jackknife), as those of predictions are. What is held out are parameters only:
the form of the model, and `Family.slow_weight`, were chosen by looking at all shapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flopwatch.lazy import require
from flopwatch.prediction.fit import soften
from flopwatch.prediction.kernels import (
    A100,
    FLOAT16_PRODUCTS,
    INT8_PRODUCTS,
    QUANTIZATIONS,
    Layer,
    Product,
    ProductCost,
    QuantizationCost,
    predict_product_seconds,
)
from flopwatch.records.published import read_text

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

SCATTER = 0.05
"""How far predictions are off where nothing is wrong, relatively."""
SPREAD = 1.0
"""How far parameters may lie from what is expected: one standard deviation of the logarithm."""
TOLERANCE = 1e-5
"""At which a fit is good enough, relatively."""
SECONDS_PER_MS = 1e-3
Values = Mapping[str, float]
"""Parameters of one kind of kernel by name."""
Predict = Callable[[Layer], float]
"""Seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """A published line: how long each kind of kernel took."""

    layer: Layer
    seconds: Mapping[str, float]

    @property
    def shape(self) -> tuple[int, int]:
        return self.layer.inputs, self.layer.outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Kernels that have their parameters in common."""

    kinds: tuple[str, ...]
    bind: Callable[[str, Values], Predict]
    """What a kind of kernel takes, given its parameters."""
    expected: Mapping[str, float]
    """Parameters as one would guess them: where a fit starts, and what it is held to."""
    slow_weight: float = 1.0
    """What a residual counts if it took longer than predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    name: str
    kinds: tuple[str, ...]
    """That have it in common."""
    value: float
    standard_error: float | None
    """In the same unit; None with fewer than two shapes, which tell nothing about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelScore:
    """How far predictions are from what was measured, relatively, for shapes left out of the
    fit."""

    kind: str
    rows: int
    mean_error: float
    largest_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelValidation:
    scores: tuple[KernelScore, ...]
    parameters: tuple[Parameter, ...]
    """Fitted to all shapes."""


def _bind_product(find: Callable[[Layer], Product], dtype: str, values: Values) -> Predict:
    cost = ProductCost(**values)
    return lambda layer: predict_product_seconds(find(layer), cost, A100, dtype)


def _bind_quantization(kind: str, values: Values) -> Predict:
    find_matrix, predict = QUANTIZATIONS[kind]
    cost = QuantizationCost(**values)
    return lambda layer: predict(find_matrix(layer), cost)


PRODUCT_EXPECTED = {
    "efficiency": 0.9,
    "result_bytes_per_second": 1.4e12,
    "ramp_seconds": 5e-6,
    "tail": 0.5,
}
# Every kind of product has a family of its own. They could share how long a kernel takes to start,
# but that they agree on it without being told is worth more.
FAMILIES: tuple[Family, ...] = (
    *(
        Family(
            kinds=(kind,),
            bind=lambda kind, values: _bind_product(FLOAT16_PRODUCTS[kind], "float16", values),
            expected={**PRODUCT_EXPECTED, "throttling": 0.1, "boost_seconds": 20e-3},
        )
        for kind in FLOAT16_PRODUCTS
    ),
    *(
        Family(
            kinds=(kind,),
            bind=lambda kind, values: _bind_product(INT8_PRODUCTS[kind], "int8", values),
            expected=PRODUCT_EXPECTED,
        )
        for kind in INT8_PRODUCTS
    ),
    Family(
        kinds=tuple(QUANTIZATIONS),
        bind=_bind_quantization,
        expected={
            "host_seconds": 25e-6,
            "global_calls": 3.0,
            "ramp_seconds": 5e-6,
            "bytes_per_second": 1.4e12,
            "lanes_per_second": 1e12,
            "spill": 2.0,
            "transposition": 1.5,
            "lane_seconds": 20e-12,
            "miss_seconds": 50e-12,
            "reach_bytes": 32 * 2**20,
        },
        slow_weight=0.5,
    ),
)


def validate_kernels() -> list[KernelScore]:
    """For every kind of kernel, each shape predicted from all others."""
    timings = read_timings()
    return [score for family in FAMILIES for score in validate(family, timings).scores]


def read_timings() -> list[Timing]:
    kinds = [kind for family in FAMILIES for kind in family.kinds]
    lines = [json.loads(line) for line in read_text("switchback").splitlines()]
    return [
        Timing(
            layer=Layer(tokens=line["batch_size"], inputs=line["dim_in"], outputs=line["dim_out"]),
            seconds={kind: line[kind] * SECONDS_PER_MS for kind in kinds},
        )
        for line in lines
    ]


def fit(family: Family, timings: Sequence[Timing]) -> dict[str, float]:
    """The parameters by name."""
    require("scipy")
    import numpy as np
    from scipy.optimize import least_squares

    def measure(point: Array) -> Array:
        residuals = _list_residuals(family, timings, _unpack(family, point))
        return np.array([*map(soften, residuals), *(x / SPREAD for x in point)])

    start = np.zeros(len(family.expected))
    solved = least_squares(measure, start, x_scale="jac", ftol=TOLERANCE, xtol=TOLERANCE)
    return _unpack(family, solved.x)


def validate(family: Family, timings: Sequence[Timing]) -> KernelValidation:
    shapes = list(dict.fromkeys(timing.shape for timing in timings))
    errors: dict[str, list[float]] = {kind: [] for kind in family.kinds}
    fits = []
    for shape in shapes:
        fits.append(fit(family, [timing for timing in timings if timing.shape != shape]))
        left_out = [timing for timing in timings if timing.shape == shape]
        for kind in family.kinds:
            predict = family.bind(kind, fits[-1])
            errors[kind] += [abs(predict(t.layer) / t.seconds[kind] - 1) for t in left_out]
    return KernelValidation(
        scores=tuple(
            KernelScore(kind=kind, rows=len(of), mean_error=fmean(of), largest_error=max(of))
            for kind, of in errors.items()
        ),
        parameters=tuple(
            Parameter(
                name=name,
                kinds=family.kinds,
                value=value,
                standard_error=_find_error([each[name] for each in fits]),
            )
            for name, value in fit(family, timings).items()
        ),
    )


def _unpack(family: Family, point: Array) -> dict[str, float]:
    return {
        name: expected * math.exp(x)
        for (name, expected), x in zip(family.expected.items(), point, strict=True)
    }


def _list_residuals(family: Family, timings: Sequence[Timing], values: Values) -> list[float]:
    residuals = []
    for kind in family.kinds:
        predict = family.bind(kind, values)
        residuals += [math.log(predict(t.layer) / t.seconds[kind]) / SCATTER for t in timings]
    return [each * family.slow_weight if each < 0 else each for each in residuals]


def _find_error(values: Sequence[float]) -> float | None:
    """Of a value that is fitted to all, from those that are fitted to all but one."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    share = (len(values) - 1) / len(values)
    return math.sqrt(share * sum((value - mean) ** 2 for value in values))
