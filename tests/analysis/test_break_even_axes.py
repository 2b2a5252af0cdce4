"""BreakEvens along any axis of counts, with their points, and the command that tells them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flopwatch.analysis.break_even import as_dict, choose_axis, find_break_evens, series_as_dict
from flopwatch.analysis.summary import Row, summarize
from flopwatch.cli.main import cli
from flopwatch.errors import UsageError
from flopwatch.output.case_tables import describe_break_even, make_break_even_sheets
from flopwatch.records.published import load
from flopwatch.records.record import Record, encode
from tests.conftest import make_record

WIDE = [0.9, 1.1] * 10
"""Times of rounds whose median has an interval of 10 %."""


def make_series(
    speedups: dict[int, float],
    *,
    axis: str = "batch_size",
    times: list[float] | None = None,
    **params: object,
) -> list[Record]:
    """A baseline of 100 ns, and `fast`, whose times scatter as `times` do."""
    scatter = [1.0] * 20 if times is None else times
    return [
        make_record(
            case_id=f"{name}{place}{params}",
            group_id=f"{place}{params}",
            variant=name,
            baseline="dense",
            params={axis: place, **params},
            samples_ns={"call": [100 * (s if name == "fast" else 1) / speed for s in scatter]},
            rounds=list(range(len(scatter))),
            calls_per_sample=[1] * len(scatter),
        )
        for place, speedup in speedups.items()
        for name, speed in (("dense", 1.0), ("fast", speedup))
    ]


def summarize_series(speedups: dict[int, float], **options: object) -> list[Row]:
    return summarize(make_series(speedups, **options))  # type: ignore[arg-type]


def test_the_point_is_interpolated_in_logarithms_and_its_interval_too() -> None:
    """From 0.5 to 2 is as far below 1 as above; ends of intervals are 1 / 1.1 and 1 / 0.9."""
    rows = summarize_series({16: 0.5, 256: 2.0}, times=WIDE)
    ((crossing,),) = (found.crossings for found in find_break_evens(rows, "batch_size"))
    assert crossing.point == pytest.approx(64.0)
    # On the upper ends' curve, from 0.5 / 0.9 to 2 / 0.9: 1 is log(1.8) / log(4) of the way.
    assert crossing.low == pytest.approx(16 * 1.8**2)
    assert crossing.high == pytest.approx(16 * 2.2**2)
    assert (crossing.below, crossing.above) == tuple(row for row in rows if row.verdict)


def test_unclear_cases_between_clear_ones_are_part_of_the_curve() -> None:
    rows = [
        *summarize_series({16: 0.5, 256: 2.0}),
        *summarize_series({64: 1.001}, times=WIDE),
    ]
    (found,) = find_break_evens(rows, "batch_size")
    assert [row.verdict for row in found.rows] == ["slower", "unclear", "faster"]
    (crossing,) = found.crossings
    assert 16 < crossing.point < 64
    assert crossing.low is not None
    assert crossing.high is not None
    assert 16 < crossing.low < crossing.point < 64 < crossing.high < 256
    assert as_dict(found)["crossings"][0]["between"] == [16, 256]


@pytest.mark.parametrize(
    ("speedups", "outcome", "words", "crossings"),
    [
        ({1: 0.5, 4: 2.0}, "from", "from batch_size 4 on; at 1 it is slower", ["2 [2, 2]"]),
        ({1: 2.0, 4: 0.5}, "up-to", "not at batch_size 4, but at 1", ["2 [2, 2]"]),
        ({1: 1.5, 4: 2.0}, "always", "at every value measured, from batch_size 1 on", []),
        ({1: 0.5, 4: 0.9}, "never", "never, up to batch_size 4", []),
        ({1: 0.5, 4: 1.0}, "never", "never, up to batch_size 4", []),
        ({1: 1.0, 4: 2.0}, "from", "from batch_size 4 on; at 1 it is as fast", []),
        ({1: 0.5, 4: 2.0, 16: 0.5}, "several",
         "not at batch_size 16, but at 4, and it crosses 2 times", ["2", "8"]),
    ],
)  # fmt: skip
def test_how_a_series_comes_out(
    speedups: dict[int, float], outcome: str, words: str, crossings: list[str]
) -> None:
    rows = summarize_series(speedups)
    (found,) = find_break_evens(rows, "batch_size")
    assert found.outcome == outcome
    assert describe_break_even(found) == words
    (sheet,) = make_break_even_sheets(rows, "batch_size")
    assert sheet.title == "demo, speedup by batch_size"
    cells = dict(zip(sheet.headings, sheet.groups[0][0], strict=True))
    assert cells.get("crosses 1 at", "") == ", ".join(crossings)


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ({1: 0.5, 4: 2.0}, "from between batch_size 1 and 4 on, by values alone"),
        ({1: 2.0, 4: 0.5}, "up to between batch_size 1 and 4, by values alone"),
        ({1: 1.5, 4: 2.0}, "at every value measured, from batch_size 1 on, by values alone"),
        ({1: 0.5, 4: 0.9}, "never, up to batch_size 4, by values alone"),
        ({1: 0.5, 4: 2.0, 16: 0.5},
         "to and fro: it crosses between batch_size 1 and 4, 4 and 16, by values alone"),
    ],
)  # fmt: skip
def test_single_values_have_a_point_and_no_interval(speedups: dict[int, float], words: str) -> None:
    (found,) = find_break_evens(summarize_series(speedups, times=[1.0]), "batch_size")
    assert found.is_bare
    assert not found.paying  # that takes verdicts
    assert describe_break_even(found) == words
    assert {(each.low, each.high) for each in found.crossings} <= {(None, None)}


def test_several_samples_without_an_interval_are_unclear() -> None:
    rows = summarize_series({1: 0.5, 4: 2.0}, times=[1.0] * 3)
    assert {row.verdict for row in rows if row.verdict} == {"unclear"}
    (found,) = find_break_evens(rows, "batch_size")
    assert (found.is_bare, found.outcome, found.crossings) == (False, "unclear", [])
    assert describe_break_even(found) == "unclear, up to batch_size 4"


def test_the_published_name_of_an_axis_is_understood() -> None:
    rows = summarize(load("switchback"))
    assert choose_axis(rows, "batch_size") == choose_axis(rows, "tokens") == "tokens"


def test_all_published_shapes_of_switchback_have_a_break_even() -> None:
    found = find_break_evens(summarize(load("switchback")), "tokens")
    assert len(found) == 2 * 18
    assert all(break_even.outcome == "from" for break_even in found)
    first = series_as_dict(found[0])
    assert first["params"]["shape"] == [1024, 4096]
    assert first["variant"] == "switchback:rowwise"
    (crossing,) = first["crossings"]
    assert crossing["between"] == [8192, 16384]
    assert 8192 < crossing["point"] < 16384


def test_the_axis_is_found_or_chosen() -> None:
    one = summarize_series({1: 0.5, 4: 2.0}, dtype="float32")
    assert choose_axis(one) == "batch_size"
    two = [*one, *summarize_series({1: 0.5}, width=2), *summarize_series({1: 2.0}, width=4)]
    with pytest.raises(UsageError, match="series along batch_size, width; choose one by --axis"):
        choose_axis(two)
    assert choose_axis(two, "width") == "width"
    with pytest.raises(UsageError, match="counts of 'dtype'; there are series along batch_size"):
        choose_axis(one, "dtype")
    with pytest.raises(UsageError, match="measure some, as by --set"):
        choose_axis(one[:2])


def test_series_of_other_baselines_are_apart() -> None:
    rows = summarize(
        [
            *make_series({1: 0.5}),
            *(
                make_record(case_id=f"{r.case_id}x", variant=v, baseline="other",
                            group_id=r.group_id, run_id="s", params={"batch_size": 4})
                for r in make_series({4: 2.0})[:1]
                for v in ("other", "fast")
            ),
        ]
    )  # fmt: skip
    assert find_break_evens(rows, "batch_size") == []


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    records = [*make_series({1: 0.5, 4: 2.0}), *make_series({1: 0.9}, dtype="float16")]
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def test_the_command_prints_a_table_or_json(results: Path) -> None:
    table = CliRunner().invoke(cli, ["compare", str(results), "--break-even"])
    assert table.exit_code == 0, table.output
    assert "demo, speedup by batch_size" in table.stdout
    assert "from batch_size 4 on; at 1 it is slower" in table.stdout
    assert "covers noise, not the shape of the curve" in table.stdout
    arguments = [
        "compare",
        str(results),
        "--break-even",
        "--axis",
        "batch_size",
        "--variant",
        "fast",
        "--json",
    ]
    (found,) = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert found["speedups"] == [0.5, 2.0]
    assert found["verdicts"] == ["slower", "faster"]
    assert found["crossings"][0]["point"] == pytest.approx(2.0)


def test_an_unknown_variant_is_refused(results: Path) -> None:
    result = CliRunner().invoke(
        cli, ["compare", str(results), "--break-even", "--variant", "quick"]
    )
    assert isinstance(result.exception, UsageError)
    assert "'quick' was not compared with a baseline; what was: fast" in str(result.exception)
