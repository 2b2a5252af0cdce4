"""What the machine can do at best: how it is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from flopwatch.devices import best_times, matmul_rates
from flopwatch.devices import peak_measurement as engine
from flopwatch.devices.best_times import BLOCK_NS, Trial, run_rounds, sustain
from flopwatch.devices.cpu import CpuBackend
from flopwatch.devices.measured_peaks import BUS_PASSES, Exchange
from tests.conftest import FakeClock
from tests.devices.test_measured_peaks import make_peaks
from tests.rank_tools import run_on_ranks

TINY = engine.Effort(alone_s=0, exchanges_s=0.3, longest_ns=1e12, caches_spanned=8, step=4)


def make_trial(clock: FakeClock, times_ns: Iterator[float], work: float = 1.0) -> Trial:
    return Trial(work=work, prepare=lambda: lambda: clock.spend(next(times_ns)), clock=clock)


def test_the_best_sample_of_a_turn_counts(clock: FakeClock) -> None:
    times = iter([9e6, 9e6, 30e6, 4e6, 20e6, 40e6])
    trial = make_trial(clock, times, work=8e6)
    trial.begin()
    assert trial.blocks_ns == [9e6, 4e6]
    assert next(times) == 40e6, "a block ends once it has lasted long enough"
    assert trial.rate_per_s == pytest.approx(2e9)


def test_short_runs_are_looped_and_long_ones_are_not(clock: FakeClock) -> None:
    runs = []
    short = Trial(work=1.0, prepare=lambda: lambda: (runs.append(1), clock.spend(1e3)), clock=clock)
    marks = []
    clock_mark = clock.mark
    clock.mark = lambda: (marks.append(1), clock_mark())[1]  # type: ignore[method-assign]
    short.begin()
    assert len(runs) == 2 + BLOCK_NS / 1e3
    assert len(marks) == 2 * (1 + BLOCK_NS / 0.2e6)
    long = make_trial(clock, iter([3 * BLOCK_NS] * 3))
    long.begin()
    assert long.blocks_ns == [3 * BLOCK_NS] * 2


def test_what_is_sustained_is_the_slowest_second_under_load(clock: FakeClock) -> None:
    """A device that boosts for 1.5 s, then lowers its clock, and is disturbed for a moment."""

    def spend() -> None:
        start_s = clock.now_s()
        slow = 1.0 if start_s < 1.5 else 1.25
        clock.spend(1e6 * (2 * slow if 3.0 <= start_s < 3.05 else slow))

    trial = Trial(work=1e9, prepare=lambda: spend, clock=clock)
    trial.begin()
    assert trial.best_ns == 1e6
    assert sustain(trial, load_s=2, seconds=3) == pytest.approx(1.25e6, rel=0.06)
    assert 5 <= clock.now_s() < 6
    assert trial.best_ns == 1e6, "the burst is kept"


def test_a_second_is_measured_even_where_less_is_asked_for(clock: FakeClock) -> None:
    trial = make_trial(clock, iter([0.3e9] * 20))
    trial.begin()
    before_s = clock.now_s()
    assert sustain(trial, load_s=0, seconds=0) == 0.3e9
    assert clock.now_s() - before_s == pytest.approx(5 * 0.3)


def test_operations_take_turns_until_the_time_is_spent_and_the_best_was_repeated(
    clock: FakeClock,
) -> None:
    order: list[str] = []

    def start(name: str, *times_ns: float) -> Trial:
        left = iter(times_ns)

        def prepare() -> Any:
            order.append(name)
            return lambda: clock.spend(next(left))

        return Trial(work=1.0, prepare=prepare, clock=clock, blocks_ns=[1e9])

    steady = start("steady", *[1e8] * 9)
    lucky = start("lucky", 2e8, 1e8, 3e8, 2e8, 2e8, 1.01e8, 9e9)
    run_rounds(lambda: [[steady], [lucky]], 0.7, now_s=clock.now_s)
    assert [sorted(order[i : i + 2]) for i in range(0, len(order), 2)] == [["lucky", "steady"]] * 5
    assert lucky.repeats == 1, "its second-best came too late: patience is limited"
    assert steady.repeats == 5

    order.clear()
    again = start("again", *[1e8] * 9)
    run_rounds(lambda: [[again]], 0.25, now_s=clock.now_s)
    assert order == ["again"] * 3


def test_groups_may_grow_from_round_to_round(clock: FakeClock) -> None:
    trials = [make_trial(clock, iter([1e8] * 9)) for _ in range(3)]
    for trial in trials:
        trial.blocks_ns = [1e8]
    rounds = iter([1, 2, 3, 3])
    run_rounds(lambda: [[], trials[: next(rounds)]], 0.55, now_s=clock.now_s)
    assert [len(trial.blocks_ns) for trial in trials] == [4, 3, 2]


def test_shapes_grow_until_the_next_would_take_too_long(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a disturbed moment had made it look so."""
    monkeypatch.setattr(matmul_rates, "open_backend", lambda device: clock)
    shapes = [(2, 2, 2), (4, 2, 2), (4, 4, 4), (8, 8, 8)]
    monkeypatch.setattr(matmul_rates, "SHAPES", shapes)
    slowness = 1e8  # ns for a FLOP

    def bind(torch: Any, a: Any, b: Any, out: Any) -> Any:
        flops = 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return lambda: clock.spend(flops * slowness)

    arithmetic = matmul_rates.Arithmetic(dtype="float32", result_dtype="float32", bind=bind)
    sweep = matmul_rates.MatmulSweep(arithmetic, "cpu", longest_ns=128e6)
    assert len(sweep.extend()) == 1
    slowness = 1e6
    assert len(sweep.extend()) == 1, "nothing has been learnt yet"
    for trial in sweep.trials.values():
        trial.run_block()
    assert list(sweep.trials) == shapes[:1]
    assert len(sweep.extend()) == 3
    assert list(sweep.trials) == shapes[:3]


def test_what_torch_refuses_has_a_reason_and_ends_the_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matmul_rates, "SHAPES", [(2, 2, 2), (4, 4, 4), (8, 8, 8)])

    def bind(torch: Any, a: Any, b: Any, out: Any) -> Any:
        if len(a) > 2:
            raise RuntimeError("no such kernel")
        return lambda: torch.mm(a, b, out=out)

    made = matmul_rates.Arithmetic(dtype="float32", result_dtype="float32", bind=bind)
    none = matmul_rates.Arithmetic(dtype="float3", result_dtype="float32")
    sweeps = {
        name: matmul_rates.MatmulSweep(arithmetic, "cpu", longest_ns=1e12)
        for name, arithmetic in {"some": made, "none": none}.items()
    }
    assert [len(sweep.extend()) for sweep in sweeps.values()] == [1, 0]
    some, nothing = matmul_rates.list_curves(sweeps)
    assert [point.shape for point in some.points] == ["2x2x2"]
    assert some.reason is None
    assert nothing.best is None
    assert nothing.reason is not None
    assert "float3" in nothing.reason


# That what is timed is what is said


@pytest.mark.parametrize("name", list(matmul_rates.ARITHMETIC))
def test_a_product_is_that_of_a_linear_layer(name: str) -> None:
    arithmetic = matmul_rates.ARITHMETIC[name]
    operands = matmul_rates.Operands(arithmetic, "cpu")
    precision = torch.get_float32_matmul_precision()
    try:
        for shape in ((32, 16, 48), (16, 64, 16)):
            operands.grow(shape)
        for rows, inner, columns in ((32, 16, 48), (16, 64, 16)):
            made = operands.bind((rows, inner, columns))().double()
            flat = {key: value.double() for key, value in operands._flat.items()}
            x = flat["inputs"][: rows * inner].view(rows, inner)
            weight = flat["weight"][: columns * inner].view(columns, inner)
            assert x.std() > 0.5
            assert (made - x @ weight.t()).abs().max() <= 0.02 * (x @ weight.t()).abs().max()
    finally:
        torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize(("device", "is_fast"), [("cpu", False), ("cuda", True), ("npu", True)])
def test_float8_sums_are_fast_on_an_accelerator(device: str, is_fast: bool) -> None:
    asked: dict[str, Any] = {}
    fake = SimpleNamespace(
        ones=lambda *shape, device: 1.0, _scaled_mm=lambda *given, **options: asked.update(options)
    )
    a = SimpleNamespace(device=SimpleNamespace(type=device))
    matmul_rates.ARITHMETIC["float8"].bind(fake, a, None, SimpleNamespace(dtype="bfloat16"))()
    assert asked.get("use_fast_accum", False) is is_fast


def test_an_mi300_has_the_other_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(arch: str, hip: str | None, device: str = "cuda") -> str:
        monkeypatch.setattr(torch.version, "hip", hip)
        properties = SimpleNamespace(gcnArchName=arch)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
        return matmul_rates.find_arithmetic("float8", device).dtype

    assert find("gfx942:sramecc+:xnack-", "6.4") == "float8_e4m3fnuz"
    assert find("gfx950", "7.0") == find("", None) == find("gfx942", "6.4", "cpu")
    assert find("gfx950", "7.0") == "float8_e4m3fn"
    assert matmul_rates.find_arithmetic("bfloat16", "cuda").dtype == "bfloat16"


def test_passes_over_memory_do_what_they_say() -> None:
    arrays = [torch.rand(60), torch.rand(30), torch.rand(20)]
    a, b, _ = (array.clone() for array in arrays)
    total = engine.KERNELS["read"](torch, arrays, 60)()
    assert total == pytest.approx(a.sum().item(), rel=1e-5)
    engine.KERNELS["triad"](torch, arrays, 60)()
    assert torch.allclose(arrays[2], a[:20] + 3 * b[:20])
    engine.KERNELS["copy"](torch, arrays, 60)()
    assert torch.equal(arrays[1], a[:30])


def test_a_measurement_has_all_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls and memory are interleaved in the same rounds."""
    monkeypatch.setattr(CpuBackend, "find_cache_bytes", lambda backend: 2**18)
    monkeypatch.setattr(matmul_rates, "SHAPES", [(4, 4, 4), (8, 4, 8)])
    monkeypatch.setattr(engine, "EFFORTS", {"quick": TINY})
    monkeypatch.setattr(best_times, "BLOCK_NS", 1e5)
    found = engine.measure("cpu", ["float32", "int8"], "quick")
    assert [(c.dtype, [p.shape for p in c.points]) for c in found["matmuls"]] == [
        ("float32", ["4x4x4", "8x4x8"]),
        ("int8", ["4x4x4", "8x4x8"]),
    ]
    assert {p.blocks for curve in found["matmuls"] for p in curve.points} == {3}
    assert [(s.kernel, s.size_bytes) for s in found["streams"]] == [
        (kernel, size) for kernel in ("read", "copy", "triad") for size in (2**19, 2**21)
    ]
    whole = make_peaks(streams=found["streams"], cache_bytes=found["cache_bytes"])
    for kernel in ("read", "copy", "triad"):
        best = whole.find_bandwidth(kernel)
        assert best is not None
        assert best.size_bytes == 2**21, "far beyond the caches"
        assert 1e6 < best.bytes_per_s < 1e13
    assert 0 <= found["background_share"] < 1.2  # the system counts in steps of 10 ms
    assert found["torch"]["threads"] == torch.get_num_threads()


def test_an_accelerator_also_shows_what_it_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the CPU stands in for one."""
    monkeypatch.setattr(CpuBackend, "find_cache_bytes", lambda backend: 2**18)
    monkeypatch.setattr(matmul_rates, "SHAPES", [(4, 4, 4), (8, 4, 8)])
    monkeypatch.setattr(best_times, "BLOCK_NS", 1e5)
    monkeypatch.setattr(best_times, "WINDOW_NS", 1e5)
    effort = replace(TINY, load_s=0, sustained_s=0.001)
    monkeypatch.setattr(engine, "EFFORTS", {"quick": effort})
    (on_host,) = engine.measure("cpu", ["float32"], "quick")["matmuls"]
    assert on_host.sustained_flops_per_s is None
    monkeypatch.setattr(engine, "is_host", lambda device: False)
    no_such = matmul_rates.Arithmetic(dtype="float3", result_dtype="float32")
    monkeypatch.setitem(matmul_rates.ARITHMETIC, "float3", no_such)
    (curve, none) = engine.measure("cpu", ["float32", "float3"], "quick")["matmuls"]
    assert curve.best is not None
    assert 0 < curve.sustained_flops_per_s <= curve.best.flops_per_s * 1.5
    assert none.sustained_flops_per_s is None


def test_where_memory_is_short_there_is_no_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "count_free_bytes", lambda backend: 2**21)
    streams = engine.list_streams(engine.begin_passes("cpu", 2**18, TINY))
    assert [stream.size_bytes for stream in streams] == 3 * [2**19]
    assert make_peaks(streams=streams, cache_bytes=2**18).find_bandwidth("copy") is None


def test_a_best_within_the_caches_does_not_hide_one_beyond(clock: FakeClock) -> None:
    sizes = (2**18, 2**19, 2**20, 2**21)
    passes = {("copy", size): make_trial(clock, iter([])) for size in sizes}
    near, far = engine.group_passes(passes, 2**18)
    assert (near, far) == ([*passes.values()][:2], [*passes.values()][2:])


def measure_tiny_collectives() -> Any:
    engine.LARGEST_MESSAGE_BYTES = 3 * 2**16 + 4
    engine.EFFORTS["quick"] = TINY
    best_times.BLOCK_NS = 1e6
    return msgspec.to_builtins(engine.measure_collectives("cpu", "quick"))


def measure_large_collectives(longest_ns: float) -> Any:
    """As on an accelerator, whose second device has less memory left."""
    rank = torch.distributed.get_rank()
    engine.is_host = lambda device: False  # type: ignore[assignment]
    engine.LARGEST_MESSAGE_BYTES, engine.LARGEST_OF_ACCELERATORS_BYTES = 2**16, 2**22
    engine.EFFORTS["quick"] = replace(TINY, longest_ns=longest_ns)
    best_times.BLOCK_NS = 1e6
    CpuBackend.count_free_bytes = lambda backend: 2**23 if rank else 2**30  # type: ignore[method-assign]
    return msgspec.to_builtins(engine.measure_collectives("cpu", "quick"))


@pytest.mark.parametrize(("longest_ns", "largest"), [(1e12, 2**21), (0.0, 2**13)])
def test_collectives_of_accelerators_go_on_to_larger_messages(
    longest_ns: float, largest: int
) -> None:
    """All ranks as far as the one with the least memory can, and not where it takes too long."""
    first, second = run_on_ranks(2, measure_large_collectives, longest_ns)
    assert first == second
    exchanges = msgspec.convert(first, list[Exchange])
    assert {e.operation for e in exchanges} == {*BUS_PASSES}
    for operation in BUS_PASSES:
        sizes = [e.size_bytes for e in exchanges if e.operation == operation]
        assert max(sizes) == largest


def test_a_link_is_filled() -> None:
    assert engine.LARGEST_OF_ACCELERATORS_BYTES == 2**30


def test_collectives_over_two_ranks() -> None:
    """Both ranks must make the same calls, or they wait for each other for ever."""
    told = run_on_ranks(2, measure_tiny_collectives)
    assert told[0] == told[1], "a time is that of the slowest rank"
    exchanges = msgspec.convert(told[0], list[Exchange])
    assert [e.size_bytes for e in exchanges] == 5 * [12288, 196608]
    assert {e.operation for e in exchanges} == {*BUS_PASSES}
    assert all((e.ranks, e.backend) == (2, "gloo") and e.time_ns > 1000 for e in exchanges)
