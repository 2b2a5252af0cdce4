"""What the first steps cost: hand-made records in, exact numbers and text out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.analysis.warmup import count_calls, study
from flopwatch.output.warmup_tables import answer_warmup, describe_costs
from flopwatch.records.record import Record, decode, encode
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record

STEPS = {
    "model": "small",
    "batch": 4,
    "context": 128,
    "precision": "fp32",
    "optimizer": "adamw",
}
FAILED = {
    "samples_ns": {}, "rounds": [], "calls_per_sample": [], "warmup_samples": 0, "steady": None,
    "stop_reason": None,
}  # fmt: skip
WOBBLE = (-1.0, 1.0)


def step_record(
    variant: str = "eager",
    model: str = "small",
    *,
    steady_ms: tuple[float, float, float] = (100.0, 200.0, 50.0),
    first_ms: tuple[float, float, float] = (0.0, 0.0, 0.0),
    second_ms: float = 0.0,
    **changes: object,
) -> Record:
    """30 steps, 10 of them warm-up, that go up and down by 1 %: the first took longer by so much in
    each phase, the second in its forward pass."""
    params = {**STEPS, "model": model, **{a: changes.pop(a) for a in STEPS if a in changes}}
    times_ms = {
        phase: [ms * (1 + WOBBLE[i % 2] / 100) for i in range(30)]
        for phase, ms in zip(("forward", "backward", "optimizer"), steady_ms, strict=True)
    }
    for series, extra_ms in zip(times_ms.values(), first_ms, strict=True):
        series[0] += extra_ms
    times_ms["forward"][1] += second_ms
    content: dict[str, object] = {
        "case_id": case_id("steps", variant, params),
        "group_id": group_id("steps", params),
        "suite": "steps",
        "layout": "cs336",
        "variant": variant,
        "baseline": "eager",
        "params": params,
        "samples_ns": {phase: [1e6 * ms for ms in series] for phase, series in times_ms.items()},
        "rounds": list(range(30)),
        "calls_per_sample": [1] * 30,
        "warmup_samples": 10,
    }
    return make_record(**{**content, **changes})


def told(record: Record) -> str:
    """What is said of one record's first steps, without its name; nothing is empty."""
    return "".join(describe_costs(study(record), [])).partition(": ")[2]


def conclude(*records: Record) -> str:
    return answer_warmup(summarize(records)).answer


def find_cells(*records: Record) -> dict[str, list[str]]:
    """Of the only table, by heading."""
    (sheet,) = answer_warmup(summarize(records)).sheets
    rows = [cells for group in sheet.groups for cells in group]
    return dict(zip(sheet.headings, map(list, zip(*rows, strict=True)), strict=True))


def test_windows_follow_the_discarded_steps_and_are_equally_long() -> None:
    record = step_record(first_ms=(1000.0, 0.0, 0.0))
    found = study(record)
    forward_s = [ns / 1e9 for ns in record.samples_ns["forward"]]
    assert found.steps == 10
    assert found.steady is not None
    windows = [*found.windows, found.steady]
    assert [window.discarded for window in windows] == [0, 1, 2, 5, 10]
    for window in windows:
        chosen = forward_s[window.discarded : window.discarded + 10]
        assert window.phases["forward"].mean_s == pytest.approx(fmean(chosen))
        assert window.phases["forward"].std_s == pytest.approx(stdev(chosen))
    assert windows[0].phases["forward"].mean_s == pytest.approx(0.2)
    assert windows[0].total.mean_s == pytest.approx(0.45)
    assert windows[1].total.mean_s == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("taken", "steps", "discarded"),
    [(12, 7, [0, 1, 2, 5]), (9, 5, [0, 1, 2]), (6, 5, [0, 1]), (4, 0, [])],
)
def test_with_few_samples_there_are_fewer_windows_or_shorter_ones(
    taken: int, steps: int, discarded: list[int]
) -> None:
    record = step_record(
        samples_ns={"forward": [1e9] * taken},
        rounds=list(range(taken)),
        calls_per_sample=[1] * taken,
        warmup_samples=min(4, taken),
    )
    found = study(record)
    assert [window.discarded for window in found.windows] == discarded
    assert found.steps == steps
    assert (found.steady is None) == (taken < 9)


@pytest.mark.parametrize(
    ("first_ms", "second_ms", "enough"),
    [
        (0.0, 0.0, 0),
        (30.0, 0.0, 0),  # moves the mean by less than 1 %
        (60.0, 0.0, 1),  # 1.7 % of the mean, but 5 times the standard deviation
        (1000.0, 0.0, 1),
        (1000.0, 500.0, 2),
        (0.0, 500.0, 2),
    ],
)
def test_enough_is_where_mean_and_deviation_are_the_steady_ones(
    first_ms: float, second_ms: float, enough: int
) -> None:
    assert study(step_record(first_ms=(first_ms, 0, 0), second_ms=second_ms)).enough == enough


def test_a_case_that_warms_up_slowly_needs_all_steps() -> None:
    slow = [1e9 * (2.0 - 0.05 * i) if i < 10 else 1e9 for i in range(30)]
    assert study(step_record(samples_ns={"forward": slow})).enough == 10


def test_an_early_deviation_is_one_whichever_way() -> None:
    """A time that still rises has not warmed up either."""
    fast = [0.5e9 if i < 3 else 1e9 for i in range(30)]
    assert study(step_record(samples_ns={"forward": fast})).enough == 3


@pytest.mark.parametrize(("wobble", "enough"), [(0.01, 2), (0.10, 0)])
def test_a_difference_that_chance_explains_is_none(wobble: float, enough: int) -> None:
    """The first two steps took a quarter longer: that makes 5 % of a mean."""
    noisy = [1e9 * (1 + wobble * (-1) ** i) * (1.25 if i < 2 else 1.0) for i in range(30)]
    assert study(step_record(samples_ns={"forward": noisy})).enough == enough


def test_the_first_step_is_divided_into_what_can_be_told() -> None:
    record = step_record(
        "compiled",
        first_ms=(9000.0, 20.0, 40.0),
        second_ms=500.0,
        facts={"compile_s": 8.5},
        first_call_page_faults=25_600,
    )
    costs = study(record).costs
    assert costs is not None
    assert costs.measured_s == pytest.approx(0.35)
    assert costs.optimizer_s == pytest.approx(0.0395)  # the first step is 1 % below the median
    assert costs.excess_s == pytest.approx(9.0565)
    assert costs.rest_s == pytest.approx(9.0565 - 8.5 - 0.0395)
    assert costs.later_s == pytest.approx(0.5 + 0.0035)
    assert costs.later_steps == 1
    assert told(record) == (
        "the first step took 9.06 s more than a steady one (25,600 new pages of memory): 8.50 s "
        "for compilation, 39.5 ms for the optimizer's first step, 517 ms for the rest; 1 of the "
        "next 9 steps took longer than any steady one, 503 ms more in all"
    )
    assert conclude(record) == "discard 2 steps: one is not enough in 1 of 1 case"


def test_what_is_not_known_is_left_out() -> None:
    """A record may have neither facts nor page faults; this one has no optimizer either."""
    record = step_record(first_ms=(1000.0, 0.0, 0.0))
    content = json.loads(encode(record))
    del content["first_call_page_faults"], content["facts"], content["samples_ns"]["optimizer"]
    old = decode(json.dumps(content).encode())
    assert told(old) == "the first step took 997 ms more than a steady one"
    assert conclude(old) == "discard one step: that is enough in 1 case"


def test_an_optimizer_that_is_not_slower_at_first_is_not_blamed() -> None:
    assert study(step_record(first_ms=(1000.0, 0.0, 0.5))).costs.optimizer_s is None  # type: ignore[union-attr]


def test_more_compilation_than_excess_leaves_no_rest() -> None:
    """It was then not all paid in the first step, and nothing is left to be told apart."""
    record = step_record("compiled", first_ms=(1000.0, 0, 0), facts={"compile_s": 1.5})
    assert study(record).costs.rest_s is None  # type: ignore[union-attr]
    assert "for the rest" not in told(record)


def test_a_first_step_that_costs_nothing_is_not_worth_a_word() -> None:
    late = told(step_record(second_ms=500.0))
    assert late == "1 of the next 9 steps took longer than any steady one, 503 ms more in all"
    assert told(step_record(first_call_page_faults=3)) == ""
    assert conclude(step_record()) == "no step has to be discarded in 1 case"


def test_a_slow_first_step_is_discarded_however_much_the_others_vary() -> None:
    """679 ms against 64 ms, where steady steps take from 20 to 700 ms: of their mean, the first one
    alone says nothing."""
    steady_ms = [64.0, 700.0, 20.0, 64.0, 300.0]
    noisy = [1e6 * (679.0 if i == 0 else steady_ms[i % 5 - 1]) for i in range(31)]
    record = step_record(
        samples_ns={"forward": noisy}, rounds=list(range(31)), calls_per_sample=[1] * 31
    )
    found = study(record)
    assert (found.enough, found.at_least, found.is_sure) == (1, 1, False)
    assert conclude(record) == (
        "discard one step: that is enough in 1 case, though times vary too much to be sure in 1 of "
        "them"
    )
    cells = find_cells(record)
    assert (cells["first step"], cells["steady"], cells["discard"]) == (
        ["679 ms"], ["64.0 ms"], ["1?"]
    )  # fmt: skip


def test_without_a_steady_state_there_is_no_answer_but_what_was_paid() -> None:
    unsteady = step_record(steady=False, first_ms=(1000.0, 0, 0))
    found = study(unsteady)
    assert (found.steady, found.enough, len(found.windows)) == (None, None, 4)
    assert told(unsteady) == "the first step took 996 ms more than a measured one"
    assert conclude(unsteady) == (
        "no steady state is known of 1 case: discard 1 step there at the least"
    )
    cells = find_cells(unsteady)
    assert (cells["steady"], cells["discard"]) == (["350 ms?"], ["at least 1"])
    assert conclude(step_record(steady=False)) == "no steady state is known of 1 case"


def test_too_few_measured_steps_give_no_answer() -> None:
    short = replace(step_record(first_ms=(1000.0, 0, 0)), warmup_samples=27)
    assert told(short) == ""
    assert find_cells(short)["discard"] == ["unknown"]


def test_untimed_calls_and_loops_count_as_calls() -> None:
    short = step_record(steady_ms=(0.1, 0.1, 0.1), calls_per_sample=[1, 1, 10, *[20] * 27])
    assert [count_calls(short, n) for n in (0, 1, 2, 5)] == [0, 2, 4, 4 + 11 + 21 + 21]
    cold = replace(short, calls_per_sample=[1] * 30, settings=Settings(cache="cold"))
    assert [count_calls(cold, n) for n in (0, 1, 2, 5)] == [0, 1, 2, 5]
    long = step_record()  # its samples take more than 0.2 s
    assert [count_calls(long, n) for n in (0, 1, 2, 5)] == [0, 1, 2, 5]
    for record, has_means in ((short, True), (cold, False), (long, False)):
        (sheet,) = answer_warmup(summarize([record])).sheets
        assert any("means of several calls" in remark for remark in sheet.remarks) == has_means


def test_there_is_one_table_with_units_that_fit() -> None:
    records = [
        step_record(first_ms=(1000.0, 0.0, 20.0)),
        step_record("compiled", first_ms=(9000.0, 0.0, 0.0), second_ms=500.0),
        step_record(model="medium", steady_ms=(0.001, 0.002, 0.0005)),
        step_record(model="xl", **FAILED, status="oom", message="needs 41 GiB"),
        step_record("compiled", "xl", **FAILED, status="crash", message="died"),
    ]
    assert find_cells(*records) == {
        "model": ["small", "small", "medium"],
        "variant": ["eager", "compiled", "eager"],
        "first step": ["1.37 s", "9.35 s", "3.46 µs"],
        "0 discarded": ["452 ms ± 71 %", "1.30 s ± 218 %", "3.50 µs ± 1 %"],
        "1 discarded": ["350 ms ± 1 %", "400 ms ± 40 %", "3.50 µs ± 1 %"],
        "2 discarded": ["350 ms ± 1 %", "350 ms ± 1 %", "3.50 µs ± 1 %"],
        "5 discarded": ["350 ms ± 1 %", "350 ms ± 1 %", "3.50 µs ± 1 %"],
        "steady": ["350 ms", "350 ms", "3.50 µs"],
        "discard": ["1", "2", "0"],
    }
    shared = "batch=4 context=128 precision=fp32 optimizer=adamw"
    assert conclude(*records) == (
        "discard 2 steps: one is not enough in 1 of 3 cases; not in the table: eager model=xl "
        f"{shared} (oom), compiled model=xl {shared} (crash)"
    )
    (sheet,) = answer_warmup(summarize(records)).sheets
    assert sheet.title == f"warm-up of steps {shared}"
    assert sheet.remarks[0].startswith("eager model=small: the first step took 1.02 s more")


def test_many_cases_are_not_told_one_by_one() -> None:
    records = [step_record(model=f"m{n}", first_ms=(1000.0, 0, 0)) for n in range(12)]
    (sheet,) = answer_warmup(summarize(records)).sheets
    assert sum("the first step took" in remark for remark in sheet.remarks) == 8
    assert sheet.remarks[8] == "and 4 more like that (--json has all)"


def test_other_suites_have_their_own_axes() -> None:
    found = answer_warmup(
        summarize(
            [
                make_record(case_id="1", params={"size": 4}),
                make_record(case_id="2", params={"size": 8}),
                make_record(case_id="3", params={"tokens": 9}),
            ]
        )
    )
    assert [sheet.headings[:2] for sheet in found.sheets] == [
        ["size", "variant"],
        ["variant", "first step"],
    ]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    records = [
        step_record(first_ms=(1000.0, 0.0, 20.0)),
        step_record(model="xl", **FAILED, status="oom", message="needs 41 GiB"),
    ]
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def test_the_command_prints_tables_or_json(results: Path) -> None:
    printed = flopwatch("show", results, "--warmup", cwd=results.parent)
    assert (printed.returncode, printed.stderr) == (0, "")
    answer, title, *_ = printed.stdout.splitlines()
    assert answer.startswith("  discard one step: that is enough in 1 case; not in the table: ")
    assert title.startswith("warm-up of steps ")
    assert "1.37 s" in printed.stdout
    as_json = flopwatch("show", results, "--warmup", "--json", cwd=results.parent)
    small, xl = json.loads(as_json.stdout)
    assert [window["discarded"] for window in small["windows"]] == [0, 1, 2, 5]
    assert small["windows"][0]["mean_change"] == pytest.approx(0.102 / 0.35)
    assert small["steady"]["std_ratio"] == 1.0
    assert small["enough"] == 1
    assert small["costs"]["excess_s"] == pytest.approx(1.02 - 0.0035)
    assert (xl["status"], xl["message"], xl["windows"]) == ("oom", "needs 41 GiB", [])


def test_the_command_refuses_a_damaged_file_unless_told(results: Path) -> None:
    whole = results.read_bytes()
    results.write_bytes(b"{nonsense}\n" + whole)
    assert_refused(flopwatch("show", results, "--warmup", cwd=results.parent), "line 1")
    skipping = flopwatch("show", results, "--warmup", "--skip-corrupt", cwd=results.parent)
    assert skipping.returncode == 0
    assert "line 1 was skipped" in skipping.stderr
    assert "warm-up of steps" in skipping.stdout
