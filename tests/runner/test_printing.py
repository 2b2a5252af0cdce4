"""Names from records on a terminal: none of them moves its cursor or turns its words."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from flopwatch.cli.main import main
from flopwatch.output.page import render_page
from flopwatch.records.record import encode
from tests.conftest import make_record

EVIL = "x\x1b[2J\x1b]0;t\x07\x9b1m\u202egnp\u2066y\u200f\u061c\nz"
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FAILED = {"samples_ns": {}, "rounds": [], "calls_per_sample": [], "status": "crash"}


@pytest.fixture
def results(tmp_path: Path) -> tuple[str, str]:
    records = [
        make_record(
            case_id=f"{EVIL} {number}", group_id=f"g{size}", suite=EVIL, variant=f"{EVIL} {number}",
            baseline=f"{EVIL} 0", params={EVIL: EVIL, "tokens": size},
            samples_ns={EVIL: [1e6 * (1 + number)] * 40, "b": [2e6 * (1 + number)] * 40},
            rounds=[*range(40)], calls_per_sample=[1] * 40, warmup_samples=20, notes=[EVIL],
            conditions={EVIL: f"{EVIL} {number}"},
        )
        for number in range(2)
        for size in (4, 8)
    ]  # fmt: skip
    lost = make_record(
        case_id="l", suite=EVIL, variant="lost", params={EVIL: 1}, message=EVIL, **FAILED
    )
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_bytes(b"".join(encode(record) + b"\n" for record in [*records, lost]))
    slower = [
        make_record(
            case_id=r.case_id, group_id=r.group_id, run_id="n", suite=r.suite, variant=r.variant,
            baseline=r.baseline, params=r.params, rounds=r.rounds,
            calls_per_sample=r.calls_per_sample, warmup_samples=20,
            samples_ns={name: [2 * ns for ns in times] for name, times in r.samples_ns.items()},
        )
        for r in records[:1]
    ]  # fmt: skip
    broken = make_record(
        case_id=records[1].case_id, group_id=records[1].group_id, suite=EVIL,
        variant=records[1].variant, params=records[1].params, message=EVIL, **FAILED,
    )  # fmt: skip
    new.write_bytes(b"".join(encode(record) + b"\n" for record in [*slower, broken]))
    return str(old), str(new)


def run(*words: str) -> None:
    with pytest.raises(SystemExit):
        main(words)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "OLD"),
        ("compare", "OLD", "NEW"),
        ("compare", "OLD", "NEW", "--fail-if-slower", "3%", "--despite", "all"),
        ("check", "OLD"),
        ("show", "OLD", "--warmup"),
        ("show", "OLD"),
        ("explain", "OLD"),
        ("explain", "OLD", "NEW"),
        ("compare", "OLD", "--break-even"),
        ("compare", "OLD", "--break-even", "--variant", "none"),
        ("query", "SELECT suite, variant, params FROM records", "OLD"),
        ("query", "SELECT suite, variant, params FROM records", "OLD", "--format", "csv"),
        ("show", "OLD", "--columns", "suite,variant,reason"),
        ("show", "OLD", "--format", "csv"),
        ("show", "OLD", "--format", "markdown"),
        ("show", "OLD", "--layout", "dyad"),
        ("show", "OLD", "--columns", "help"),
    ],
    ids=" ".join,
)
def test_no_name_steers_a_terminal(
    words: tuple[str, ...], results: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = results
    run(*({"OLD": old, "NEW": new}.get(word, word) for word in words))
    told = capsys.readouterr()
    # Lines of CSV end as its standard has it.
    text = told.out.replace("\r\n", "\n") + told.err
    assert text
    assert ODD.findall(text) == []


def test_notes_of_an_export(results: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    run("export", results[0], "--format", "pyperf", "-o", f"{results[0]}.json")
    err = capsys.readouterr().err
    assert "lost" in err
    assert ODD.findall(err) == []


def test_csv_keeps_lines_in_quotes(
    results: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("show", results[0], "--columns", "variant", "--format", "csv")
    _, first, *_ = csv.reader(io.StringIO(capsys.readouterr().out, newline=""))
    assert first == ["x [2J ]0;t  1m gnp y  \nz 0"]


def test_a_page_has_nothing_that_turns_words() -> None:
    page = render_page([make_record(variant=EVIL, suite=EVIL, params={EVIL: EVIL}, notes=[EVIL])])
    assert "gnp" in page
    assert ODD.findall(page) == []
