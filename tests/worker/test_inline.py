from __future__ import annotations

import math

import pytest
import torch

import flopwatch
from flopwatch.analysis.statistics import Estimate
from flopwatch.worker.inline import Comparison, Measurement


def make_measurement(name: str, value: float, **changes: object) -> Measurement:
    content: dict[str, object] = {
        "name": name,
        "time_ns": Estimate(value=value, low=value * 0.99, high=value * 1.02, samples=40),
        "samples_ns": [value] * 50,
        "warmup_samples": 10,
        "steady": True,
        "stop_reason": "precise",
        "calls_per_sample": 1,
    }
    return Measurement(**{**content, **changes})  # type: ignore[arg-type]


def test_a_measurement_prints_well() -> None:
    assert repr(make_measurement("step", 2.5e6)) == (
        "step: 2.50 ms ±2.0 %, 40 samples after 10 of warm-up"
    )
    assert repr(make_measurement("add", 1500.0, calls_per_sample=100, steady=False)) == (
        "add: 1.50 µs ±2.0 %, 40 samples of 100 calls after 10 of warm-up; it never became steady"
    )


def test_a_comparison_prints_well() -> None:
    comparison = Comparison(
        measurements={
            "dense": make_measurement("dense", 2e6),
            "<mine>": make_measurement("m", 1e6),
        },
        speedups={"<mine>": Estimate(value=2.0, low=1.95, high=2.05, samples=40)},
        baseline="dense",
        checked=False,
    )
    assert repr(comparison) == (
        "dense   2.00 ms  ±2.0 %  1.00x               baseline\n"
        "<mine>  1.00 ms  ±2.0 %  2.00x [1.95, 2.05]  faster\n"
        "40 rounds, 99 % intervals; results not compared: pass tolerance="
    )
    page = comparison._repr_html_()
    assert "&lt;mine&gt;" in page
    assert "<mine>" not in page


def test_measure_really_measures() -> None:
    result = flopwatch.measure(lambda: math.factorial(2000), budget_s=2.0)
    assert result.time_ns.value > 1000
    assert result.samples > 0
    assert len(result.samples_ns) == result.samples + result.warmup_samples


def test_compare_finds_the_faster_one() -> None:
    comparison = flopwatch.compare(
        {
            "twice": lambda: (math.factorial(2000), math.factorial(2000)),
            "once": lambda: math.factorial(2000),
        },
        budget_s=3.0,
    )
    assert comparison.verdict("once") == "faster"
    assert comparison.speedups["once"].value > 1.3
    assert not comparison.checked


def test_compare_checks_results_on_request() -> None:
    x = torch.randn(64, 64)
    same = {"a": lambda: x @ x, "b": lambda: torch.mm(x, x)}
    assert flopwatch.compare(same, tolerance=1e-5, budget_s=0.3).checked
    with pytest.raises(flopwatch.WrongResult, match="disagrees with a: output"):
        flopwatch.compare({"a": lambda: x @ x, "c": lambda: x + x}, tolerance=1e-5)
    arrays = {"a": x.numpy, "c": lambda: 2 * x.numpy()}
    with pytest.raises(flopwatch.WrongResult, match="disagrees with a: output"):
        flopwatch.compare(arrays, tolerance=1e-5)
    with pytest.raises(flopwatch.FlopwatchError, match="there is nothing to compare"):
        flopwatch.compare({"a": lambda: None, "b": lambda: "text"}, tolerance=1e-5)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: flopwatch.compare({"a": lambda: 1}), "at least two functions"),
        (lambda: flopwatch.measure(lambda: 1, target_interval=2), "2 is not between 0 and 1"),
        (lambda: flopwatch.measure(lambda: 1, budget_s=0), "budget_s 0 is not more than 0"),
    ],
)
def test_wrong_arguments_are_told(call: object, complaint: str) -> None:
    with pytest.raises(flopwatch.FlopwatchError, match=complaint):
        call()  # type: ignore[operator]


def test_an_error_in_the_function_is_the_callers() -> None:
    def broken() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        flopwatch.measure(broken)
