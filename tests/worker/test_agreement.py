from __future__ import annotations

from typing import Any

import pytest
import torch

from flopwatch.devices.cpu import CpuClock
from flopwatch.errors import SuiteError
from flopwatch.suites.workload import Workload
from flopwatch.worker import agreement
from flopwatch.worker.agreement import WrongResult, compare, gather
from tests.conftest import FakeClock

NAN, INF = float("nan"), float("inf")


def gather_values(workload: Workload) -> dict[str, Any]:
    return gather(workload, CpuClock()).values


def check(value: Any, reference: Any, tolerance: float = 1e-3) -> dict[str, float | None]:
    result = compare(
        gather_values(Workload(phases={"call": lambda: value})),
        gather_values(Workload(phases={"call": lambda: reference})),
        against="the reference",
        tolerance=tolerance,
    )
    return {} if result is None else result.errors


def test_error_is_relative_to_the_largest_magnitude() -> None:
    errors = check(torch.tensor([100.0, 1.05]), torch.tensor([100.0, 1.0]))
    assert errors == {"output": pytest.approx(5e-4, rel=1e-4)}


def test_one_wrong_element_is_found() -> None:
    value = torch.ones(1000)
    value[613] = 1.01
    with pytest.raises(WrongResult, match=r"output is off by 0.01 \(allowed 0.001\)") as caught:
        check(value, torch.ones(1000))
    assert caught.value.check.errors["output"] == pytest.approx(0.01, rel=1e-4)


def test_shapes_must_agree() -> None:
    with pytest.raises(WrongResult, match=r"output has shape \(2,\) instead of \(3,\)"):
        check(torch.ones(2), torch.ones(3))


def test_dtypes_may_differ() -> None:
    assert check(torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float64)) == {
        "output": 0.0
    }


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_whole_numbers_must_be_equal(dtype: torch.dtype) -> None:
    value, reference = torch.tensor([127, 3], dtype=dtype), torch.tensor([127, 4], dtype=dtype)
    assert check(reference, reference) == {"output": 0.0}
    with pytest.raises(WrongResult, match=r"output is off by 0.0079 \(allowed 0\)"):
        check(value, reference, tolerance=1e-2)
    # Where one side has fractions, or room for them, it may have rounded.
    assert check(value, reference.float(), tolerance=1e-2) == {"output": pytest.approx(1 / 127)}


@pytest.mark.parametrize(
    ("value", "reference", "agree"),
    [
        ([NAN, 1.0], [NAN, 1.0], True),
        ([INF, 1.0], [INF, 1.0], True),
        ([NAN, NAN], [NAN, NAN], True),
        ([NAN, 1.0], [1.0, 1.0], False),
        ([INF, 1.0], [-INF, 1.0], False),
        ([NAN, 1.0], [INF, 1.0], False),
        ([1.0, NAN], [NAN, 1.0], False),
        ([0.5, 1.0], [NAN, 1.0], False),
    ],
)
def test_what_is_not_finite_must_be_the_same(
    value: list[float], reference: list[float], agree: bool
) -> None:
    if agree:
        assert check(torch.tensor(value), torch.tensor(reference)) == {"output": 0.0}
    else:
        with pytest.raises(WrongResult, match="not finite in other places"):
            check(torch.tensor(value), torch.tensor(reference))


def test_nested_outputs_are_compared_by_name() -> None:
    value = {"logits": torch.ones(2), "states": [torch.ones(1), 3.0]}
    assert set(check(value, value)) == {"output.logits", "output.states[0]", "output.states[1]"}
    with pytest.raises(WrongResult, match=r"only the reference has output\[1\]"):
        check((torch.ones(1),), (torch.ones(1), torch.ones(1)))


def test_zero_and_empty_references() -> None:
    assert check(torch.zeros(3), torch.zeros(3)) == {"output": 0.0}
    assert check(torch.zeros(0), torch.zeros(0)) == {"output": 0.0}
    with pytest.raises(WrongResult):
        check(torch.full((3,), 0.1), torch.zeros(3))


def test_nothing_to_compare() -> None:
    assert check(None, "text") == {}


def test_gradients_are_gathered_fresh() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    x.grad = torch.full((2,), 99.0)  # left over; must not be added to
    workload = Workload(
        phases={"forward": (x * x).sum, "backward": lambda y: y.backward()},
        gradients={"x": x},
    )
    values = gather_values(workload)
    assert values["output"].item() == 5.0
    assert values["grad x"].tolist() == [2.0, 4.0]


def test_a_named_gradient_that_is_missing_is_told() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(SuiteError, match="names the gradient of 'x', but after its phases"):
        gather_values(Workload(phases={"forward": x.sum}, gradients={"x": x}))


def test_values_are_copies() -> None:
    buffer = torch.zeros(2)

    def write() -> torch.Tensor:
        return buffer

    workload = Workload(phases={"first": write, "second": lambda y: y.fill_(7)})
    assert gather_values(workload)["output"].tolist() == [0.0, 0.0]


def test_all_phases_are_compared_where_the_workload_says_so() -> None:
    def make(third: float) -> Workload:
        buffer = torch.zeros(2)
        return Workload(
            phases={
                "fill": lambda: buffer.fill_(1),
                "refill": lambda _: (buffer.fill_(5), 2.0),  # over what was returned before
                "last": lambda _: torch.full((3,), third),
            },
            compare="all",
        )

    values = gather_values(make(3.0))
    assert {name: value.tolist() for name, value in values.items()} == {
        "fill": [1.0, 1.0],
        "refill[0]": [5.0, 5.0],
        "refill[1]": 2.0,
        "last": [3.0, 3.0, 3.0],
    }
    with pytest.raises(WrongResult, match=r"the reference: last is off by 0.25 \(allowed"):
        compare(values, gather_values(make(4.0)), against="the reference", tolerance=1e-3)


def test_large_tensors_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "CHUNK", 7)
    value, reference = torch.ones(5, 5), torch.ones(5, 5)
    reference[4, 4] = 100.0
    value[0, 0] = 1.5  # in another piece than the largest value
    with pytest.raises(WrongResult, match="output is off by 0.99"):
        check(value, reference)
    value[4, 4] = 100.0
    assert check(value, reference, 1e-2) == {"output": pytest.approx(5e-3)}
    value[2, 2] = reference[2, 2] = NAN
    value[3, 3] = NAN
    with pytest.raises(WrongResult, match=r"not finite in other places \(2 elements\)"):
        check(value, reference)


def test_the_first_call_is_timed_without_the_copies(clock: FakeClock) -> None:
    first = gather(clock.workload(5.0, 7.0), clock)
    assert first.phase_ns == [5.0, 7.0]
    assert first.values == {}
