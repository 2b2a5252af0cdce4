"""The cost model of single kernels: what it predicts of shapes that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from flopwatch.prediction import kernels
from flopwatch.prediction.kernel_fit import (
    FAMILIES,
    Family,
    KernelScore,
    KernelValidation,
    Parameter,
    Timing,
    fit,
    read_timings,
    validate,
    validate_kernels,
)
from flopwatch.prediction.kernels import (
    A100,
    FLOAT16_PRODUCTS,
    INT8_PRODUCTS,
    QUANTIZATIONS,
    Layer,
    Product,
    ProductCost,
)

pytest.importorskip("scipy")

LARGEST = {
    **dict.fromkeys(FLOAT16_PRODUCTS, 0.05),
    **dict.fromkeys(INT8_PRODUCTS, 0.08),
    **dict.fromkeys(QUANTIZATIONS, 0.08),
}
COST = ProductCost(efficiency=0.9, result_bytes_per_second=1e12, ramp_seconds=1e-5, tail=1.0)


@pytest.fixture(scope="module")
def validations() -> list[KernelValidation]:
    timings = read_timings()
    return [validate(family, timings) for family in FAMILIES]


@pytest.fixture(scope="module")
def scores(validations: Sequence[KernelValidation]) -> dict[str, KernelScore]:
    return {score.kind: score for each in validations for score in each.scores}


@pytest.fixture(scope="module")
def parameters(validations: Sequence[KernelValidation]) -> dict[tuple[str, str], Parameter]:
    found = [parameter for each in validations for parameter in each.parameters]
    return {(kind, each.name): each for each in found for kind in each.kinds}


@pytest.mark.parametrize("kind", LARGEST)
def test_shapes_left_out_are_predicted_this_well(kind: str, scores: dict[str, KernelScore]) -> None:
    score = scores[kind]
    assert score.rows == 142
    assert score.mean_error <= LARGEST[kind]
    assert score.mean_error < score.largest_error < 0.6


def test_parameters_are_positive_few_and_known(
    parameters: dict[tuple[str, str], Parameter],
) -> None:
    for parameter in parameters.values():
        assert parameter.value > 0
        assert parameter.standard_error is not None
        assert 0 < parameter.standard_error < parameter.value, parameter
    for family in FAMILIES:
        assert len(family.expected) <= (6 if len(family.kinds) == 1 else 10)


def test_parameters_have_sane_units(parameters: dict[tuple[str, str], Parameter]) -> None:
    value = {key: parameter.value for key, parameter in parameters.items()}
    for kind in (*FLOAT16_PRODUCTS, *INT8_PRODUCTS):
        assert 0.8 < value[kind, "efficiency"] < 1
        assert 2e-6 < value[kind, "ramp_seconds"] < 20e-6
        assert value[kind, "tail"] < 1.1
    for kind in INT8_PRODUCTS:  # Triton's kernels have one size of tiles, and waves are whole.
        assert value[kind, "tail"] > 0.7
        assert value[kind, "result_bytes_per_second"] < 1.555e12
    quantize = "x_quantize_rowwise"
    assert 1.2e12 < value[quantize, "bytes_per_second"] < 1.555e12
    assert 20e-6 < value[quantize, "host_seconds"] < 35e-6
    assert value[quantize, "spill"] > 1
    assert value[quantize, "transposition"] > 1


def test_the_chip_is_warmer_for_whoever_comes_later(
    parameters: dict[tuple[str, str], Parameter],
) -> None:
    """The benchmark times the forward product first, then the gradients of weights and inputs."""
    order = ("standard_fwd", "standard_gw", "standard_gx")
    lasts = [parameters[kind, "boost_seconds"].value for kind in order]
    assert lasts == sorted(lasts, reverse=True)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kinds[0])
@pytest.mark.parametrize("grown", ["tokens", "inputs", "outputs"])
def test_more_work_never_takes_less_time(family: Family, grown: str) -> None:
    for kind in family.kinds:
        predict = family.bind(kind, family.expected)
        layer = Layer(tokens=512, inputs=768, outputs=1152)
        times = []
        for factor in range(1, 40):
            times.append(predict(replace(layer, **{grown: 128 * factor})))
        assert times == sorted(times)
        large = Layer(tokens=65536, inputs=4096, outputs=4096)
        doubled = predict(replace(large, tokens=131072, inputs=8192)) / predict(large)
        assert doubled > 1.5


def test_a_large_product_takes_what_its_flops_take() -> None:
    product = Product(rows=108 * 128, columns=128 * 64, depth=65536)
    seconds = kernels.predict_product_seconds(product, COST, A100, "float16")
    flops = 2 * product.rows * product.columns * product.depth
    assert seconds == pytest.approx(flops / (0.9 * 312e12), rel=0.01)
    assert seconds > flops / (0.9 * 312e12)
    assert kernels.predict_product_seconds(product, COST, A100, "int8") < seconds


def test_a_tile_more_than_a_wave_takes_another_wave() -> None:
    def predict(tiles: int, tail: float) -> float:
        product = Product(rows=tiles * 128, columns=128, depth=4096)
        cost = replace(COST, ramp_seconds=1e-12, tail=tail)
        return kernels.predict_product_seconds(product, cost, A100, "int8")

    assert predict(1, 1.0) == predict(108, 1.0)
    assert predict(109, 1.0) == pytest.approx(2 * predict(108, 1.0))
    assert predict(109, 0.5) == pytest.approx((1.5 + 0.5 / 108) * predict(108, 1.0))


def test_short_kernels_are_timed_before_the_clock_falls() -> None:
    cost = replace(COST, throttling=0.1, boost_seconds=20e-3)
    for depth, ratio in ((1024, 1.0), (65536, 1.1)):
        product = Product(rows=4096, columns=4096, depth=depth)
        plain, throttled = (
            kernels.predict_product_seconds(product, each, A100, "float16") - COST.ramp_seconds
            for each in (COST, cost)
        )
        assert throttled / plain == pytest.approx(ratio)


def test_a_row_that_is_no_power_of_two_or_too_long_takes_longer() -> None:
    family = FAMILIES[-1]
    predict = family.bind("x_quantize_rowwise", family.expected)

    def time_a_number(columns: int) -> float:
        return predict(Layer(tokens=2**17, inputs=columns, outputs=1)) / columns

    assert time_a_number(4097) > 1.05 * time_a_number(4096)
    assert time_a_number(16384) > 1.05 * time_a_number(8192)


@pytest.mark.parametrize("family", FAMILIES[2:4], ids=lambda family: family.kinds[0])
def test_a_fit_recovers_known_parameters(family: Family) -> None:
    """A little noise, the same for every run, and one time in twenty is half as long again."""
    known = {name: value * 1.15 for name, value in family.expected.items()}
    known["efficiency"] = 0.8
    timings = [_time(family, known, timing, at) for at, timing in enumerate(read_timings())]
    found = fit(family, timings)
    assert found["efficiency"] == pytest.approx(known["efficiency"], rel=0.02)
    for name, value in known.items():
        assert found[name] == pytest.approx(value, rel=0.15), name


def _time(family: Family, known: dict[str, float], timing: Timing, at: int) -> Timing:
    noise = 0.01 * math.sin(7.3 * at) + (0.4 if at % 20 == 7 else 0.0)
    return replace(
        timing,
        seconds={
            kind: family.bind(kind, known)(timing.layer) * math.exp(noise) for kind in family.kinds
        },
    )


def test_the_scores_are_those_of_all_kinds(
    scores: dict[str, KernelScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(scores) == list(LARGEST)
    monkeypatch.setattr("flopwatch.prediction.kernel_fit.FAMILIES", FAMILIES[3:4])
    assert validate_kernels() == [scores["rowwise_fwd"]]


def test_most_predictions_are_near() -> None:
    """Fitted to all of them, for what the held-out errors can be compared with."""
    timings = read_timings()
    family = FAMILIES[0]
    predict = family.bind("standard_fwd", fit(family, timings))
    errors = [abs(predict(t.layer) / t.seconds["standard_fwd"] - 1) for t in timings]
    assert fmean(errors) < 0.045
