"""What a terminal says first: sentences, one narrow table, conditions and warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.output.answers import (
    MOST_ROWS,
    MOST_WARNINGS,
    answer_suite,
    answer_suites,
    list_warnings,
)
from flopwatch.output.console import NARROW, print_answers
from flopwatch.records.published import load
from flopwatch.records.record import Record
from tests.conftest import make_record
from tests.output.test_case_tables import FAILED, sampled


def case(variant: str, time_ns: float, size: int = 4, **more: Any) -> Record:
    return sampled(
        time_ns, 2 * time_ns, case_id=f"{variant}{size}", variant=variant, baseline="dense",
        params={"size": size, "dtype": "float32"}, group_id=f"g{size}", **more,
    )  # fmt: skip


def noisy(variant: str, size: int = 4) -> Record:
    times_ns = [1e6 * (1 + n % 7) for n in range(30)]
    return replace(case(variant, 1e6, size), samples_ns={"forward": times_ns, "backward": times_ns})


def answer(*records: Record) -> list[str]:
    return answer_suite(summarize(records))


class TestSentences:
    def test_the_best_variant_comes_first_with_its_interval(self) -> None:
        assert answer(case("dense", 4e6), case("fast", 1e6), case("other", 2e6)) == [
            "fast is 4.00x [4.00, 4.00] faster than dense."
        ]

    def test_several_cases_have_a_range_and_a_place(self) -> None:
        records = [
            case("dense", 4e6),
            case("fast", 2e6),
            case("dense", 9e6, 8),
            case("fast", 3e6, 8),
        ]
        assert answer(*records) == [
            "fast is 2.00x [2.00, 2.00] to 3.00x [3.00, 3.00] faster than dense at size=8; faster "
            "in 2 of 2 cases."
        ]

    def test_a_limit_is_named(self) -> None:
        flops = [{p: {"float32": n} for p in ("forward", "backward")} for n in (8e6, 2e6)]
        dense, fast = case("dense", 4e6, flops=flops[0]), case("fast", 2e6, flops=flops[1])
        assert answer(dense, fast) == [
            "fast is 2.00x [2.00, 2.00] faster than dense (50 % of the 4.00x that its FLOPs allow)."
        ]

    def test_a_variant_that_wins_nowhere_is_not_called_faster(self) -> None:
        found = answer(case("dense", 2e6), case("slow", 4e6), case("slower", 8e6))
        assert found == [
            "None of 2 variants is clearly faster than dense: the first, slow at 0.50x "
            "[0.50, 0.50], is slower."
        ]

    def test_what_is_unclear_or_failed_is_counted(self) -> None:
        failed = replace(case("broken", 1e6), status="oom", message="needs 3 TiB", **FAILED)
        found = answer(case("dense", 4e6), case("fast", 1e6), noisy("odd"), failed)
        assert found[0].startswith("fast is 4.00x")
        assert found[1].startswith("1 of 2 comparisons is unclear; ")
        assert found[1].endswith("; 1 case failed.")

    def test_different_winners_are_counted(self) -> None:
        records = [
            case("dense", 4e6), case("fast", 2e6), case("other", 3e6),
            case("dense", 4e6, 8), case("fast", 3e6, 8), case("other", 2e6, 8),
        ]  # fmt: skip
        assert answer(*records)[1] == "Fastest: fast in 1 and other in 1 of 2 groups."

    def test_a_break_even_is_named(self) -> None:
        records = [
            sampled(time_ns, time_ns, case_id=f"{variant}{tokens}", group_id=f"g{tokens}",
                    variant=variant, baseline="dense", params={"tokens": tokens})
            for tokens, int8_ns in ((32, 8e6), (64, 2e6), (128, 1e6))
            for variant, time_ns in (("dense", 4e6), ("int8", int8_ns))
        ]  # fmt: skip
        assert answer(*records)[1] == "int8 is faster from 64 tokens on; at 32 it is slower."

    def test_of_many_series_the_range_is_named(self) -> None:
        own = [row for row in summarize(load("switchback")) if not row.in_parts]
        assert answer_suite(own)[1] == (
            "36 of 36 series break even, from 2048 to 16384 tokens on: `flopwatch compare "
            "--break-even` lists them."
        )

    def test_a_training_job_has_its_throughput_and_what_mfu_is_of(self) -> None:
        (sentence,) = answer_suite(summarize(load("mosaic")))
        assert "has the highest throughput: 2.89M tokens/s, 23.1 % MFU (exact, peak " in sentence

    def test_where_nothing_was_compared_there_is_the_time(self) -> None:
        assert answer(case("dense", 1e6)) == ["dense takes 3.00 ms ±1.0 %."]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ["dyad", "mosaic", "switchback", "cs336"])
def test_every_line_fits(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_answers(summarize(load(name)))
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert max(map(len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)


def test_a_pipe_gets_no_wider_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_answers(summarize(load("mosaic")))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= NARROW


def test_the_answer_is_exactly_this(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    records = [case("dense", 4e6, peak_memory_bytes=2**20), case("fast", 2e6)]
    print_answers(summarize(records), more="flopwatch show a.jsonl -v")
    assert capsys.readouterr().out.splitlines() == [
        "demo size=4 dtype=float32",
        "fast is 2.00x [2.00, 2.00] faster than dense.",
        "",
        "variant     time             speedup  verdict",
        "dense    12.0 ms                      baseline",
        "fast     6.00 ms  2.00x [2.00, 2.00]  faster",
        "  99 % intervals: ±1.0 %",
        "  more with flopwatch show a.jsonl -v: forward, backward, ±, peak memory",
        "",
        "cpu, 1 thread, hot cache, allocator retain",
    ]
    print_answers(summarize(records), is_quiet=True)
    assert capsys.readouterr().out.splitlines() == [
        "demo size=4 dtype=float32",
        "fast is 2.00x [2.00, 2.00] faster than dense.",
    ]


def test_conditions_are_said_once_for_all_suites(capsys: pytest.CaptureFixture[str]) -> None:
    others = [replace(case("dense", 1e6, n), suite="other") for n in (4, 8)]
    print_answers(summarize([case("dense", 4e6), case("fast", 2e6), *others]))
    assert capsys.readouterr().out.count("cpu, 1 thread") == 1


def test_different_conditions_stand_below_their_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = case("dense", 4e6)
    cold = replace(record, settings=replace(record.settings, cache="cold"))
    print_answers(summarize([record, cold]))
    lines = capsys.readouterr().out.splitlines()
    assert "  cpu, 1 thread, hot cache, allocator retain" in lines
    assert "  cpu, 1 thread, cold cache, allocator retain" in lines


def test_warnings_are_a_line_a_kind_and_few() -> None:
    unsteady = [
        case(v, t, n, steady=False) for n in (4, 8) for v, t in (("dense", 4e6), ("b", 1e6))
    ]
    failures = [
        make_record(**FAILED, case_id=f"x{n}", group_id=f"x{n}", variant="v", params={"n": n},
                    status="oom", message=f"needs {n} TiB")
        for n in range(9)
    ]  # fmt: skip
    (line,) = (one for one in list_warnings(summarize(unsteady)) if "unsteady" in one)
    assert line.startswith("unsteady (4 cases): no steady state in ")
    shown = list_warnings(summarize([*unsteady, *failures]))
    assert len(shown) == MOST_WARNINGS + 1
    assert shown[0] == "v n=0: oom: needs 0 TiB"
    assert shown[-1].startswith("and ")


def test_a_long_table_is_cut_between_groups(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = range(1, 20)
    records = [case(v, t, n) for n in sizes for v, t in (("dense", 4e6), ("b", 2e6), ("c", 1e6))]
    print_answers(summarize(records))
    out = capsys.readouterr().out
    whole = MOST_ROWS // 3 * 3
    assert f"the first {whole} of {3 * len(sizes)} rows; -v has all" in out


def test_what_is_in_parts_is_left_to_the_long_tables() -> None:
    parts = replace(case("parts", 1e6), kind="parts")
    (found,) = answer_suites(summarize([case("dense", 4e6), case("fast", 2e6), parts]))
    assert [row.record.variant for row in found.sheets[0].items[0]] == ["dense", "fast"]


def test_unfair_comparisons_have_a_mark() -> None:
    dense = case("dense", 4e6, conditions={"autocast": "off"})
    fast = case("fast", 2e6, conditions={"autocast": "float16"})
    (found,) = answer_suites(summarize([dense, fast]))
    assert found.sheets[0].groups[0][1][-1] == "faster*"
    assert "*: not comparable; -v says why" in found.sheets[0].legend
    assert "(not comparable)" in found.sentences[0]
