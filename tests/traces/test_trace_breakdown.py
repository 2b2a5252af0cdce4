"""Traces made by hand, of which every microsecond is known, and what is true of any."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch.traces.explained_trace import ExplainedTrace, explain_trace
from flopwatch.traces.operation_kinds import KINDS, NOT_COMPUTING
from flopwatch.traces.trace_breakdown import Breakdown
from tests.traces.trace_maker import (
    BACKWARD_THREAD,
    NODE,
    STEP_ROWS_US,
    TraceMaker,
    make_training_step,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def read_us(one: Breakdown) -> dict[str, float]:
    return {kind: time / 1000 for kind, time in one.rows.items()}


def assert_exact(found: ExplainedTrace) -> None:
    for one in (*found.steps, found.whole, found.total):
        assert sum(one.rows.values()) == one.total_ns
        assert all(time > 0 for time in one.rows.values())
        assert 0 <= one.overlapped_ns <= one.computing_ns


def test_every_microsecond_of_a_step_is_in_its_row(path: Path) -> None:
    maker = TraceMaker()
    make_training_step(maker)
    found = explain_trace(maker.write(path))
    (step,) = found.steps
    assert read_us(step) == STEP_ROWS_US
    assert (step.name, step.total_ns, step.overlapped_ns) == ("step 1", 100_000, 5_000)
    assert step.communication_ns == 15_000
    assert_exact(found)
    # The whole is from the first kernel to the last: data and the end are not in it.
    assert (found.whole.start_ns, found.whole.total_ns) == (12_000, 69_000)


def test_several_steps_are_alike_and_average_to_one(path: Path) -> None:
    maker = TraceMaker()
    for number in range(4):
        make_training_step(maker, 100.0 * number, number + 7)
    found = explain_trace(maker.write(path))
    assert [step.name for step in found.steps] == ["step 7", "step 8", "step 9", "step 10"]
    assert all(read_us(step) == STEP_ROWS_US for step in found.steps)
    assert found.mean_rows_ns == {kind: 1000 * time for kind, time in STEP_ROWS_US.items()}
    assert found.step_ns == 100_000


def test_without_steps_the_whole_is_one(path: Path) -> None:
    maker = TraceMaker()
    make_training_step(maker, number=None)
    found = explain_trace(maker.write(path))
    assert found.steps == []
    assert found.total == found.whole
    assert "no steps are marked" in found.remarks[0]
    assert_exact(found)


def test_a_device_that_is_behind_ends_a_step_when_its_work_ends(path: Path) -> None:
    """The host launches two steps within 20 us, the device works for 100 on each."""
    maker = TraceMaker()
    for number in range(2):
        maker.step(number, 10 * number, 10)
        maker.kernel("gemm", 5 + 100 * number, 100, launched=10 * number + 2)
    found = explain_trace(maker.write(path))
    assert [(step.start_ns, step.total_ns) for step in found.steps] == [
        (0, 105000),
        (105000, 100000),
    ]
    assert read_us(found.steps[0]) == {"matmul": 100, "launch gaps": 3, "idle": 2}
    assert read_us(found.steps[1]) == {"matmul": 100}


def test_work_from_before_the_trace_is_in_no_step(path: Path) -> None:
    maker = TraceMaker()
    maker.kernel("gemm", 0, 50)  # its launch was not recorded
    maker.step(1, 10, 90)
    maker.kernel("gemm", 60, 30, launched=55)
    found = explain_trace(maker.write(path))
    assert read_us(found.steps[0]) == {"matmul": 30, "launch gaps": 50 - 30 - 4, "idle": 4}
    assert found.steps[0].start_ns == 50_000
    assert "56 % of the whole trace lie outside of its steps" in found.remarks[0]
    assert_exact(found)


def test_where_several_kernels_run_the_first_kind_counts(path: Path) -> None:
    maker = TraceMaker()
    maker.kernel("elementwise_kernel", 0, 10, launched=0, stream=1)
    maker.kernel("gemm", 5, 10, launched=0, stream=2)
    maker.kernel("ncclDevKernel_AllReduce", 2, 20, launched=0, stream=3)
    maker.copy("Memcpy HtoD", 0, 30, launched=0, stream=4)
    found = explain_trace(maker.write(path))
    assert read_us(found.whole) == {
        "matmul": 10, "element-wise": 5, "communication": 7, "memory copies": 8
    }  # fmt: skip
    assert found.whole.overlapped_ns == 13_000


def test_kernels_of_a_cuda_graph_are_known_by_their_names(path: Path) -> None:
    """All have the correlation of the one call that launched the graph."""
    maker = TraceMaker()
    maker.operator("mine::replay", 0, 5)
    number = maker.kernel("gemm", 10, 5, launched=1)
    for name, start in (("flash_fwd_kernel", 20), ("multi_tensor_apply_kernel<FusedAdam>", 30)):
        maker.kernel(name, start, 5, correlation=number)
    found = explain_trace(maker.write(path))
    # What is between kernels of a graph was queued.
    assert read_us(found.whole) == {"matmul": 5, "attention": 5, "optimizer": 5, "idle": 10}


def test_backward_kernels_have_the_scope_of_what_made_them(path: Path) -> None:
    maker = TraceMaker()
    maker.module("LlamaRMSNorm_0", 0, 10)
    maker.operator("aten::mul", 1, 5, **{"Sequence number": 5})
    maker.kernel("elementwise_kernel", 10, 4, launched=2)
    maker.operator("aten::mul", 11, 5, **{"Sequence number": 6})
    maker.kernel("elementwise_kernel", 14, 2, launched=12)
    for number, start in ((6, 20), (5, 30)):
        more = {"tid": BACKWARD_THREAD, "Sequence number": number}
        maker.operator(f"{NODE}MulBackward0", start, 9, **more)
        maker.operator("MulBackward0", start, 5, **more)
        maker.operator("aten::mul", start + 1, 3, BACKWARD_THREAD)
        maker.kernel("elementwise_kernel", start + 3, 1, launched=start + 1, tid=BACKWARD_THREAD)
        # Gradients are added up outside of the function, of whatever used the tensor.
        maker.operator("aten::add_", start + 6, 2, BACKWARD_THREAD)
        maker.kernel("elementwise_kernel", start + 8, 1, launched=start + 6, tid=BACKWARD_THREAD)
    rows = read_us(explain_trace(maker.write(path)).whole)
    assert (rows["norm"], rows["element-wise"]) == (5, 5)


def test_launches_count_by_the_external_id_where_no_call_is_recorded(path: Path) -> None:
    maker = TraceMaker()
    maker.operator("aten::layer_norm", 0, 5, **{"External id": 77})
    maker.kernel("unknown_kernel", 10, 5)
    maker.events[-1]["args"] = {"External id": 77}
    found = explain_trace(maker.write(path))
    assert read_us(found.whole) == {"norm": 5}
    assert found.kernels[0].operator == "aten::layer_norm"


def test_of_several_devices_the_busiest_counts(path: Path) -> None:
    maker = TraceMaker()
    maker.kernel("gemm", 0, 5, launched=0, device=0)
    maker.kernel("gemm", 0, 9, launched=0, device=1)
    found = explain_trace(maker.write(path))
    assert found.whole.total_ns == 9000
    assert "work of 2 devices; this is device 1, the busiest" in found.remarks[0]


def test_without_any_host_a_device_is_idle(path: Path) -> None:
    maker = TraceMaker()
    maker.kernel("gemm", 0, 5)
    maker.kernel("gemm", 8, 5)
    assert read_us(explain_trace(maker.write(path)).whole) == {"matmul": 10, "idle": 3}


def test_on_a_host_operators_count_by_their_own_time(path: Path) -> None:
    maker = TraceMaker(device=None)
    maker.step(3, 0, 100)
    maker.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20)
    maker.operator("aten::stack", 5, 10)
    maker.operator("aten::linear", 20, 30)
    maker.operator("aten::addmm", 25, 20)
    maker.operator("aten::cross_entropy_loss", 55, 10)
    maker.operator("aten::_log_softmax", 56, 5)
    maker.annotation("Optimizer.step#SGD.step", 70, 20)
    maker.operator("aten::_foreach_add_", 75, 5)
    # Another thread, at the same time as linear and as nothing.
    maker.operator("gloo:all_reduce", 40, 14, tid=BACKWARD_THREAD)
    found = explain_trace(maker.write(path))
    assert read_us(found.steps[0]) == {
        "waiting for data": 20,
        "bookkeeping": 5 + 5,
        "matmul": 20,
        "communication": 4,
        "loss": 10,
        "optimizer": 5,
        "between operations": 1 + 5 + 20 + 5,
    }
    assert found.steps[0].overlapped_ns == 10_000
    assert [(use.name, use.time_ns) for use in found.kernels[:2]] == [
        ("aten::addmm", 20_000), ("gloo:all_reduce", 14_000)
    ]  # fmt: skip
    assert_exact(found)


def test_a_recorded_training_has_all_its_parts(recorded: Path) -> None:
    found = explain_trace(recorded)
    assert len(found.steps) == 3
    assert_exact(found)
    assert {"matmul", "norm", "loss", "optimizer", "element-wise", "between operations",
            "waiting for data"} <= set(found.total.rows)  # fmt: skip
    products = next(use for use in found.kernels if use.name == "aten::addmm")
    assert products.calls == 2 * 3
    assert products.flops == 3 * 2 * 16 * (32 * 64 + 64 * 10)
    assert products.arithmetic == "float32"


NAMES = ["gemm", "flash_fwd_kernel", "elementwise_kernel", "ncclDevKernel_AllReduce", "mystery"]
EVENT = st.tuples(
    st.integers(0, len(NAMES)),  # the last is a copy
    st.integers(0, 60),
    st.integers(0, 20),
    st.one_of(st.none(), st.integers(0, 60)),
    st.integers(1, 3),
)
HOST_EVENT = st.tuples(
    st.sampled_from(["aten::mm", "aten::view", "aten::layer_norm", "my mark", "MulBackward0",
                     "enumerate(DataLoader)#x", "Optimizer.step#x", "ProfilerStep#1",
                     "ProfilerStep#2", f"{NODE}x"]),
    st.integers(0, 60),
    st.integers(0, 30),
    st.integers(1, 2),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(work=st.lists(EVENT, min_size=1, max_size=25), host=st.lists(HOST_EVENT, max_size=15))
def test_rows_add_up_whatever_overlaps(
    tmp_path_factory: pytest.TempPathFactory,
    work: list[tuple[int, int, int, int | None, int]],
    host: list[tuple[str, int, int, int]],
) -> None:
    maker = make_any(work, host)
    if not any(dur for _, _, dur, _, _ in work):
        return
    found = explain_trace(maker.write(tmp_path_factory.getbasetemp() / "any.json"))
    assert_exact(found)
    # Every microsecond of the whole, one by one.
    for kind, time in count_slowly(work, found.whole).items():
        assert found.whole.rows.get(kind, 0) == 1000 * time, kind  # type: ignore[call-overload]


def make_any(
    work: list[tuple[int, int, int, int | None, int]], host: list[tuple[str, int, int, int]]
) -> TraceMaker:
    maker = TraceMaker()
    for name, start, dur, tid in host:
        make = maker.operator if "::" in name or "Backward" in name else maker.annotation
        make(name, start, dur, tid)
    for which, start, dur, launched, stream in work:
        if which == len(NAMES):
            maker.copy("Memcpy DtoD", start, dur, launched=launched, stream=stream, tid=1)
        else:
            maker.kernel(NAMES[which], start, dur, launched=launched, stream=stream, tid=1)
    return maker


def count_slowly(
    work: list[tuple[int, int, int, int | None, int]], whole: Breakdown
) -> dict[str, int]:
    """Computing, communication and copies, by what runs at every microsecond."""
    counts = {"communication": 0, "memory copies": 0}
    start, end = whole.start_ns // 1000, (whole.start_ns + whole.total_ns) // 1000
    for moment in range(start, end):
        running = {which for which, begun, dur, _, _ in work if begun <= moment < begun + dur}
        if running == {len(NAMES)}:
            counts["memory copies"] += 1
        elif running and running <= {len(NAMES), NAMES.index("ncclDevKernel_AllReduce")}:
            counts["communication"] += 1
    return counts


@settings(max_examples=100, deadline=None)
@given(host=st.lists(HOST_EVENT, min_size=1, max_size=25))
def test_rows_of_a_host_add_up_whatever_overlaps(
    tmp_path_factory: pytest.TempPathFactory, host: list[tuple[str, int, int, int]]
) -> None:
    if not any(dur for _, _, dur, _ in host):
        return
    path = tmp_path_factory.getbasetemp() / "host.json"
    found = explain_trace(make_any([], host).write(path))
    assert_exact(found)
    assert set(found.whole.rows) <= set(KINDS)
    assert not {"launch gaps", "idle"} & set(found.whole.rows)
    assert "idle" in NOT_COMPUTING
