"""From traces to a breakdown of our own steps, on traces made by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from flopwatch.analysis.profile_breakdown import (
    BETWEEN,
    Breakdown,
    ProfiledStep,
    attribute_step,
    list_node_regions,
    make_breakdown,
)
from flopwatch.traces.trace_reader import read_trace
from tests.traces.trace_maker import MAIN, NODE, TraceMaker

PHASES = ("forward", "backward", "optimizer")
Event = tuple[str, str, float, float, dict[str, Any]]
"""What it is, its name, beginning, end and details; times are microseconds."""


def phase(name: str, start: float, end: float) -> Event:
    return "phase", name, start, end, {}


def region(name: str, start: float, end: float) -> Event:
    return "region", name, start, end, {}


def operator(name: str, start: float, end: float, **more: Any) -> Event:
    return "operator", f"aten::{name}", start, end, more


def node(name: str, start: float, end: float, **more: Any) -> Event:
    return "operator", NODE + name, start, end, more


def make_step(events: list[Event]) -> ProfiledStep:
    maker = TraceMaker()
    for what, name, start, end, details in events:
        if what != "operator":
            maker.annotation(name, start, end - start)
            continue
        kernels, tid = details.get("kernels", ()), details.get("thread", MAIN)
        sequence = details.get("sequence")
        args = {} if sequence is None else {"Sequence number": sequence}
        maker.operator(name, start, end - start, tid, **args)
        for kernel, time in kernels:
            maker.kernel(kernel, 1000, time, launched=start, tid=tid)
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(maker.write(Path(folder, "trace.json")))
    regions = {name for what, name, *_ in events if what == "region"}
    return ProfiledStep(trace=trace, phases=PHASES, regions=regions)


FORWARD = [
    phase("forward", 0, 100),
    region("head", 10, 50),
    operator("linear", 12, 48, sequence=7),
    operator("t", 13, 15, sequence=7),
    operator("mm", 20, 40, sequence=8),
    region("loss", 50, 90),
    # 9 is seen by an operator that makes no node, and used by the one after it.
    operator("to", 52, 53, sequence=9),
    operator("_log_softmax", 60, 80, sequence=9),
]
BACKWARD = [
    phase("backward", 200, 300),
    operator("ones_like", 201, 203),
    node("LogSoftmaxBackward0", 205, 225, sequence=9),
    operator("_log_softmax_backward_data", 206, 224),
    node("MmBackward0", 230, 270, sequence=8),
    operator("mm", 231, 261),
    node("torch::autograd::AccumulateGrad", 270, 280),
    operator("add_", 271, 279),
    node("NeverSeenBackward0", 285, 295, sequence=1),
    operator("mul", 286, 290),
]
OPTIMIZER = [phase("optimizer", 300, 350), operator("_fused_adamw_", 310, 340)]
STEP = [*FORWARD, *BACKWARD, *OPTIMIZER, operator("zero_", 360, 370)]


def as_table(events: list[Event]) -> dict[tuple[str, str, str], float]:
    """In microseconds."""
    found = attribute_step(make_step(events))
    return {
        (one.part, one.region, one.name.removeprefix("aten::")): one.time_ns / 1000 for one in found
    }


def total(breakdown: Breakdown, **wanted: str) -> float:
    """In microseconds."""
    return sum(
        entry.time_ns / 1000
        for entry in breakdown.entries
        if all(getattr(entry, name) == value for name, value in wanted.items())
    )


def test_every_operator_has_its_own_time_in_the_innermost_region() -> None:
    assert as_table(FORWARD) == {
        ("forward", "head", "linear"): 36 - 2 - 20,
        ("forward", "head", "t"): 2,
        ("forward", "head", "mm"): 20,
        ("forward", "loss", "to"): 1,
        ("forward", "loss", "_log_softmax"): 20,
    }


def test_backward_operators_belong_where_their_node_was_made() -> None:
    table = as_table(STEP)
    assert {key: ns for key, ns in table.items() if key[0] != "forward"} == {
        ("backward", "loss", "ones_like"): 2,
        ("backward", "loss", "_log_softmax_backward_data"): 18,
        ("backward", "head", "mm"): 30,
        ("backward", "head", "add_"): 8,  # a gradient is accumulated by the node after its own
        ("backward", "other", "mul"): 4,
        ("optimizer", "optimizer", "_fused_adamw_"): 30,
    }


def test_a_number_of_the_next_region_is_not_the_one_before() -> None:
    events = [
        phase("forward", 0, 100),
        region("norm", 10, 30),
        operator("type_as", 12, 14, sequence=5),
        region("head", 30, 60),
        operator("mm", 32, 50, sequence=5),
        phase("backward", 100, 200),
        node("MmBackward0", 110, 150, sequence=5),
        operator("mm", 111, 149),
    ]
    assert as_table(events)["backward", "head", "mm"] == 38


def test_regions_in_the_backward_pass_are_recomputed() -> None:
    events = [
        *FORWARD,
        phase("backward", 200, 300),
        node("MmBackward0", 210, 290, sequence=8),
        region("feed-forward/up", 211, 251),
        operator("mm", 220, 250),
        operator("mm", 260, 285),
    ]
    table = as_table(events)
    assert table["recomputed", "feed-forward/up", "mm"] == 30
    assert table["backward", "head", "mm"] == 25


def test_kinds_tell_apart_what_is_in_no_region_of_attention() -> None:
    names = ["bmm", "_softmax", "_scaled_dot_product_flash_attention", "mul"]
    events = [phase("forward", 0, 100), region("attention", 0, 100)]
    events += [operator(name, 10 * i, 10 * i + 5) for i, name in enumerate(names, 1)]
    assert [one.region for one in attribute_step(make_step(events))] == [
        "attention/matmuls", "attention/softmax", "attention/fused", "attention"
    ]  # fmt: skip


def test_the_parts_add_up_to_the_steps_without_profiler() -> None:
    plain_ns = {"forward": 50e3, "backward": 80e3, "optimizer": 100e3}
    slow = [*FORWARD, *BACKWARD, phase("optimizer", 300, 400), operator("_fused_adamw_", 310, 390)]
    slowest = [
        *FORWARD, *BACKWARD, phase("optimizer", 300, 900), operator("_fused_adamw_", 310, 320)
    ]  # fmt: skip
    breakdown = make_breakdown([make_step(each) for each in (slowest, slow, STEP)], plain_ns)
    for name, time_ns in plain_ns.items():
        assert total(breakdown, part=name) == pytest.approx(time_ns / 1000)
    assert total(breakdown, part="forward", kind="matmul") == pytest.approx(20 / 2)
    assert total(breakdown, region=BETWEEN, part="forward") == pytest.approx((100 - 57) / 2)
    # 60 % of one step's and 80 % of the other's; the slowest of three was disturbed.
    assert total(breakdown, region="optimizer") == pytest.approx(70.0)
    matmuls = next(one for one in breakdown.operators if one.name == "aten::mm")
    assert matmuls.calls == 2
    assert matmuls.time_ns == pytest.approx(1000 * (20 / 2 + 30 * 0.8))
    assert [one.time_ns for one in breakdown.operators] == sorted(
        (one.time_ns for one in breakdown.operators), reverse=True
    )


def on_gpu() -> ProfiledStep:
    """Operators launch kernels and go on; the backward pass has a thread of its own."""
    gemm, copy = ("gemm", 60.0), ("direct_copy_kernel", 5.0)
    return make_step(
        [
            phase("forward", 0, 30),
            region("head", 1, 20),
            operator("mm", 2, 4, sequence=3, kernels=[gemm, copy]),
            phase("backward", 40, 90),
            node("MmBackward0", 50, 60, sequence=3, thread=2),
            operator("mm", 51, 55, thread=2, kernels=[gemm]),
        ]
    )


def test_on_a_gpu_kernels_count_as_they_are_and_the_rest_is_waiting() -> None:
    breakdown = make_breakdown([on_gpu()], {"forward": 100e3, "backward": 70e3}, by_kernels=True)
    assert total(breakdown, part="forward", region="head") == 65
    assert total(breakdown, part="forward", kind="memory movement") == 5
    assert total(breakdown, part="forward", region=BETWEEN) == 35
    assert total(breakdown, part="backward", region="head", kind="matmul") == 60
    assert total(breakdown, part="backward", region=BETWEEN) == 10
    assert [(one.name, one.calls) for one in breakdown.operators] == [
        ("gemm", 2), ("direct_copy_kernel", 1)
    ]  # fmt: skip


def test_kernels_that_overlap_are_scaled_to_the_time_that_there_is() -> None:
    breakdown = make_breakdown([on_gpu()], {"forward": 100e3, "backward": 40e3}, by_kernels=True)
    assert total(breakdown, part="backward", region="head") == pytest.approx(40)
    assert total(breakdown, part="backward", region=BETWEEN) == pytest.approx(0)


def test_nodes_have_regions_in_the_order_in_which_they_ran() -> None:
    assert list_node_regions(make_step(STEP)) == ["loss", "head", "head", "other"]


def test_kinds_are_those_of_any_trace() -> None:
    found = {one.name: one.kind for one in attribute_step(make_step(STEP))}
    assert found["aten::_log_softmax"] == "loss"
    assert found["aten::_fused_adamw_"] == "optimizer"
    assert found["aten::mm"] == "matmul"
    assert found["aten::t"] == "bookkeeping"
