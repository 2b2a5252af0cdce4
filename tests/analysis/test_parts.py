"""Layers in parts, and as a whole: hand-made records in, exact numbers and tables out."""
# ruff: noqa: E501  (golden tables)

from __future__ import annotations

import io
import re
import textwrap

import pytest
from rich.console import Console

from flopwatch.analysis.summary import as_dict, compare_wholes, summarize
from flopwatch.output.case_tables import make_sheets, make_whole_sheets
from flopwatch.output.console import draw, fit
from flopwatch.output.headlines import describe_suite
from flopwatch.output.layouts import lay_out_plain
from flopwatch.output.page import render_page
from flopwatch.output.tables import Sheet
from flopwatch.records.published.published_switchback import WHOLES
from flopwatch.records.record import Record
from flopwatch.suites.case import case_id, group_id
from tests.conftest import make_record

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
        "case_id": case_id(suite, variant, params),
        "group_id": group_id(suite, params),
        "suite": suite,
        "variant": variant,
        "baseline": "dense",
        "kind": "parts" if variant in WHOLES else "whole",
        "parts_of": WHOLES.get(variant),
        "layout": "switchback",
        "params": params,
        "samples_ns": {phase: [1e6 * ms * s for s in slow] for phase, ms in phases_ms.items()},
        "rounds": ROUNDS,
        "calls_per_sample": [1] * 30,
        "warmup_samples": 10,
    }
    return make_record(**{**content, **changes})


def failed(variant: str, status: str, reason: str, **changes: object) -> Record:
    empty = {
        "rounds": [],
        "calls_per_sample": [],
        "steady": None,
        "stop_reason": None,
        "warmup_samples": 0,
    }
    return layer_record(variant, {}, **{**empty, "status": status, "message": reason, **changes})


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
    assert cases.headings == ["variant", "forward", "backward", "total", "±", "speedup", "verdict"]
    assert [[cells[0], *cells[1:4], cells[-1]] for cells in cases.groups[0]] == [
        ["dense", "10.2 ms", "20.4 ms", "30.6 ms", "baseline"],
        ["fast", "5.10 ms", "10.2 ms", "15.3 ms", "faster"],
        ["parts:standard", "", "", "32.1 ms", "in parts"],
        ["parts:casts", "", "", "2.29 ms", "in parts"],
    ]
    expected = """\
        switchback level=layer tokens=64 shape=768x3072 dtype=float32, parts
        variant         part             time       ±   share
        parts:standard  standard_fwd  10.2 ms  ±2.0 %  31.7 %
        parts:standard  standard_gx   10.7 ms  ±2.0 %  33.3 %
        parts:standard  standard_gw   11.2 ms  ±2.0 %  34.9 %

        parts:casts     cast_x         510 µs  ±2.0 %  22.2 %
        parts:casts     cast_w         765 µs  ±2.0 %  33.3 %
        parts:casts     cast_g        1.02 ms  ±2.0 %  44.4 %
    """
    assert drawn([parts], 120) == textwrap.dedent(expected).splitlines()


def test_a_narrow_terminal_has_a_table_of_parts_a_variant() -> None:
    lines = drawn(make_sheets(summarize(SMALL))[1:], 36)
    assert max(map(len, lines)) <= 36
    assert any(line.split() == ["cast_w", "765", "µs", "±2.0", "%"] for line in lines)


def test_the_page_has_the_parts_too() -> None:
    page = render_page(SMALL)
    assert ">parts</h3>" in page
    assert re.search(
        r"<th scope=row class=w>standard_gx</th><td data-v=107\d+>10.7\d? ms</td>", page
    )
    assert re.search(r"<td data-v=0.33\d+>33.3 %</td>", page)


def test_a_sum_of_parts_is_no_rival_of_the_baseline() -> None:
    """Casting alone would be the fastest layer of all."""
    rows = summarize(SMALL)
    assert [row.in_parts for row in rows] == [False, False, True, True]
    assert all(row.speedup is None and row.verdict is None for row in rows[2:])
    assert describe_suite(rows)[0].startswith("fast is faster than dense: ")
    assert "parts" not in " ".join(describe_suite(rows))
    assert as_dict(rows[2])["phases_ns"]["standard_gx"]["median"] == pytest.approx(10.71e6)


@pytest.mark.parametrize(
    ("baseline", "variant"),
    [
        (DENSE, {"step": 15.0}),  # timed at once
        ({"call": 30.0}, {"forward": 5.0, "backward": 10.0}),
        (DENSE, {"forward": 5.0, "recompute": 1.0, "backward": 9.0}),
        (DENSE, {"fwd": 5.0, "bwd": 10.0}),  # the same under other names
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
    assert cases.headings[1:3] == ["forward", "backward"]
    assert parts.groups == [[["a", "recompute", "1.02 ms", "±2.0 %", "10.0 %"]]]
    (only,) = make_sheets(summarize([layer_record("dense", DENSE), layer_record("a", {"s": 1.0})]))
    assert only.headings[1:3] == ["forward", "backward"]


def test_without_a_baseline_the_first_that_was_measured_gives_the_columns() -> None:
    crashed = failed("dense", "crash", "died")
    cases, parts = make_sheets(summarize([crashed, *SMALL[1:]]))
    assert cases.headings[1:4] == ["forward", "backward", "total"]
    assert [cells[0] for cells in parts.groups[0]] == ["parts:standard"] * 3
    assert [cells[-1] for cells in cases.groups[0]] == ["", "", "in parts", "in parts"]


# The whole against the sum

ROWWISE = {
    "x_quantize_rowwise": 1.0,
    "w_quantize_rowwise": 2.0,
    "rowwise_fwd": 4.0,
    "g_quantize_rowwise": 1.5,
    "w_quantize_colwise_transpose": 2.5,
    "rowwise_bwd": 4.5,
    "standard_gw": 9.5,
}
GLOBAL = {
    "x_quantize_rowwise": 3.0,
    "w_quantize_global": 1.0,
    "global_fwd": 3.0,
    "g_quantize_rowwise": 2.5,
    "w_quantize_global_transpose": 1.25,
    "global_bwd": 3.25,
    "standard_gw": 6.0,
}
ALL = [
    layer_record("dense", DENSE),  # 30, and 31.5 in parts
    layer_record("switchback:rowwise", {"forward": 8.0, "backward": 16.0}),  # 24 and 25
    layer_record("switchback:global", {"forward": 7.0, "backward": 15.0}),  # 22 and 20
    layer_record("switchback:global:int8", {"forward": 7.0, "backward": 16.0}),
    layer_record("parts:standard", STANDARD),
    layer_record("parts:rowwise", ROWWISE),
    layer_record("parts:global", GLOBAL),
    layer_record("parts:casts", CASTS),
]


def test_wholes_are_compared_with_the_sums_of_their_parts() -> None:
    (group,) = compare_wholes(summarize(ALL))
    assert [whole.row.record.variant for whole in group] == [
        "dense",
        "switchback:rowwise",
        "switchback:global",
    ]
    dense, rowwise, global_ = group
    assert dense.ratio.value == pytest.approx(30 / 31.5)
    assert dense.parts_speedup is None
    assert rowwise.ratio.value == pytest.approx(24 / 25)
    assert rowwise.ratio.low == pytest.approx(24 / 25)  # what drifts with the round cancels
    assert rowwise.row.speedup is not None
    assert rowwise.row.speedup.value == pytest.approx(30 / 24)
    assert rowwise.parts_speedup is not None
    assert rowwise.parts_speedup.value == pytest.approx(31.5 / 25)
    assert global_.ratio.value == pytest.approx(22 / 20)


def test_the_table_of_wholes_and_sums_is_exactly_this() -> None:
    (sheet,) = make_whole_sheets(summarize(ALL))
    expected = """\
        switchback level=layer tokens=64 shape=768x3072 dtype=float32, whole and sum of parts
                                      sum of
        variant               whole    parts             speedup     speedup of sums            difference  the whole takes
        dense               30.6 ms  32.1 ms                                           −4.8 % [−4.8, −4.8]  less than the sum
        switchback:rowwise  24.5 ms  25.5 ms  1.25x [1.25, 1.25]  1.26x [1.26, 1.26]   −4.0 % [−4.0, −4.0]  less than the sum
        switchback:global   22.4 ms  20.4 ms  1.36x [1.36, 1.36]  1.58x [1.58, 1.58]  +10.0 % [10.0, 10.0]  more than the sum
        speedup: of the whole layer over dense; of sums: of its parts over dense's parts, the published way; difference: of the whole from the sum
    """
    assert drawn([sheet], 160) == textwrap.dedent(expected).splitlines()


def test_wholes_and_parts_of_different_runs_are_not_compared() -> None:
    later = {"run_id": "later", "measured_at": "2026-02-01T00:00:00+00:00"}
    rows = summarize([*ALL, layer_record("parts:rowwise", ROWWISE, **later)])
    (group,) = compare_wholes(rows)
    assert [whole.row.record.variant for whole in group] == ["dense", "switchback:global"]


def test_without_the_standard_parts_there_is_no_speedup_of_sums() -> None:
    crashed = failed("parts:standard", "crash", "died")
    (group,) = compare_wholes(summarize([*ALL[:4], crashed, *ALL[5:]]))
    assert [whole.row.record.variant for whole in group] == [
        "switchback:rowwise",
        "switchback:global",
    ]
    assert all(whole.parts_speedup is None for whole in group)


def test_other_suites_have_no_wholes() -> None:
    others = [layer_record("dense", DENSE, suite="mine"), layer_record("parts:standard", STANDARD)]
    assert make_whole_sheets(summarize(others)) == []


def test_the_page_and_the_json_have_wholes_and_sums_too() -> None:
    assert "whole and sum of parts</h3>" in render_page(ALL)
    rows = {row["variant"]: row for row in lay_out_plain(summarize(ALL)).content}
    parts = rows["switchback:rowwise"]["parts"]
    assert parts["variant"] == "parts:rowwise"
    assert parts["total_ns"]["median"] == pytest.approx(25.5e6)
    assert parts["whole_over_sum"]["median"] == pytest.approx(0.96)
    assert parts["speedup_of_sums"]["median"] == pytest.approx(1.26)
    assert rows["dense"]["parts"]["speedup_of_sums"] is None
    assert rows["parts:rowwise"]["parts"] is None
    assert rows["switchback:global:int8"]["parts"] is None
