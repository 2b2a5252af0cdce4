from __future__ import annotations

import copy
import io
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flopwatch
from flopwatch.analysis.statistics import Estimate
from flopwatch.worker.comparison import Comparison, Measurement
from flopwatch.worker.function_agreement import same_seed

LAYER = torch.nn.Linear(8, 4)


def ONE() -> int:  # noqa: N802
    return 1


TWO = {"a": ONE, "b": ONE}


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
    )
    assert repr(comparison) == (
        "<mine> is 2.00x faster than dense (1.95x to 2.05x)\n"
        "function     time      ±  speedup             verdict\n"
        "dense     2.00 ms  2.0 %  1.00x               baseline\n"
        "<mine>    1.00 ms  2.0 %  2.00x [1.95, 2.05]  faster\n"
        "40 rounds, 99 % intervals; results not compared: pass tolerance="
    )
    page = comparison._repr_html_()
    assert "&lt;mine&gt;" in page
    assert "<mine>" not in page


def make_comparison(value: float, low: float | None, high: float | None) -> Comparison:
    speedup = Estimate(value=value, low=low, high=high, samples=40)
    both = {name: make_measurement(name, 2e6) for name in "ab"}
    return Comparison(measurements=both, speedups={"b": speedup}, baseline="a")


@pytest.mark.parametrize(
    ("speedup", "answer"),
    [
        ((1.05, 1.041, 1.058), "b is 1.05x faster than a (4 to 6 %)"),
        ((0.5, 0.49, 0.51), "b is 2.00x slower than a (1.96x to 2.04x)"),
        ((1.001, 0.995, 1.011), "a and b are the same within 1.1 %"),
        (
            (1.01, 0.97, 1.04),
            "unclear: b is between 3 % slower and 4 % faster than a; raise budget_s",
        ),
        ((1.2, 0.5, 4.0), "unclear: the times of b and a are too noisy; raise budget_s"),
        ((1.2, None, None), "unclear: too few samples of b and a (40 rounds); raise budget_s"),
    ],
)
def test_the_answer_comes_first(
    speedup: tuple[float, float | None, float | None], answer: str
) -> None:
    printed = repr(make_comparison(*speedup))
    assert printed.splitlines()[0] == answer
    assert "?" not in printed


def test_a_speedup_that_contradicts_the_times_is_explained() -> None:
    """6.71 ms and 5.99 ms are not 2.81x."""
    comparison = replace(
        make_comparison(2.81, 2.7, 2.9),
        measurements={"a": make_measurement("a", 6.71e6), "b": make_measurement("b", 5.99e6)},
    )
    assert "the speedup of b is not the ratio of the times above, which drifted" in repr(comparison)
    assert "drifted" in comparison._repr_html_()
    assert "drifted" not in repr(make_comparison(1.001, 0.995, 1.011))


def test_load_is_said_below_the_times() -> None:
    words = "other processes took 64 % of the cores meanwhile"
    comparison = make_comparison(1.001, 0.995, 1.011)
    assert words in repr(replace(comparison, background_share=0.64))
    assert words in repr(make_measurement("step", 2.5e6, background_share=0.64))
    assert "other processes" not in repr(replace(comparison, background_share=0.04))


def test_a_threshold_decides_what_is_called_faster() -> None:
    found = make_comparison(1.05, 1.041, 1.058)
    assert (found.threshold, found.verdict("b")) == (0.02, "faster")
    assert replace(found, threshold=0.08).verdict("b") == "same"
    assert replace(found, threshold=0.055).verdict("b") == "slightly faster"
    compared = flopwatch.compare(TWO, threshold=0.5, budget_s=0.01)
    assert (compared.threshold, compared.measurements["a"].name) == (0.5, "a")
    with pytest.raises(flopwatch.UsageError, match="threshold 2 is not a number between 0 and 1"):
        flopwatch.compare(TWO, threshold=2)


def test_raw_samples_are_kept() -> None:
    found = flopwatch.measure({"first": ONE, "second": lambda _: 2}, budget_s=0.05)
    assert found.raw is not None
    assert list(found.raw.samples_ns) == ["first", "second"]
    totals = map(sum, zip(*found.raw.samples_ns.values(), strict=True))
    assert list(totals) == found.samples_ns
    assert found.raw.rounds == list(range(len(found.samples_ns)))
    assert found.raw.calls_per_sample[-1] == found.calls_per_sample
    assert found.name == "function"


def test_a_measurement_of_few_or_scattered_samples_says_so_in_words() -> None:
    few = Estimate(value=1e6, low=None, high=None, samples=3)
    wild = Estimate(value=1e6, low=9e5, high=9e6, samples=8)
    assert ": 1.00 ms too few samples," in repr(make_measurement("f", 1e6, time_ns=few))
    assert ": 1.00 ms too noisy," in repr(make_measurement("f", 1e6, time_ns=wild))


class Zeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.shapes = x.shape, w.shape
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return tuple(torch.zeros(shape) for shape in ctx.shapes)


def make_pair() -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(16, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)


def check(functions: dict[str, Any], **options: Any) -> str:
    """The footer of a very short comparison."""
    options = {"tolerance": 1e-5, "backward": True, "budget_s": 0.02, **options}
    return flopwatch.compare(functions, **options).footer().partition("; ")[2]


def test_a_backward_pass_of_zeros_is_found() -> None:
    x, w = make_pair()
    wrong = {"a": lambda: x @ w, "b": lambda: Zeros.apply(x, w)}
    only = "outputs agree; gradients not compared: pass backward=True"
    assert check(wrong, backward=False) == only
    with pytest.raises(flopwatch.WrongResult, match="'b' disagrees with 'a': gradient of w is off"):
        check(wrong)
    with pytest.raises(flopwatch.WrongResult, match="gradient of tensor 0 is off by 1"):
        check(wrong, gradients_of=[x])
    right = {"a": lambda: x @ w, "b": lambda: torch.mm(x, w)}
    assert check(right) == "outputs and gradients agree"


def differentiate(output: Any) -> Any:
    output.sum().backward()
    return output


def test_gradients_that_a_function_computes_itself_are_compared() -> None:
    """In a phase, or in the function: `backward=True` is for neither."""
    x, w = make_pair()
    right, wrong = (lambda: x @ w), (lambda: Zeros.apply(x, w))
    in_phases = [{"forward": each, "backward": differentiate} for each in (right, wrong)]
    in_function = [(lambda: differentiate(x @ w)), (lambda: differentiate(Zeros.apply(x, w)))]
    for one, other in (in_phases, in_function):
        both = {"a": one, "b": other}
        told = check(both, backward=False)
        assert told == "outputs agree; gradients not compared: pass gradients_of="
        with pytest.raises(flopwatch.WrongResult, match="'b' .*: gradient of x is off by 1"):
            check(both, gradients_of={"x": x}, backward=False)
        same = check({"a": one, "b": one}, gradients_of=[x, w], backward=False)
        assert same == "outputs and gradients agree"
    with pytest.raises(flopwatch.UsageError, match="'a' has run its own backward pass already"):
        check({"a": in_function[0], "b": in_function[1]})


def test_nothing_finite_agrees_with_nothing() -> None:
    nan = {"a": lambda: torch.full((3,), math.nan), "b": lambda: torch.full((3,), math.nan)}
    with pytest.raises(flopwatch.UsageError, match="no number that 'a' returns is finite"):
        check(nan, backward=False)


def test_who_spoils_the_inputs_of_others_is_not_hidden_by_them() -> None:
    x = torch.ones(4)
    both = {
        "a": lambda: x * 2,
        "b": lambda: 2 * x.clone(),
        "c": lambda: x.mul_(2),
        "d": lambda: x * 2,
    }
    with pytest.raises(
        flopwatch.WrongResult, match="'d' .* one of the functions changes what they"
    ):
        check(both, backward=False)


def test_functions_may_have_copies_of_their_own() -> None:
    x, _ = make_pair()
    mine = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    theirs = copy.deepcopy(mine)
    both = {"a": lambda: mine(x), "b": lambda: theirs(x)}
    assert check(both) == "outputs and gradients agree"
    assert check(both, gradients_of={"a": mine, "b": theirs}) == "outputs and gradients agree"
    with pytest.raises(flopwatch.WrongResult, match="only 'a' has gradient of x"):
        check({**both, "b": lambda: theirs(x.detach())})


def test_gradients_that_cannot_be_matched_are_asked_for() -> None:
    x, _ = make_pair()
    one, two = (torch.ones(8, requires_grad=True) for _ in range(2))
    p, q = (torch.ones(8, requires_grad=True) for _ in range(2))
    both = {"a": lambda: x * one * two, "b": lambda: x * p * q}
    with pytest.raises(flopwatch.UsageError, match="pass the tensors of each"):
        check(both)
    assert check(both, gradients_of={"a": [one, two], "b": [p, q]}).endswith("gradients agree")


def test_gradients_do_not_add_up_over_runs() -> None:
    x, w = make_pair()
    result = flopwatch.measure(lambda: torch.sum(x @ w), backward=True, budget_s=0.05)
    assert list(result.phases_ns) == ["forward", "backward"]
    assert x.grad is not None
    assert torch.allclose(x.grad, w.sum(1).expand(16, 8), rtol=1e-4)


def test_randomness_is_not_blamed_on_the_other() -> None:
    x, _ = make_pair()
    dropout = torch.nn.functional.dropout
    seeded = check({"a": lambda: dropout(x), "b": lambda: dropout(x)})
    assert seeded == (
        "outputs and gradients agree (they are random: the seed 0 was set before each)"
    )
    with pytest.raises(flopwatch.WrongResult, match="'b' .*it disagrees with itself, too"):
        check({"a": lambda: x * 2, "b": lambda: dropout(x * 2)})
    counter = iter(range(100))
    with pytest.raises(flopwatch.UsageError, match="'a' disagrees with itself.*deterministic"):
        check({"a": lambda: next(counter), "b": lambda: 1}, backward=False)


def test_comparing_leaves_random_generators_as_they_were() -> None:
    x, _ = make_pair()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with same_seed(3):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    flopwatch.compare(TWO, budget_s=0.02)
    assert terminal.getvalue().startswith("\r\x1b[Kcomparing a, b")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("stream", "term", "progress"),
    [(io.StringIO(), "xterm", True), (Terminal(), "dumb", True), (Terminal(), "xterm", False)],
)
def test_progress_is_not_shown_where_nobody_sees_it(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, term: str, progress: bool
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", term)
    flopwatch.compare(TWO, budget_s=0.02, progress=progress)
    assert stream.getvalue() == ""


def test_progress_in_a_notebook_is_one_output_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As IPython has it, which is not installed everywhere: `display` gives a handle."""
    shown: list[dict[str, str]] = []

    def update(content: dict[str, str], *, raw: bool) -> None:
        assert raw
        shown.append(content)

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> object:
        update(content, raw=raw)
        return SimpleNamespace(update=update)

    module = SimpleNamespace(display=display)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    flopwatch.compare({"<a>": ONE, "b": ONE}, budget_s=0.02)
    assert shown[0] == {
        "text/plain": "comparing <a>, b",
        "text/html": "<i>comparing &lt;a&gt;, b</i>",
    }
    assert shown[-1] == {"text/plain": "", "text/html": ""}


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
    with pytest.raises(flopwatch.WrongResult, match="'c' disagrees with 'a': output"):
        flopwatch.compare({"a": lambda: x @ x, "c": lambda: x + x}, tolerance=1e-5)
    arrays = {"a": x.numpy, "c": lambda: 2 * x.numpy()}
    with pytest.raises(flopwatch.WrongResult, match="'c' disagrees with 'a': output"):
        flopwatch.compare(arrays, tolerance=1e-5)
    with pytest.raises(flopwatch.FlopwatchError, match="there is nothing to compare"):
        flopwatch.compare({"a": lambda: None, "b": lambda: "text"}, tolerance=1e-5)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: flopwatch.compare({"a": ONE}), "at least two functions"),
        (lambda: flopwatch.compare([ONE, ONE]), "a mapping from names to functions, not a list"),
        (lambda: flopwatch.compare({1: ONE, 2: ONE}), "the name 1 of a function is not text"),
        (lambda: flopwatch.compare({"a": ONE, "b": torch.ones(1)}), "'b' is a Tensor, not a func"),
        (lambda: flopwatch.compare({"a": ONE, "b": LAYER}), r"'b' is a module \(Linear\)"),
        (lambda: flopwatch.compare({"a": ONE, "b": lambda x: x}), r"'b' needs arguments \(x\)"),
        (lambda: flopwatch.compare({"a": ONE, "b": {}}), "its entries must be phases"),
        (lambda: flopwatch.measure(torch.ones(1)), "the function is a Tensor"),
        (lambda: flopwatch.measure(ONE, cache="warm"), "cache 'warm' is unknown; .* hot, cold"),
        (
            lambda: flopwatch.measure(ONE, device="gpu"),
            "^device 'gpu', but torch finds no accelerator here; choose cpu$",
        ),
        (lambda: flopwatch.measure(ONE, target_interval=2), "2 is not a number between 0 and 1"),
        (lambda: flopwatch.measure(ONE, target_interval="2%"), "'2%' is not a number between"),
        (lambda: flopwatch.measure(ONE, budget_s=0), "budget_s 0 is not a number more than 0"),
        (lambda: flopwatch.measure(ONE, budget_s=math.nan), "budget_s nan is not a number"),
        (lambda: flopwatch.measure(ONE, budget_s="1"), "budget_s '1' is not a number"),
        (lambda: flopwatch.compare(TWO, tolerance=-1), "tolerance -1 is not a number more than 0"),
        (lambda: flopwatch.compare(TWO, tolerance=True), "tolerance True is not a number"),
        (lambda: flopwatch.compare(TWO, seed=-1), "seed -1 is not a whole number"),
        (lambda: flopwatch.compare(TWO, seed=0.5), "seed 0.5 is not a whole number"),
        (
            lambda: check(TWO, gradients_of=[LAYER.weight], backward=False),
            "'a' computes no gradient",
        ),
        (lambda: check(TWO, gradients_of=[torch.ones(1)]), "gets no gradient"),
        (lambda: flopwatch.compare(TWO, gradients_of=LAYER), "pass tolerance=1e-3"),
        (lambda: flopwatch.compare(TWO, backward=True), "'a' returns nothing that has a gradient"),
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
    for tolerance in (None, 1e-3):
        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            flopwatch.compare({"a": ONE, "b": broken}, tolerance=tolerance)
        assert caught.value.__notes__ == ["raised by 'b'"]
