"""Tables that somebody has asked for: columns, conditions, sorting, pivots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from flopwatch.analysis.summary import Row, summarize
from flopwatch.errors import UsageError
from flopwatch.output.columns import list_columns
from flopwatch.output.console import draw
from flopwatch.output.selection import select_rows
from flopwatch.output.table_request import (
    WRITERS,
    Answer,
    Request,
    answer,
    choose_columns,
    make_chosen_sheet,
    make_pivot,
    make_pivot_sheets,
)
from flopwatch.output.tables import Sheet
from flopwatch.records.published import load
from flopwatch.records.record import Record, encode
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record
from tests.output.test_case_tables import FAILED, sampled

OUT_OF_MEMORY = {"status": "oom", "message": "needs 3 TiB", "warmup_samples": 0}


def case(variant: str, tokens: int, total_ns: float, **changes: object) -> Record:
    params = {"shape": [768, 3072], "tokens": tokens, **changes.pop("params", {})}  # type: ignore[dict-item]
    content: dict[str, object] = {
        "case_id": f"{variant} {params}",
        "group_id": str(params),
        "variant": variant,
        "params": params,
        "facts": {"parameters": 30.0 * tokens, "tokens": float(tokens)},
    }
    return sampled(total_ns / 3, 2 * total_ns / 3, **{**content, **changes})


@pytest.fixture
def rows() -> list[Row]:
    return summarize(
        [
            case("dense", 512, 3e6),
            case("dyad:4", 512, 1.5e6),
            case("dyad:8", 512, 6e6),
            case("dense", 64, 0.3e6),
            case("dyad:4", 64, 0.2e6),
            case("dyad:8", 64, 1e6, **FAILED, **OUT_OF_MEMORY),
        ]
    )


def ask(rows: Sequence[Row], **asked: str) -> Answer:
    return answer(rows, Request(**asked), "terminal")


def told(rows: Sequence[Row]) -> list[str]:
    return [f"{row.record.variant} {row.record.params['tokens']}" for row in rows]


def cells(sheet: Sheet) -> list[list[str]]:
    return [row for group in sheet.groups for row in group]


def test_the_frame_has_all_that_is_known_of_a_case(rows: list[Row]) -> None:
    frame = list_columns(rows)
    known = {name: column.find_value(rows[1]) for name, column in frame.items()}
    assert list(frame)[:5] == ["suite", "shape", "tokens", "variant", "baseline"]
    assert (known["shape"], known["tokens"], known["fact_tokens"]) == ("768x3072", 512, 512.0)
    assert known["total_ns"] == pytest.approx(1.5e6)
    assert known["forward_ns"] == pytest.approx(0.5e6)
    assert known["total_low_ns"] == pytest.approx(1.5e6 * 0.99)
    assert known["total_half_width"] == pytest.approx(0.01)
    assert [known[f"speedup{end}"] for end in ("", "_low", "_high")] == pytest.approx([2, 2, 2])
    assert (known["verdict"], known["comparable"], known["samples"]) == ("faster", True, 20)
    assert known["tokens_per_s"] == pytest.approx(512 / 1.5e-3)
    failed = {name: column.find_value(rows[5]) for name, column in frame.items()}
    assert (failed["status"], failed["message"]) == ("oom", "needs 3 TiB")
    assert failed["total_ns"] is failed["speedup"] is failed["comparable"] is None


def test_names_that_are_taken_are_told_apart() -> None:
    odd = {"status": "x", "Size": 1, "size": 2, "total": 3, "": 4, "position": 5}
    phases = {phase: [1e6] * 20 for phase in ("total", "forward")}
    rows = summarize([make_record(params=odd, samples_ns=phases, facts={"forward_ns": 7.0})])
    frame = list_columns(rows)
    values = {name: column.find_value(rows[0]) for name, column in frame.items()}
    assert (values["status"], values["axis_status"]) == ("ok", "x")
    assert (values["Size"], values["axis_size"], values["position"]) == (1, 2, 5)
    assert (values["total_ns"], values["phase_total_ns"]) == (2e6, 1e6)
    assert (values["forward_ns"], values["fact_forward_ns"]) == (1e6, 7.0)
    assert len(select_rows(rows, frame, "axis_size = 2 and position = 5")) == 1


def test_a_condition_chooses_and_keeps_the_order(rows: list[Row]) -> None:
    def where(condition: str) -> list[str]:
        return told(select_rows(rows, list_columns(rows), condition))

    assert where("tokens >= 512 and variant like 'dyad%'") == ["dyad:4 512", "dyad:8 512"]
    assert where("speedup > 1 -- the fast ones") == ["dyad:4 512", "dyad:4 64"]
    assert where("status <> 'ok'") == ["dyad:8 64"]
    assert where("comparable and verdict = 'slower'") == ["dyad:8 512"]
    assert where("SHAPE = '768x3072' and TOTAL_NS < 1e6") == ["dense 64", "dyad:4 64"]
    assert where("mfu > 0.5") == []


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("tokns > 3", r"names 'tokns'.*\(did you mean tokens"),
        ('variant = "dense"', "names 'dense'.*text stands in single quotes"),
        ("tokens >", "syntax error.*write it as in"),
        ("variant > 3", "Cannot compare|cannot be run"),
        ("sum(tokens) > 1", "cannot contain aggregates"),
        ("", "must be one condition"),
        ("true) union all (select 999", "must be one condition"),
        ("true) union all (select 0", "must be one condition"),
        ("1 = 1); drop table cases; select (1", "must be one condition"),
        ("variant in (select content from read_text('/etc/hostname'))", "cannot be run"),
        ("variant in (select current_setting('home_directory') from rows)", "cannot be run"),
        ("variant = '\udcff'", "is not UTF-8"),
    ],
)
def test_a_condition_that_cannot_be_run_is_refused(
    rows: list[Row], condition: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        select_rows(rows, list_columns(rows), condition)
    assert "\n" not in str(refused.value)


def test_rows_are_sorted_by_any_field_and_the_unknown_is_last(rows: list[Row]) -> None:
    frame = list_columns(rows)
    assert told(select_rows(rows, frame, sort="-speedup,tokens")) == [
        "dyad:4 512", "dyad:4 64", "dyad:8 512", "dense 64", "dyad:8 64", "dense 512",
    ]  # fmt: skip
    assert told(select_rows(rows, frame, sort="Variant, tokens"))[:3] == [
        "dense 64", "dense 512", "dyad:4 64",
    ]  # fmt: skip
    for wrong in ("", ",", "-"):
        with pytest.raises(UsageError, match="no column"):
            select_rows(rows, frame, sort=wrong)


def test_an_unknown_column_names_near_ones(rows: list[Row]) -> None:
    frame = list_columns(rows)
    with pytest.raises(UsageError, match=r"'totl' \(did you mean total_ns.*--columns help"):
        choose_columns(frame, "variant,totl")
    with pytest.raises(UsageError, match=r"'total' \(did you mean total_ns, total_low_ns or"):
        choose_columns(frame, "total")
    with pytest.raises(UsageError, match="'xyzzy'; --columns help lists all"):
        choose_columns(frame, "xyzzy")
    with pytest.raises(UsageError, match="--columns names none"):
        choose_columns(frame, " , ")


def test_chosen_columns_are_one_table_with_headings_and_units(rows: list[Row]) -> None:
    (sheet,) = ask(
        rows, columns="variant,total_ns,speedup,verdict,parameters", where="tokens = 512"
    ).make_sheets()
    assert sheet.title == "demo shape=768x3072 tokens=512"
    assert sheet.headings == ["variant", "total", "speedup", "verdict", "parameters"]
    assert cells(sheet) == [
        ["dense", "3.00 ms", "", "baseline", "15.4k"],
        ["dyad:4", "1.50 ms", "2.00x [2.00, 2.00]", "faster", "15.4k"],
        ["dyad:8", "6.00 ms", "0.50x [0.50, 0.50]", "slower", "15.4k"],
    ]
    assert sheet.conditions == "cpu, 1 thread, hot cache, allocator retain"
    assert sheet.remarks == []
    console = Console(width=120, force_terminal=True, color_system="standard", record=True)
    with console.capture() as capture:
        console.print(draw(sheet))
    assert "\x1b[32mfaster" in capture.get()


def test_what_a_table_of_chosen_columns_does_not_show_is_told(rows: list[Row]) -> None:
    frame = list_columns(rows)
    sheet = make_chosen_sheet(rows, frame, choose_columns(frame, "variant,total_ns"))
    assert sheet.remarks == ["the cases differ also in tokens"]
    assert cells(sheet)[-1] == ["dyad:8", "oom"]
    differences = summarize(
        [case("dense", 512, 3e6), case("odd", 512, 2e6, conditions={"autocast": "float16"})]
    )
    frame = list_columns(differences)
    sheet = make_chosen_sheet(differences, frame, choose_columns(frame, "variant,speedup"))
    assert sheet.remarks == ["odd: not comparable in 1 case; the usual tables say how"]
    sheet = make_chosen_sheet(differences, frame, choose_columns(frame, "variant,speedup,verdict"))
    assert sheet.remarks == []
    assert cells(sheet)[1][-1] == "faster, not comparable"


def test_a_sorted_table_has_no_sections(rows: list[Row]) -> None:
    (sheet,) = ask(rows, sort="-speedup").make_sheets()
    assert [row[:2] for row in cells(sheet)][:2] == [["512", "dyad:4"], ["64", "dyad:4"]]
    assert len(sheet.groups) == 1
    assert sheet.remarks == ["dyad:8 shape=768x3072 tokens=64: oom: needs 3 TiB"]


def test_a_pivot_is_a_table_for_all_that_is_neither_row_nor_column(rows: list[Row]) -> None:
    (sheet,) = ask(rows, pivot="row=variant,col=tokens,value=speedup").make_sheets()
    assert sheet.title == "demo shape=768x3072, speedup by tokens"
    assert sheet.headings == ["variant \\ tokens", "64", "512"]
    assert cells(sheet) == [["dyad:4", "1.50x", "2.00x"], ["dyad:8", "oom", "0.50x"]]
    tones = [[column.tone(row) for column in sheet.columns] for row in sheet.items[0]]
    assert tones == [[None, "faster", "faster"], [None, None, "slower"]]
    first, second = ask(rows, pivot="row=shape,col=tokens,value=speedup").make_sheets()
    assert first.title == "demo variant=dyad:4, speedup by tokens"
    assert cells(first) == [["768x3072", "1.50x", "2.00x"]]
    assert cells(second) == [["768x3072", "oom", "0.50x"]]


def test_a_pivot_keeps_a_wanted_order(rows: list[Row]) -> None:
    asked = {"pivot": "row=variant,col=tokens,value=total_ns", "sort": "-tokens,-variant"}
    (sheet,) = ask(rows, **asked).make_sheets()
    assert sheet.headings[1:] == ["512", "64"]
    assert [row[0] for row in cells(sheet)] == ["dyad:8", "dyad:4", "dense"]


def test_a_pivot_never_hides_a_case() -> None:
    frame_of = [case("dense", 512, 3e6), case("dense", 512, 2e6, params={"tokens": 512.0})]
    rows = summarize(frame_of)
    with pytest.raises(UsageError, match="are two cases, dense .* choose one by --where"):
        make_pivot(rows, list_columns(rows), "row=variant,col=tokens,value=total_ns", False)
    many = summarize([case("dense", 64, 1e6, params={"seed": n}) for n in range(21)])
    pivot = make_pivot(many, list_columns(many), "row=variant,col=tokens,value=total_ns", False)
    with pytest.raises(UsageError, match="21 tables, since cases differ in seed too"):
        make_pivot_sheets(pivot)
    layer = case("dense", 64, 1e6)
    model = sampled(1e6, 2e6, case_id="m", variant="dense", params={"model": "small"}, group_id="m")
    found = ask(summarize([layer, model]), pivot="row=variant,col=tokens,value=total_ns")
    assert found.remarks == ["left out: 1 case with no tokens"]
    assert [sheet.headings for sheet in found.make_sheets()] == [["variant \\ tokens", "64"]]
    nothing = ask(summarize([layer]), pivot="row=variant,col=tokens,value=speedup")
    assert (nothing.remarks, nothing.make_sheets()) == (["no case has a value of speedup"], [])


@pytest.mark.parametrize(
    "asked",
    [
        "row=variant,col=tokens",
        "row=a,col=b,value=c,row=d",
        "variant,tokens,speedup",
        "row=,col=,x=",
    ],
)
def test_a_pivot_needs_three_columns(rows: list[Row], asked: str) -> None:
    with pytest.raises(UsageError, match="--pivot needs row, col and value"):
        ask(rows, pivot=asked)


def test_pivots_for_machines_have_raw_values(rows: list[Row]) -> None:
    found = ask(rows, pivot="row=shape,col=tokens,value=total_ns", where="variant <> 'dense'")
    assert WRITERS["csv"](found).splitlines() == [
        "variant,shape,total_ns tokens=64,total_ns tokens=512,total_low_ns tokens=64,"
        "total_low_ns tokens=512,total_high_ns tokens=64,total_high_ns tokens=512",
        "dyad:4,768x3072,200000.0,1500000.0,198000.0,1485000.0,202000.00000000003,1515000.0",
        "dyad:8,768x3072,,6000000.0,,5940000.0,,6060000.0",
    ]
    assert json.loads(WRITERS["json"](found))[1] == {
        "variant": "dyad:8",
        "shape": "768x3072",
        "total_ns": {"64": None, "512": pytest.approx(6e6)},
        "total_low_ns": {"64": None, "512": pytest.approx(5.94e6)},
        "total_high_ns": {"64": None, "512": pytest.approx(6.06e6)},
    }
    speedups = ask(rows, pivot="row=variant,col=tokens,value=speedup")
    assert json.loads(WRITERS["json"](speedups))[0] == {
        "variant": "dyad:4",
        "speedup": {"64": pytest.approx(1.5), "512": pytest.approx(2)},
        "speedup_low": {"64": pytest.approx(1.5), "512": pytest.approx(2)},
        "speedup_high": {"64": pytest.approx(1.5), "512": pytest.approx(2)},
        "verdict": {"64": "faster", "512": "faster"},
    }
    phases = ask(rows, pivot="row=variant,col=tokens,value=forward_ns")
    (dense, *_) = json.loads(WRITERS["json"](phases))
    assert list(dense) == ["variant", "forward_ns", "forward_half_width"]
    assert 0 < dense["forward_half_width"]["64"] < 0.1
    exact = ask(rows, pivot="row=variant,col=tokens,value=samples")
    assert list(json.loads(WRITERS["json"](exact))[0]) == ["variant", "samples"]


def test_pivots_mark_what_is_unclear_and_say_how_wide_intervals_are(rows: list[Row]) -> None:
    noisy = case("noisy", 512, 3e6, samples_ns={"forward": [1e6, 1e6, 9e6] * 10})
    few = case("few", 512, 1.5e6, warmup_samples=26)
    other = case("other", 512, 1.5e6, conditions={"dtype": "float16"})
    found = summarize([*(row.record for row in rows), noisy, few, other])

    def find_cells(value: str) -> tuple[dict[str, str], list[str]]:
        (sheet,) = ask(found, pivot=f"row=variant,col=tokens,value={value}").make_sheets()
        return {row[0]: row[2] for row in cells(sheet)}, sheet.legend

    speedups, legend = find_cells("speedup")
    assert (speedups["dyad:4"], speedups["few"], speedups["other"]) == ("2.00x", "2.00x?", "2.00x*")
    assert speedups["noisy"].endswith("x?")
    assert [line[:12] for line in legend] == ["99 % interva", "?: unclear, ", "*: not compa"]
    times, legend = find_cells("total_ns")
    assert (times["dyad:4"], times["few"]) == ("1.50 ms", "1.50 ms?")
    assert times["noisy"].endswith("ms?")
    assert legend == [
        "99 % intervals: ±1.0 %",
        "?: too noisy, or too few samples for an interval",
    ]
    latex = WRITERS["latex"](ask(found, pivot="row=variant,col=tokens,value=speedup"))
    assert r"few &  & 2.00$\times$? \\" in latex
    assert r"\par\footnotesize ?: unclear, the interval" in latex.partition("% ")[2]
    markdown = WRITERS["markdown"](ask(found, pivot="row=variant,col=tokens,value=speedup"))
    assert "- ?: unclear, the interval is too wide for a verdict or there is none" in markdown


def test_published_pivots_say_once_that_there_are_no_intervals() -> None:
    found = ask(summarize(load("dyad")), pivot="row=variant,col=model,value=speedup")
    for sheet in found.make_sheets():
        assert "means, without intervals" in sheet.conditions
        assert not any(line.startswith(("?", "99")) for line in sheet.legend)
        assert not any(cell.endswith("?") for row in cells(sheet) for cell in row)


def test_requests_that_contradict_themselves_are_refused(rows: list[Row]) -> None:
    with pytest.raises(UsageError, match="--columns and --pivot are two tables"):
        ask(rows, columns="variant", pivot="row=variant,col=tokens,value=speedup")
    with pytest.raises(UsageError, match="leave --layout dyad out"):
        ask(rows, columns="variant", layout="dyad")
    with pytest.raises(UsageError, match="the same column in two places"):
        ask(rows, pivot="row=tokens,col=TOKENS,value=speedup")


@pytest.fixture
def results(tmp_path: Path, rows: list[Row]) -> Path:
    path = tmp_path / "demo.jsonl"
    path.write_bytes(b"".join(encode(row.record) + b"\n" for row in rows))
    return path


def test_the_command_answers(results: Path) -> None:
    def table(*options: str) -> str:
        printed = flopwatch("show", results, *options, cwd=results.parent)
        assert (printed.returncode, printed.stderr) == (0, "")
        return printed.stdout

    listed = table("--columns", "help")
    assert "total_half_width" in listed
    assert "fact_tokens" in listed
    chosen = ["--columns", "variant,speedup", "--sort", "-speedup", "--where", "tokens = 512"]
    objects = json.loads(table(*chosen, "--json"))
    assert [each["variant"] for each in objects] == ["dyad:4", "dyad:8", "dense"]
    assert objects[0]["speedup"] == pytest.approx(2)
    assert "demo shape=768x3072, total by tokens" in table(
        "--pivot", "row=variant,col=tokens,value=total_ns"
    )
    refused = flopwatch("show", results, "--where", "tokns > 1", cwd=results.parent)
    assert_refused(refused, "did you mean tokens")


def test_where_no_case_is_left_it_says_so(results: Path) -> None:
    for options in ([], ["--columns", "variant,speedup"]):
        printed = flopwatch("show", results, "--where", "tokens = 7", *options, cwd=results.parent)
        assert (printed.returncode, printed.stdout) == (0, "")
        assert printed.stderr == "flopwatch: no cases\n"
