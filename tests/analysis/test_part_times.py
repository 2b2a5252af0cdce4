"""What instruments saw, from hand-made records: exact numbers, exact tables."""
# ruff: noqa: E501  (golden tables)

from __future__ import annotations

import io
import textwrap

import pytest
from rich.console import Console

from flopwatch.analysis.part_times import estimate_instruments, look_inside
from flopwatch.analysis.summary import as_dict, summarize
from flopwatch.output.case_tables import make_sheets
from flopwatch.output.console import draw, fit
from flopwatch.records.record import Record, Region
from tests.conftest import make_record

ROUNDS = list(range(30))


def instrumented(
    variant: str, plain_ns: float, ffn_ns: float, *, cost: float = 1.0, **changes: object
) -> Record:
    """30 samples, 10 of them warm-up, that scatter with the round."""
    drift = [1 + 0.01 * ((7 * round_) % 5) for round_ in ROUNDS]
    whole = [plain_ns * d * cost for d in drift[10:]]
    content: dict[str, object] = {
        "case_id": variant,
        "variant": variant,
        "baseline": "dense",
        "samples_ns": {"forward": [plain_ns * d for d in drift]},
        "rounds": ROUNDS,
        "calls_per_sample": [1] * 30,
        "warmup_samples": 10,
        "instrumented_ns": whole,
        "regions": {"forward/ffn": Region(calls=8, samples_ns=[ffn_ns * d for d in drift[10:]])},
        "flops": {"forward": {"float32": 10.0}, "forward/ffn": {"float32": 5.0}},
    }
    return make_record(**{**content, **changes})


DENSE = instrumented("dense", 10e6, 4e6)
HALF = {"flops": {"forward": {"float32": 7.5}, "forward/ffn": {"float32": 2.5}}}
FAST = instrumented("fast", 8e6, 2.5e6, cost=1.25, **HALF)


def test_a_region_is_told_by_call_share_speedup_and_limit() -> None:
    inside = look_inside(FAST, DENSE)["forward/ffn"]
    assert inside.calls == 8
    assert inside.call_ns.value == pytest.approx(2.5e6 * 1.02 / 8)
    assert inside.share.value == pytest.approx(2.5 / 10)
    assert inside.speedup is not None
    assert inside.speedup.value == pytest.approx(1.6)
    assert inside.speedup.low == pytest.approx(1.6)  # what scatters with the round cancels
    assert inside.verdict == "faster"
    assert inside.limit == 2.0


def test_a_baseline_has_no_speedup_and_what_the_baseline_lacks_neither() -> None:
    assert look_inside(DENSE, None)["forward/ffn"].speedup is None
    bare = instrumented("dense", 10e6, 4e6, regions={})
    inside = look_inside(FAST, bare)["forward/ffn"]
    assert (inside.speedup, inside.verdict) == (None, None)


def test_regions_pair_by_round_where_one_was_cut_off() -> None:
    """The baseline lost rounds of its own and the variant's last instrumented runs."""
    rounds = [r for r in range(40) if r % 4]  # 1, 2, 3, 5, ...
    times = [1e6 * (1 + r) for r in rounds]
    sparse = instrumented(
        "dense", 10e6, 4e6, rounds=rounds, instrumented_ns=[9e9] * 20,
        regions={"forward/ffn": Region(calls=8, samples_ns=times[10:])},
    )  # fmt: skip
    cut = instrumented(
        "fast", 8e6, 1.0, instrumented_ns=[9e9] * 8,
        regions={"forward/ffn": Region(calls=8, samples_ns=[0.5e6 * (1 + r) for r in range(10, 18)])},
    )  # fmt: skip
    speedup = look_inside(cut, sparse)["forward/ffn"].speedup
    assert speedup is not None
    assert speedup.value == pytest.approx(2.0)
    assert speedup.samples == 3  # rounds 14, 15 and 17
    assert estimate_instruments([cut]) is not None


def test_no_instrumented_run_no_region() -> None:
    empty = Region(calls=8, samples_ns=[])
    record = instrumented("dense", 1e6, 1e6, instrumented_ns=[], regions={"forward/ffn": empty})
    (row,) = summarize([record])
    assert row.regions == {}
    assert estimate_instruments([record]) is None
    assert len(make_sheets([row])) == 1


def test_a_region_too_short_for_the_clock_is_no_error() -> None:
    silent = {"forward/ffn": Region(calls=8, samples_ns=[0.0] * 20)}
    inside = look_inside(instrumented("fast", 8e6, 1.0, regions=silent), DENSE)["forward/ffn"]
    assert inside.call_ns.value == 0
    assert inside.speedup is None


def test_instruments_cost_the_mean_over_the_variants_of_a_round() -> None:
    alone, both = estimate_instruments([FAST]), estimate_instruments([DENSE, FAST])
    assert alone is not None
    assert alone.value == pytest.approx(1.25)
    assert both is not None
    assert both.value == pytest.approx(1.125)
    assert both.samples == 20


def test_regions_are_in_the_json() -> None:
    row = as_dict(summarize([DENSE, FAST])[1])
    assert row["regions"]["forward/ffn"]["speedup"]["median"] == pytest.approx(1.6)
    assert row["regions"]["forward/ffn"]["limit"] == 2.0
    assert row["instruments"]["median"] == pytest.approx(1.25)


def test_the_table_of_regions_follows_that_of_cases() -> None:
    third = instrumented("other", 8e6, 4e6, conditions={"autocast": "float16"})
    cases, regions = make_sheets(summarize([DENSE, FAST, third]))
    assert cases.title == "demo size=4"
    console = Console(file=io.StringIO(), width=120)
    for part in fit(regions, 120):
        console.print(draw(part))
    expected = """\
        demo size=4, inside
                                       each
        region       variant  calls    call       ±   share  FLOP/s  limit             speedup  verdict
        forward/ffn  dense        8  510 µs  ±2.0 %  40.0 %  1.23 k                             baseline
        forward/ffn  fast         8  319 µs  ±2.0 %  25.0 %     980  2.00x  1.60x [1.60, 1.60]  faster
        forward/ffn  other        8  510 µs  ±2.0 %  50.0 %  1.23 k         1.00x [1.00, 1.00]  same, not comparable
    """
    assert isinstance(console.file, io.StringIO)
    drawn = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert drawn == textwrap.dedent(expected).splitlines()
    assert regions.remarks == ["size=4: instruments cost +8.3 % [8.3, 8.3]"]
