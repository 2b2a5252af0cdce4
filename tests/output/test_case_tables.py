"""Stored records in, exact text out."""

from __future__ import annotations

import io
import re
import textwrap
import threading
from dataclasses import replace
from operator import itemgetter

import pytest
from rich.console import Console

from flopwatch.analysis.summary import summarize
from flopwatch.output.case_tables import make_sheets
from flopwatch.output.columns import describe_case
from flopwatch.output.console import draw, fit
from flopwatch.output.progress import (
    PlainWatcher,
    TerminalWatcher,
    TimeLeft,
    describe_progress,
    describe_records,
    list_estimates,
    make_watcher,
)
from flopwatch.output.tables import Column, Sheet
from flopwatch.records.record import Record
from flopwatch.runner.durations import Duration, Estimate
from flopwatch.runner.schedule import Group
from flopwatch.runner.worker_death import explain_death, explain_hang
from flopwatch.settings import Settings
from flopwatch.worker.failure import Failure
from flopwatch.worker.sampling import Progress
from tests.conftest import make_record

ROUNDS = list(range(30))
FAILED = {
    "samples_ns": {},
    "rounds": [],
    "calls_per_sample": [],
    "steady": None,
    "stop_reason": None,
}


def sampled(forward_ns: float, backward_ns: float, **changes: object) -> Record:
    """30 samples that scatter by 1 %, the first 10 of them warm-up."""
    wobble = [1 + 0.01 * ((7 * i) % 5 - 2) / 2 for i in ROUNDS]
    content: dict[str, object] = {
        "samples_ns": {
            "forward": [forward_ns * w for w in wobble],
            "backward": [backward_ns * w for w in wobble],
        },
        "rounds": ROUNDS,
        "calls_per_sample": [1] * 30,
        "warmup_samples": 10,
        "baseline": "dense",
    }
    return make_record(**{**content, **changes})


@pytest.fixture
def records() -> list[Record]:
    small, large = {"size": 4, "dtype": "float32"}, {"size": 8, "dtype": "float32"}
    return [
        sampled(1e6, 2e6, case_id="1", variant="dense", params=small, group_id="g1", bytes={"forward": 6e6}),
        sampled(0.5e6, 1e6, case_id="2", variant="fast", params=small, group_id="g1"),
        sampled(
            4e6, 8e6, case_id="3", variant="dense", params=large, group_id="g2", stop_reason="budget", steady=False
        ),
        make_record(
            **FAILED, case_id="4", variant="fast", params=large, group_id="g2", baseline="dense",
            status="oom", message="needs 3 TiB",
        ),
    ]  # fmt: skip


def drawn(records: list[Record], width: int) -> list[str]:
    """The lines of the tables of these records on a terminal."""
    console = Console(file=io.StringIO(), width=width)
    for sheet in make_sheets(summarize(records)):
        for part in fit(sheet, width):
            console.print(draw(part))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_is_exactly_this(records: list[Record]) -> None:
    expected = """\
        demo dtype=float32
        size  variant  forward  backward    total       ±  bandwidth             speedup  verdict
        4     dense    1.00 ms   2.00 ms  3.00 ms  ±1.0 %  2.00 GB/s                      baseline
        4     fast      500 µs   1.00 ms  1.50 ms  ±1.0 %             2.00x [2.00, 2.00]  faster

        8     dense    4.00 ms   8.00 ms  12.0 ms  ±1.0 %                                 baseline
        8     fast                            oom
        cpu, 1 thread, hot cache, allocator retain
    """
    assert drawn(records, 120) == textwrap.dedent(expected).splitlines()
    (sheet,) = make_sheets(summarize(records))
    assert sheet.remarks == [
        "fast size=8 dtype=float32: oom: needs 3 TiB",
        "size=8 dtype=float32: no steady state was detected; times may still be changing",
    ]


@pytest.mark.parametrize(
    ("spread", "target", "missed"),
    [
        (0.001, None, None),
        (0.9, None, "the verdict on fast was not settled"),
        (0.001, 0.02, None),
        (0.3, 0.02, "±2 % was not reached"),
    ],
)
def test_what_was_not_reached_is_said_and_nothing_else(
    records: list[Record], spread: float, target: float | None, missed: str | None
) -> None:
    """That time was up says nothing where all is clear."""
    settings = Settings(target_interval=target)
    dense, fast = (
        replace(record, stop_reason="budget", settings=settings) for record in records[:2]
    )
    noisy = [2e6 * (1 + spread * (n % 3 - 1)) for n in range(len(fast.rounds))]
    fast = replace(fast, samples_ns={"forward": noisy, "backward": [1e6] * len(noisy)})
    (sheet,) = make_sheets(summarize([dense, fast]))
    said = [remark for remark in sheet.remarks if "the time budget was spent" in remark]
    assert bool(said) == (missed is not None)
    assert all(f": {missed} in " in remark for remark in said)


def columns(records: list[Record], width: int) -> str:
    (sheet,) = make_sheets(summarize(records))
    assert max(map(len, drawn(records, width))) <= width
    return " ".join(fit(sheet, width)[0].headings)


def test_a_narrow_terminal_does_without_some_columns(records: list[Record]) -> None:
    assert columns(records, 90) == (
        "size variant forward backward total ± bandwidth speedup verdict"
    )
    assert columns(records, 89) == "size variant forward backward total ± speedup verdict"
    assert columns(records, 70) == "size variant total ± speedup verdict"
    assert columns(records, 52) == "size variant total speedup verdict"


@pytest.fixture
def described(records: list[Record]) -> list[Record]:
    """A group of which everything is known."""
    return [
        replace(
            record,
            flops={"forward": {"float32": n}, "backward": {"float32": 2 * n}},
            facts={"parameters": 30 * n, "layers": 12},
            peak_memory_bytes=int(500 * n),
        )
        for record, n in zip(records[:2], (8e6, 2e6), strict=True)
    ]


def test_what_is_known_of_a_group_is_in_its_table(described: list[Record]) -> None:
    expected = """\
        demo size=4 dtype=float32
                                                                            peak
        variant  forward  backward    total       ±  FLOP/s  bandwidth    memory  parameters  limit             speedup  verdict
        dense    1.00 ms   2.00 ms  3.00 ms  ±1.0 %  8.00 G  2.00 GB/s  3.73 GiB        240M                             baseline
        fast      500 µs   1.00 ms  1.50 ms  ±1.0 %  4.00 G              954 MiB       60.0M  4.00x  2.00x [2.00, 2.00]  faster
        cpu, 1 thread, hot cache, allocator retain
    """
    assert drawn(described, 160) == textwrap.dedent(expected).splitlines()
    row = describe_case(summarize(described)[1])
    assert row["limit"] == 4.0
    assert row["peak_memory_bytes"] == 1_000_000_000
    assert row["facts"]["parameters"] == 60e6


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (121, "forward backward total ± FLOP/s bandwidth peak memory parameters limit"),
        (109, "forward backward total ± FLOP/s bandwidth peak memory limit"),
        (99, "forward backward total ± FLOP/s bandwidth limit"),
        (90, "forward backward total ± peak memory limit"),
        (80, "forward backward total ± limit"),
        (73, "forward backward total ±"),
        (70, "total ± limit"),
        (61, "total ± limit"),
        (54, "total ±"),
        (53, "total limit"),
        (46, "total"),
    ],
)
def test_columns_give_way_by_their_importance(
    described: list[Record], width: int, shown: str
) -> None:
    assert columns(described, width) == f"variant {shown} speedup verdict"


def test_behind_every_text_is_its_value(described: list[Record]) -> None:
    (sheet,) = make_sheets(summarize(described))
    dense, fast = (dict(zip(sheet.headings, cells, strict=True)) for cells in sheet.values[0])
    assert fast["variant"] == "fast"
    assert fast["total"] == pytest.approx(1.5e6)
    assert fast["±"] == pytest.approx(0.01)
    assert fast["speedup"] == pytest.approx(2)
    assert (fast["peak memory"], fast["parameters"], fast["limit"]) == (10**9, 60e6, 4)
    assert (dense["speedup"], dense["verdict"]) == (None, None)
    (narrow,) = fit(sheet, 46)
    assert [len(cells) for cells in narrow.values[0]] == [len(narrow.headings)] * 2


def test_a_sheet_of_texts_has_them_as_values() -> None:
    columns: list[Column[tuple[str, str]]] = [
        Column("a", itemgetter(0), "word"),
        Column("b", itemgetter(1)),
    ]
    sheet = Sheet(columns=columns, items=[[("x", "")]])
    assert sheet.values == [[["x", None]]]


def test_figures_are_those_that_the_interval_supports() -> None:
    wobble = [0.8, 0.9, 1.0, 1.1, 1.2] * 6
    rough = make_record(
        samples_ns={"call": [1.7234e6 * w for w in wobble]},
        rounds=ROUNDS,
        calls_per_sample=[1] * 30,
    )
    (sheet,) = make_sheets(summarize([rough]))
    assert sheet.groups[0][0][sheet.headings.index("time")] == "1.7 ms"


def test_facts_that_do_not_tell_variants_apart_are_no_column(records: list[Record]) -> None:
    """They may well differ between groups."""
    layers = [12, 12, 24, None]
    facts = [{} if n is None else {"layers": float(n)} for n in layers]
    known = [replace(record, facts=f) for record, f in zip(records, facts, strict=True)]
    (sheet,) = make_sheets(summarize(known))
    assert "layers" not in sheet.headings


def test_facts_that_only_some_variants_have_are_a_column(records: list[Record]) -> None:
    known = [records[0], replace(records[1], facts={"compile_s": 19.4}), *records[2:]]
    (sheet,) = make_sheets(summarize(known))
    place = sheet.headings.index("compile (s)")
    assert [cells[place] for cells in sheet.groups[0]] == ["", "19.4"]


def test_facts_that_are_sizes_read_as_such(records: list[Record]) -> None:
    known = [replace(r, facts={"kept_bytes": 2.0**20 * n}) for n, r in enumerate(records, 1)]
    (sheet,) = make_sheets(summarize(known))
    place = sheet.headings.index("kept")
    assert [cells[place] for cells in sheet.groups[0]] == ["1.00 MiB", "2.00 MiB"]


def test_other_axes_make_another_sheet(records: list[Record]) -> None:
    other = sampled(
        1e6, 2e6, case_id="9", variant="dense", params={"model": "small"}, group_id="g9"
    )
    first, second = make_sheets(summarize([records[0], other, *records[1:]]))
    assert first.title == "demo dtype=float32"
    assert len(first.groups) == 2
    assert second.title == "demo model=small"
    assert second.headings[0] == "variant"


def test_a_very_narrow_terminal_has_a_table_a_group(records: list[Record]) -> None:
    expected = """\
        demo dtype=float32 size=4
        variant    total             speedup  verdict
        dense    3.00 ms                      baseline
        fast     1.50 ms  2.00x [2.00, 2.00]  faster
        demo dtype=float32 size=8
        variant    total  speedup  verdict
        dense    12.0 ms           baseline
        fast         oom
        cpu, 1 thread, hot cache, allocator retain
    """
    assert drawn(records, 46) == textwrap.dedent(expected).splitlines()


def test_what_is_not_comparable_is_told_beside_the_verdict(records: list[Record]) -> None:
    dense, fast = (
        replace(record, conditions={"autocast": autocast})
        for record, autocast in zip(records[:2], ("off", "float16"), strict=True)
    )
    (sheet,) = make_sheets(summarize([dense, fast]))
    assert [cells[-1] for cells in sheet.groups[0]] == ["baseline", "faster, not comparable"]
    assert sheet.remarks == [
        "fast size=4 dtype=float32: not comparable: autocast off in the baseline, float16 here"
    ]
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    console.print(draw(sheet))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[32mfaster, not comparable" in console.file.getvalue()


def test_load_is_said_below_a_table(records: list[Record]) -> None:
    busy = {"load": {"background_share": 0.6, "steal_share": 0.04}}
    calm = {"load": {"background_share": 0.02}}
    (sheet,) = make_sheets(
        summarize([replace(records[0], environment=busy), replace(records[1], environment=calm)])
    )
    said = [remark for remark in sheet.remarks if "of the cores" in remark]
    assert said == [
        "other processes took 64 % of the cores meanwhile: trust speedups more than times, or end "
        "them and measure again"
    ]
    for environment in (calm, {"load": "high"}, {"load": {"background_share": "64 %"}}):
        odd = [replace(record, environment=environment) for record in records]
        (sheet,) = make_sheets(summarize(odd))
        assert not any("of the cores" in remark for remark in sheet.remarks)


def test_a_note_that_cases_share_is_told_once(records: list[Record]) -> None:
    noted = [
        replace(record, notes=notes)
        for record, notes in zip(records, [["odd"], ["odd", "cold"], [], []], strict=True)
    ]
    (sheet,) = make_sheets(summarize(noted))
    assert sheet.remarks[-2:] == [
        "dense, fast size=4 dtype=float32: odd",
        "fast size=4 dtype=float32: cold",
    ]
    (sheet,) = make_sheets(summarize([replace(record, notes=["odd"]) for record in records]))
    assert sheet.remarks[-1] == "dense, fast in 2 groups: odd"


def test_markup_in_a_record_is_text() -> None:
    odd = make_record(variant="[red]x", baseline="[red]x", suite="[bold]s", params={"a": "[/]"})
    text = "\n".join(drawn([odd], 120))
    assert "[red]x" in text
    assert "[bold]s" in text


def test_a_record_without_samples_is_a_row_too() -> None:
    (row,) = summarize([make_record(**FAILED)])
    assert row.total_ns is None
    assert make_sheets([row])[0].groups


def test_speedups_do_not_cross_runs(records: list[Record]) -> None:
    other_run = sampled(
        0.5e6, 1e6, case_id="2", variant="fast", params=records[0].params, group_id="g1", run_id="later",
        measured_at="2026-02-01T00:00:00+00:00",
    )  # fmt: skip
    rows = summarize([*records, other_run])
    newest = next(row for row in rows if row.record.case_id == "2")
    assert newest.record.run_id == "later"
    assert newest.speedup is None


def test_what_is_not_comparable_stands_in_tables_of_its_own(records: list[Record]) -> None:
    cold = sampled(
        9e6, 9e6, case_id="1", variant="dense", params=records[0].params, group_id="g1", run_id="later",
        settings=Settings(cache="cold"), measured_at="2026-02-01T00:00:00+00:00",
    )  # fmt: skip
    hot_sheet, cold_sheet = make_sheets(summarize([*records, cold]))
    assert hot_sheet.groups == make_sheets(summarize(records))[0].groups
    assert cold_sheet.conditions == "cpu, 1 thread, cold cache, allocator retain"
    assert len(cold_sheet.groups) == 1


def test_what_was_interrupted_does_not_hide_what_was_measured(records: list[Record]) -> None:
    later = "2026-02-01T00:00:00+00:00"
    skipped = make_record(
        **FAILED, case_id="1", group_id="g1", status="skipped", run_id="later", params=records[0].params,
        variant="dense", baseline="dense", measured_at=later,
    )  # fmt: skip
    assert summarize([*records, skipped])[0].record.status == "ok"
    assert summarize([skipped])[0].record.status == "skipped"


def test_json_rows_are_plain(records: list[Record]) -> None:
    row = describe_case(summarize(records)[1])
    assert row["speedup"] == pytest.approx({"median": 2.0, "low": 2.0, "high": 2.0})
    assert row["verdict"] == "faster"
    assert row["samples"] == 20
    assert row["phases_ns"]["forward"]["median"] == pytest.approx(0.5e6)


def test_deaths_are_explained() -> None:
    assert explain_death(-9, "sampling", "").status == "crash"
    assert explain_death(-9, "sampling", "", "it held 8 of 9 GiB").status == "oom"
    assert explain_death(-6, "build", "terminate called: bad_alloc\n") == Failure(
        "crash", "died with SIGABRT during build (terminate called: bad_alloc)"
    )
    assert explain_death(3, "check", "") == Failure("crash", "left with exit code 3 during check")
    stack = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/home/me/mine.py", line 12 in forward\n'
        '  File "/x/flopwatch/engine/sampling.py", line 1 in run\n'
    )
    assert explain_death(-11, "sampling", stack).message == (
        "died with SIGSEGV during sampling at mine.py:12 in forward"
    )
    assert explain_hang(5, "build", stack) == (
        "no progress for 5 s during build at mine.py:12 in forward; "
        "raise --timeout if it is only slow"
    )


GROUP = Group(suite="demo", baseline="a", params={"size": 4}, variants=("a", "b"))
ESTIMATE = Estimate(cases=2, prior={GROUP.id: Duration(overhead_s=10.0, sampling_s=20.0)}, rates={})


def make_progress(
    rounds: int, warmup_rounds: int | None = None, half_width: float | None = None
) -> Progress:
    return Progress(
        rounds=rounds,
        warmup_rounds=warmup_rounds,
        steady=None,
        half_width=half_width,
        elapsed_s=1.0,
        budget_s=10.0,
    )


def test_plain_progress_is_a_line_a_group() -> None:
    console = Console(file=io.StringIO(), width=80)
    watcher = make_watcher(console)
    assert type(watcher) is PlainWatcher
    with watcher:
        other = replace(GROUP, params={"size": 8})
        watcher.begin([GROUP, other], Settings(), ESTIMATE)
        watcher.begin_group(GROUP)
        watcher.progress(make_progress(3), {})
        watcher.end_group(GROUP, [make_record(), make_record(status="oom", **FAILED)])
    assert isinstance(console.file, io.StringIO)
    line = console.file.getvalue()
    assert line.startswith("1/2 size=4: 1 ok, 1 oom (20 rounds), about ")
    assert line.endswith("left\n")


def test_a_log_hears_of_a_long_group_now_and_then_and_a_quiet_one_never() -> None:
    def watch(*, is_quiet: bool) -> list[str]:
        clock, console = Ticks(), Console(file=io.StringIO(), width=80)
        watcher = PlainWatcher(console, is_quiet=is_quiet, now_s=clock)
        watcher.begin([GROUP], Settings(), ESTIMATE)
        watcher.begin_group(GROUP)
        for _ in range(4):
            clock.now_s += 20.0
            watcher.progress(make_progress(30, 10, 0.031), {})
        watcher.end_group(GROUP, [make_record()])
        watcher.remark("as expected")
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    first, second, *rest = watch(is_quiet=False)
    assert first.startswith("1/1 size=4: ±3.1 % (aim: a settled verdict), about ")
    assert second.startswith("1/1 size=4: ±3.1 %")
    assert rest == ["1/1 size=4: 1 ok (20 rounds)", "as expected"]
    assert watch(is_quiet=True) == []


class Ticks:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watch_terminal(width: int) -> str:
    """What a terminal has got, at the end of a group's sampling."""
    clock = Ticks()
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    watcher = TerminalWatcher(console, now_s=clock)
    groups = [GROUP, replace(GROUP, params={"size": 8})]
    records = {"a": sampled(1e6, 2e6, variant="a", baseline="a"),
               "b": sampled(0.5e6, 1e6, variant="b", baseline="a"),
               "c": make_record(variant="c", status="oom", **FAILED)}  # fmt: skip
    threads = set(threading.enumerate())  # other tests may have left some
    with watcher:
        watcher.begin(groups, Settings(), ESTIMATE)
        watcher.begin_group(GROUP)
        clock.now_s += 1.0
        watcher.progress(make_progress(30, 10, 0.031), records)
        assert set(threading.enumerate()) <= threads, "nothing draws while something is measured"
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terminal_progress_shows_variants_precision_and_time_left() -> None:
    drawn = watch_terminal(80)
    assert "1/2 size=4: ±3.1 % (aim: a settled verdict)" in drawn
    assert "a   3.00 ms" in drawn
    assert "b   1.50 ms   2.00x" in drawn
    assert "about 20 to 45 s left" in drawn


def test_terminal_progress_is_cut_to_the_width_and_gone_at_the_end() -> None:
    drawn = watch_terminal(30)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", drawn)]
    assert max(map(len, lines)) <= 30
    assert any(line.endswith("…") for line in lines)
    assert drawn.endswith("\x1b[2K")


def test_before_warm_up_is_over_no_variant_is_said_to_be_faster() -> None:
    records = {"a": sampled(1e6, 2e6, variant="a", baseline="a"),
               "b": sampled(0.5e6, 1e6, variant="b", baseline="a")}  # fmt: skip
    assert list_estimates(make_progress(30), records) == ["a   3.00 ms", "b   1.50 ms"]
    many = {f"v{n}": replace(records["b"], variant=f"v{n}") for n in range(20)}
    assert list_estimates(make_progress(30, 10), many)[-1] == "and 12 more"


def test_a_terminal_without_a_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_watcher(Console(file=io.StringIO(), force_terminal=True))) is PlainWatcher


def test_progress_sentences() -> None:
    assert describe_progress(make_progress(7), 0.02) == "warming up, round 7"
    assert describe_progress(make_progress(7, 3), 0.02) == "too few samples (aim: ±2 %)"
    assert describe_progress(make_progress(20, 3, 1552.6), 0.02) == "too noisy (aim: ±2 %)"
    assert describe_records([make_record(), make_record()]) == "2 ok (20 rounds)"


def test_time_left_learns_from_the_groups_so_far() -> None:
    now_s = 0.0
    groups = [replace(GROUP, params={"size": size}) for size in range(8)]
    prior = {group.id: Duration(overhead_s=8.0, sampling_s=2.0, least_rounds=8) for group in groups}
    left = TimeLeft(Estimate(cases=8, prior=prior, rates={}), lambda: now_s)
    assert left.text() == "about 55s to 2m left"
    for group in groups[:4]:
        left.begin_group(group)
        now_s += 40.0
        left.end_group(group, [make_record()])
    assert left.text() == "about 2m20s left"
    left.begin_group(groups[4])
    now_s += 20.0
    assert left.text() == "about 2m left"
    now_s += 180.0  # far longer than expected: some of it is still to come
    assert left.text() == "about 2m30s left"
    sampled = Progress(
        rounds=9, warmup_rounds=None, steady=None, half_width=None, elapsed_s=14.0, budget_s=20.0
    )
    left.observe(sampled)  # what its rounds take, and its budget, bound what is still to come
    assert left.text() == "about 2m left"
    now_s += 10.0
    left.observe(sampled)  # a long round goes on
    assert left.text() == "about 1m55s left"
    left.end_group(groups[4], [make_record(status="oom", **FAILED)])
    assert left.text() == "about 1m45s left"
