"""The published SwitchBack layout: hand-made records in, exact lines out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError
from flopwatch.output.layouts import Printout, make_printout
from flopwatch.records.record import Record, encode
from flopwatch.settings import Settings
from tests.analysis.test_parts import ALL, CASTS, GLOBAL, ROWWISE, STANDARD, failed, layer_record
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record

KEYS = [
    "repeat", "batch_size", "dim_out", "dim_in", "wm", "switch", "standard_fwd", "standard_gw",
    "standard_gx", "rowwise_fwd", "rowwise_bwd", "global_fwd", "global_bwd", "x_quantize_rowwise",
    "g_quantize_rowwise", "w_quantize_rowwise", "w_quantize_colwise_transpose",
    "w_quantize_global", "w_quantize_global_transpose", "cast_x", "cast_g", "cast_w",
    "time_standard", "time_rowwise", "time_global",
]  # fmt: skip
MEAN = 1.02
"""Of the drift, warm-up left out."""


def parts(**changes: Any) -> list[Record]:
    """The parts of one layer."""
    named = {
        "parts:standard": STANDARD,
        "parts:rowwise": ROWWISE,
        "parts:global": GLOBAL,
        "parts:casts": CASTS,
    }
    return [layer_record(variant, times_ms, **changes) for variant, times_ms in named.items()]


def lay_out(records: list[Record]) -> Printout:
    return make_printout(summarize(records), "switchback")


def read_line(records: list[Record]) -> dict[str, Any]:
    (line,) = lay_out(records).lines
    content: dict[str, Any] = json.loads(line)
    return content


def test_a_line_has_the_published_keys_in_their_order() -> None:
    line = read_line(ALL)
    assert list(line) == KEYS
    assert len(KEYS) == 25
    sizes = {key: line[key] for key in KEYS[:6]}
    assert sizes == {
        "repeat": 20, "batch_size": 64, "dim_out": 3072, "dim_in": 768, "wm": 4, "switch": False,
    }  # fmt: skip


def test_times_are_means_in_milliseconds_without_warm_up() -> None:
    line = read_line(ALL)
    assert line["standard_gx"] == pytest.approx(10.5 * MEAN)
    assert line["global_bwd"] == pytest.approx(3.25 * MEAN)
    assert line["cast_g"] == pytest.approx(1.0 * MEAN)
    skewed = [1e6] * 10 + [1e6] * 15 + [5e6] * 5  # 2 ms on average, 1 ms in the middle
    casts = replace(ALL[-1], samples_ns=dict.fromkeys(CASTS, skewed))
    assert read_line([*ALL[:-1], casts])["cast_x"] == pytest.approx(2.0)


def test_a_part_that_several_variants_have_stands_there_once() -> None:
    line = read_line(ALL)
    assert line["standard_gw"] == pytest.approx(11.0 * MEAN)  # the standard layer's
    assert line["x_quantize_rowwise"] == pytest.approx((1.0 + 3.0) / 2 * MEAN)
    assert line["g_quantize_rowwise"] == pytest.approx((1.5 + 2.5) / 2 * MEAN)


def test_sums_are_those_of_the_printed_numbers() -> None:
    line = read_line(ALL)
    quantize = line["x_quantize_rowwise"] + line["g_quantize_rowwise"]
    assert line["time_standard"] == pytest.approx(
        line["standard_fwd"] + line["standard_gw"] + line["standard_gx"], rel=1e-14
    )
    assert line["time_rowwise"] == pytest.approx(
        quantize + line["w_quantize_colwise_transpose"] + line["w_quantize_rowwise"]
        + line["standard_gw"] + line["rowwise_fwd"] + line["rowwise_bwd"], rel=1e-14,
    )  # fmt: skip
    assert line["time_global"] == pytest.approx(
        quantize + line["w_quantize_global"] + line["w_quantize_global_transpose"]
        + line["standard_gw"] + line["global_fwd"] + line["global_bwd"], rel=1e-14,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "wm", "switch"),
    [
        ([768, 3072], "4", False),
        ([3072, 768], "4", True),
        ([1024, 1024], "1", False),
        ([1408, 6144], "4.3637", False),
        ([6144, 1408], "4.3637", True),
        ([1000, 1500], "1.5", False),
    ],
)
def test_widening_and_narrowing_are_told_apart(shape: list[int], wm: str, switch: bool) -> None:
    (text,) = lay_out(parts(shape=shape)).lines
    assert f'"wm": {wm}, ' in text
    line = json.loads(text)
    assert (line["dim_in"], line["dim_out"], line["switch"]) == (*shape, switch)


def test_repeat_is_the_fewest_that_a_mean_is_over() -> None:
    short = replace(ALL[5], warmup_samples=13)
    assert read_line([*ALL[:5], short, *ALL[6:]])["repeat"] == 17


def test_lines_that_differ_in_what_they_do_not_say_are_kept_together() -> None:
    printout = lay_out(
        [
            *parts(tokens=16),
            *parts(tokens=16, dtype="bfloat16"),
            *parts(tokens=64),
            *parts(tokens=64, settings=Settings(cache="cold")),
        ]
    )
    assert [json.loads(line)["batch_size"] for line in printout.lines] == [16, 64, 16, 64]
    assert printout.remarks == [
        "lines 1 to 2: dtype=float32; cpu, 1 thread, hot cache, allocator retain",
        "line 3: dtype=bfloat16; cpu, 1 thread, hot cache, allocator retain",
        "line 4: dtype=float32; cpu, 1 thread, cold cache, allocator retain",
    ]


LABEL = "level=layer tokens=64 shape=768x3072 dtype=float32"
LATER = {"run_id": "later", "measured_at": "2026-02-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (
            [*parts()[:3], failed("parts:casts", "oom", "needs 3 TiB")],
            "parts:casts: oom: needs 3 TiB",
        ),
        (parts()[1:], "parts:standard was not measured"),
        (
            [*parts()[:3], layer_record("parts:casts", {"cast_x": 1.0})],
            "parts:casts has no times of cast_g, cast_w",
        ),
        (
            [*parts(), layer_record("parts:casts", CASTS, **LATER)],
            "its parts are from different runs; measure them together with --rerun",
        ),
    ],
    ids=["failed", "absent", "phases", "runs"],
)
def test_without_all_parts_there_is_a_sentence_and_no_line(
    records: list[Record], reason: str
) -> None:
    printout = lay_out(records)
    assert (printout.lines, printout.content) == ([], [])
    assert printout.remarks == [f"no line for {LABEL}: {reason}"]


@pytest.mark.parametrize(
    "record",
    [
        make_record(layout="switchback", params={"level": "model", "model": "opt-125m"}),
        layer_record("parts:standard", STANDARD, layout=None),
        layer_record("parts:standard", STANDARD, shape=768),
    ],
)
def test_without_layers_it_says_how_to_make_them(record: Record) -> None:
    with pytest.raises(UsageError, match="flopwatch run switchback --filter level=layer"):
        lay_out([record])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "switchback.jsonl"
    lost = failed("parts:standard", "crash", "died", tokens=4096)
    path.write_bytes(b"".join(encode(record) + b"\n" for record in [*ALL, lost]))
    return path


def test_the_command_prints_lines_then_tables_and_says_the_rest_on_stderr(results: Path) -> None:
    shown = flopwatch("show", results, "-v", cwd=results.parent).stdout
    laid_out = flopwatch("show", results, "--layout", "switchback", cwd=results.parent)
    assert laid_out.returncode == 0
    first, rest = laid_out.stdout.split("\n", 1)
    assert list(json.loads(first)) == KEYS
    assert rest == shown
    assert "whole and sum of parts" in shown
    assert laid_out.stderr.splitlines() == [
        "flopwatch: line 1: dtype=float32; cpu, 1 thread, hot cache, allocator retain",
        "flopwatch: no line for level=layer tokens=4096 shape=768x3072 dtype=float32: "
        "parts:standard: crash: died",
    ]


def test_the_command_gives_the_same_lines_as_json(results: Path) -> None:
    arguments = ["show", results, "--layout", "switchback"]
    lines = flopwatch(*arguments, cwd=results.parent).stdout
    as_json = flopwatch(*arguments, "--json", cwd=results.parent)
    assert json.loads(as_json.stdout) == [json.loads(lines.split("\n")[0])]
    assert "no line for" in as_json.stderr


def test_the_command_refuses_results_of_another_suite(results: Path, tmp_path: Path) -> None:
    results.write_bytes(encode(make_record()) + b"\n")
    refused = flopwatch("show", results, "--layout", "switchback", cwd=tmp_path)
    assert_refused(refused, "flopwatch run switchback --filter level=layer")
