"""Records in, exact numbers out."""

from __future__ import annotations

import pytest

from flopwatch.analysis.summary import Row, as_dict, summarize
from flopwatch.records.record import Region
from tests.conftest import make_record


def steady(**times_ns: float) -> dict[str, object]:
    """20 equal samples of every phase."""
    return {"samples_ns": {phase: [time_ns] * 20 for phase, time_ns in times_ns.items()}}


def test_a_rate_counts_each_phase_once() -> None:
    """A part of a phase is already counted in it, and dtypes add up."""
    record = make_record(
        **steady(forward=1e6, backward=2e6),
        flops={
            "forward": {"float32": 4e9, "float16": 2e9},
            "backward": {"float32": 6e9},
            "forward/feed-forward": {"float32": 3e9},
        },
    )
    (row,) = summarize([record])
    assert row.flops_per_s == pytest.approx(12e9 / 3e-3)


def compared(own: dict[str, object], baseline: dict[str, object]) -> Row:
    """The row of a variant `b` beside its baseline `a`."""
    records = [make_record(case_id="1", **baseline), make_record(case_id="2", variant="b", **own)]
    first, second = summarize(records)
    assert first.limit is None
    return second


def flops(**counts: float) -> dict[str, object]:
    """Declared FLOPs; a double underscore stands for the slash of a region."""
    return {"flops": {k.replace("__", "/"): {"float32": n} for k, n in counts.items()}}


LAYER = {**steady(forward=1e6, backward=3e6), **flops(forward=10, backward=20)}


@pytest.mark.parametrize(
    ("declared", "limit"),
    [
        (flops(forward=5, backward=10), 2.0),
        (flops(forward=2.5, backward=5), 4.0),
        (flops(forward=5, backward=20), 4 / (0.5 + 3)),
        (flops(forward=5), 4 / (0.5 + 3)),  # unknown: it keeps its time
        (flops(forward=5, backward=0), 4 / (0.5 + 3)),
        (flops(forward=20, backward=40), 0.5),
        (flops(forward=10, backward=20), None),
        ({}, None),
    ],
)
def test_the_limit_of_a_layer_is_its_flops_weighted_by_time(
    declared: dict[str, object], limit: float | None
) -> None:
    assert compared({**steady(forward=1e6, backward=1e6), **declared}, LAYER).limit == limit


@pytest.mark.parametrize(
    ("forward", "backward", "limit"),
    [
        # int8 everywhere, a quarter of the bits
        ({"int8": 10}, {"int8": 20}, 4.0),
        # SwitchBack: one of the backward pass's two matmuls stays in float32
        ({"int8": 10}, {"int8": 10, "float32": 10}, 4 / (1 / 4 + 3 / 1.6)),
        # half of the FLOPs, in half of the bits
        ({"float16": 5}, {"float16": 10}, 4.0),
        ({"float16": 2, "float32": 3}, {"bfloat16": 10}, 4 / (1 / 2.5 + 3 / 4)),
        # wider numbers: it must be slower
        ({"float64": 10}, {"float64": 20}, 0.5),
        # twice the FLOPs in half of the bits
        ({"float16": 20}, {"float16": 40}, None),
        # a name that tells no width
        ({"decimal": 5}, {"decimal": 10}, 2.0),
    ],
)
def test_the_limit_counts_flops_by_their_width(
    forward: dict[str, float], backward: dict[str, float], limit: float | None
) -> None:
    own = {**LAYER, "flops": {"forward": forward, "backward": backward}}
    assert compared(own, LAYER).limit == (None if limit is None else pytest.approx(limit))


def test_the_limit_of_switchback_is_2_where_backward_takes_twice_the_time() -> None:
    dense = {**LAYER, **steady(forward=1e6, backward=2e6)}
    halves = {"forward": {"int8": 10}, "backward": {"int8": 10, "float32": 10}}
    assert compared({**dense, "flops": halves}, dense).limit == pytest.approx(2.0)


def test_the_same_narrow_type_on_both_sides_is_no_advantage() -> None:
    narrow = {**LAYER, "flops": {"forward": {"int8": 10}, "backward": {"int8": 20}}}
    assert compared(narrow, narrow).limit is None


def test_the_limit_of_an_unmeasured_variant_or_beside_an_unmeasured_baseline_is_unknown() -> None:
    fewer = flops(forward=5, backward=10)
    empty: dict[str, object] = {"samples_ns": {}, "rounds": [], "calls_per_sample": []}
    assert compared({**fewer, **empty, "status": "oom"}, LAYER).limit is None
    assert compared({**LAYER, **fewer}, {**LAYER, **empty}).limit is None


def inside(whole_ns: float, **times_ns: float) -> dict[str, object]:
    """20 instrumented runs; a region has two calls."""
    regions = {
        k.replace("__", "/"): Region(calls=2, samples_ns=[t] * 20) for k, t in times_ns.items()
    }
    return {"instrumented_ns": [whole_ns] * 20, "regions": regions}


# A third of the time and 60 % of the FLOPs of each pass are in the regions; instruments double
# the time of everything.
MODEL = {
    **steady(forward=12e6, backward=24e6, optimizer=4e6),
    **inside(80e6, forward__ffn=8e6, backward__ffn=16e6),
    **flops(forward=10, forward__ffn=6, backward=20, backward__ffn=12, optimizer=1),
}


@pytest.mark.parametrize(
    ("declared", "limit"),
    [
        # 4 + 8 ms of regions at half the FLOPs; 8 + 16 + 4 ms as before
        (flops(forward=7, forward__ffn=3, backward=14, backward__ffn=6, optimizer=1), 40 / 34),
        # the optimiser too
        (flops(forward=7, forward__ffn=3, backward=14, backward__ffn=6, optimizer=0.5), 40 / 32),
        # the region is the same, what is around it halves
        (flops(forward=8, forward__ffn=6, backward=20, backward__ffn=12), 40 / 36),
        # an undeclared region keeps its time; its FLOPs count in what is around it
        (flops(forward=5, backward=20, backward__ffn=12), 40 / (40 - 8 / 2)),
        (flops(forward=10, forward__ffn=6, backward=20, backward__ffn=12), None),
    ],
)
def test_the_limit_of_a_model_is_amdahls(declared: dict[str, object], limit: float) -> None:
    assert compared({**MODEL, **declared}, MODEL).limit == pytest.approx(limit)


def test_regions_longer_than_their_phase_fill_it() -> None:
    instrumented = inside(40e6, forward__ffn=20e6, forward__rest=20e6)
    baseline = {**MODEL, **instrumented, **flops(forward=8, forward__ffn=4, forward__rest=4)}
    own = {**baseline, **flops(forward=6, forward__ffn=2, forward__rest=4)}
    assert compared(own, baseline).limit == pytest.approx(40 / (40 - 6 / 2))


def test_the_limit_without_instruments_takes_phases_as_a_whole() -> None:
    plain = {**MODEL, "instrumented_ns": [], "regions": {}}
    own = {**plain, **flops(forward=5, forward__ffn=1, backward=20, backward__ffn=12)}
    assert compared(own, plain).limit == pytest.approx(40 / (40 - 12 / 2))


def test_conditions_that_differ_from_the_baseline_are_told() -> None:
    baseline = {"conditions": {"autocast": "off", "dtype": "float32", "kernel": "mkl"}}
    own = {"conditions": {"autocast": "float16", "dtype": "float32", "tf32": "on"}}
    row = compared(own, baseline)
    assert row.differences == {
        "autocast": ("off", "float16"),
        "kernel": ("mkl", None),
        "tf32": (None, "on"),
    }
    assert as_dict(row)["differences"]["autocast"] == {"baseline": "off", "own": "float16"}
    assert compared(baseline, baseline).differences == {}
    assert compared({**own, "run_id": "another"}, baseline).differences == {}


def test_a_speedup_is_over_the_baseline_that_the_record_names() -> None:
    named = make_record(case_id="2", variant="b", baseline="x", **steady(call=5.0))
    records = [make_record(case_id="1"), named]
    assert [row.speedup for row in summarize(records)] == [None, None]
    own = make_record(case_id="3", variant="x", baseline="x", **steady(call=10.0))
    by_variant = {row.record.variant: row for row in summarize([*records, own])}
    assert by_variant["b"].against is own
