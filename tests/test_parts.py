"""Layers in parts, and as a whole: hand-made records in, exact numbers and tables out."""
# ruff: noqa: E501  (golden tables)

from __future__ import annotations

import io
import textwrap

import pytest
from rich.console import Console

from flopwatch.analysis.summary import as_dict, summarize
from flopwatch.case import case_id, group_id
from flopwatch.records.record import Record
from flopwatch.report.page import render_page, summary_sentences
from flopwatch.report.tables import Sheet, draw, fit, make_sheets

from .conftest import make_record

LAYER = {"level": "layer", "tokens": 64, "shape": [768, 3072], "dtype": "float32"}
ROUNDS = list(range(30))
DRIFT = [1 + 0.01 * ((7 * round_) % 5) for round_ in ROUNDS]
"""By round, for all variants alike; of the measured samples the median is 1.02, the mean too."""


def layer_record(variant: str, phases_ms: dict[str, float], **changes: object) -> Record:
    """30 samples, 10 of them warm-up (which took twice as long), that drift with the round."""
    params = {**LAYER, **{axis: changes.pop(axis) for axis in LAYER if axis in changes}}
    suite = changes.pop("suite", "switchback")
    assert isinstance(suite, str)
    slow = [2 * drift if round_ < 10 else drift for round_, drift in enumerate(DRIFT)]
    content: dict[str, object] = {
        "id": case_id(suite, variant, params),
        "group": group_id(suite, params),
        "suite": suite,
        "variant": variant,
        "baseline": "dense",
        "params": params,
        "samples_ns": {phase: [1e6 * ms * s for s in slow] for phase, ms in phases_ms.items()},
        "rounds": ROUNDS,
        "loops": [1] * 30,
        "warmup_samples": 10,
    }
    return make_record(**{**content, **changes})


def failed(variant: str, status: str, reason: str, **changes: object) -> Record:
    empty = {"rounds": [], "loops": [], "steady": None, "stop": None, "warmup_samples": 0}
    return layer_record(variant, {}, **{**empty, "status": status, "reason": reason, **changes})


DENSE = {"forward": 10.0, "backward": 20.0}
STANDARD = {"standard_fwd": 10.0, "standard_gx": 10.5, "standard_gw": 11.0}
CASTS = {"cast_x": 0.5, "cast_w": 0.75, "cast_g": 1.0}


def drawn(sheets: list[Sheet], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for sheet in sheets:
        for part in fit(sheet, width):
            console.print(draw(part))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


SMALL = [
    layer_record("dense", DENSE),
    layer_record("fast", {"forward": 5.0, "backward": 10.0}),
    layer_record("parts:standard", STANDARD),
    layer_record("parts:casts", CASTS),
]


def test_phases_that_the_baseline_lacks_have_a_table_of_their_own() -> None:
    cases, parts = make_sheets(summarize(SMALL))
    assert cases.columns == ["variant", "forward", "backward", "total", "±", "speedup", "verdict"]
    assert [[cells[0], *cells[1:4], cells[-1]] for cells in cases.groups[0]] == [
        ["dense", "10.2 ms", "20.4 ms", "30.6 ms", "baseline"],
        ["fast", "5.10 ms", "10.2 ms", "15.3 ms", "faster"],
        ["parts:standard", "", "", "32.1 ms", "in parts"],
        ["parts:casts", "", "", "2.29 ms", "in parts"],
    ]
    expected = """\
        switchback level=layer tokens=64 shape=768x3072
        dtype=float32, parts
         ───────────────────────────────────────────────────────────
          variant          part              time        ±    share
         ───────────────────────────────────────────────────────────
          parts:standard   standard_fwd   10.2 ms   ±2.0 %   31.7 %
          parts:standard   standard_gx    10.7 ms   ±2.0 %   33.3 %
          parts:standard   standard_gw    11.2 ms   ±2.0 %   34.9 %
         ───────────────────────────────────────────────────────────
          parts:casts      cast_x          510 µs   ±2.0 %   22.2 %
          parts:casts      cast_w          765 µs   ±2.0 %   33.3 %
          parts:casts      cast_g         1.02 ms   ±2.0 %   44.4 %
         ───────────────────────────────────────────────────────────
    """
    assert drawn([parts], 120) == textwrap.dedent(expected).splitlines()


def test_a_narrow_terminal_has_a_table_of_parts_a_variant() -> None:
    lines = drawn(make_sheets(summarize(SMALL))[1:], 36)
    assert max(map(len, lines)) <= 36
    assert any(line.split() == ["cast_w", "765", "µs", "±2.0", "%"] for line in lines)


def test_the_page_has_the_parts_too() -> None:
    page = render_page(SMALL)
    assert "dtype=float32, parts</h2>" in page
    assert '<td class="word">standard_gx</td><td class="number">10.7 ms</td>' in page
    assert '<td class="number ">33.3 %</td>' in page  # not a verdict


def test_a_sum_of_parts_is_no_rival_of_the_baseline() -> None:
    """Casting alone would be the fastest layer of all."""
    rows = summarize(SMALL)
    assert [row.in_parts for row in rows] == [False, False, True, True]
    assert all(row.speedup is None and row.verdict is None for row in rows[2:])
    assert "Largest speedup: fast over dense" in summary_sentences(rows)[1]
    assert as_dict(rows[2])["phases_ns"]["standard_gx"]["median"] == pytest.approx(10.71e6)


@pytest.mark.parametrize(
    ("baseline", "variant"),
    [
        (DENSE, {"step": 15.0}),  # timed at once
        ({"call": 30.0}, {"forward": 5.0, "backward": 10.0}),
        (DENSE, {"forward": 5.0, "recompute": 1.0, "backward": 9.0}),
    ],
)
def test_a_whole_run_that_is_divided_otherwise_still_is_one(
    baseline: dict[str, float], variant: dict[str, float]
) -> None:
    row = summarize([layer_record("dense", baseline), layer_record("a", variant)])[1]
    assert row.speedup is not None
    assert row.speedup.value == pytest.approx(2.0)


def test_a_phase_of_its_own_is_a_part() -> None:
    own = {"forward": 5.0, "recompute": 1.0, "backward": 4.0}
    cases, parts = make_sheets(summarize([layer_record("dense", DENSE), layer_record("a", own)]))
    assert cases.columns[1:3] == ["forward", "backward"]
    assert parts.groups == [[["a", "recompute", "1.02 ms", "±2.0 %", "10.0 %"]]]
    (only,) = make_sheets(summarize([layer_record("dense", DENSE), layer_record("a", {"s": 1.0})]))
    assert only.columns[1:3] == ["forward", "backward"]


def test_without_a_baseline_the_first_that_was_measured_gives_the_columns() -> None:
    crashed = failed("dense", "crash", "died")
    cases, parts = make_sheets(summarize([crashed, *SMALL[1:]]))
    assert cases.columns[1:4] == ["forward", "backward", "total"]
    assert [cells[0] for cells in parts.groups[0]] == ["parts:standard"] * 3
