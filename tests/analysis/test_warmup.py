"""What the first steps cost: hand-made records in, exact numbers and text out."""
# ruff: noqa: E501  (golden tables)

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.analysis.warmup import count_calls, study
from flopwatch.output.warmup_tables import describe_warmup, lay_out
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
    "samples_ns": {}, "rounds": [], "calls_per_sample": [], "warmup_samples": 0, "steady": None, "stop_reason": None
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


def told(record: Record) -> list[str]:
    """What is said of one record, without its name."""
    return [line.strip() for line in describe_warmup(study(record))[1:]]


def text(*records: Record) -> str:
    return "\n".join(lay_out(summarize(records)).lines)


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
        (30.0, 0.0, 0),  # within what the steps vary by
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
    assert told(record) == [
        "The first step took 9.41 s, a steady one 350 ms: 9.06 s more, for",
        "8.50 s  compilation",
        "39.5 ms  the optimizer's first step, in which it makes what state it has",
        "517 ms  other (threads and kernels started for the first time, new memory, cold caches)",
        "Allocation: the system provided 25,600 pages in that step, of 4 KiB, or of 2 MiB where the allocator uses huge ones; what they cost is in the times above, and cannot be separated.",
        "Of the next 9 steps, 1 took longer than any steady one, 503 ms more in all.",
        "A steady state was detected after 10 steps, including the ones that show it.",
        "Mean and std compared with the steady ones: with 0 discarded, +273.1 % and 773 times; with 1 discarded, +14.3 % and 43.2 times; with 2 discarded, +0.0 % and 1.00 times; with 5 discarded, +0.0 % and 1.00 times.",
        "So one warm-up step is not enough here: it takes 2.",
    ]


def test_what_is_not_known_is_left_out() -> None:
    """A record may have neither facts nor page faults; this one has no optimizer either."""
    record = step_record(first_ms=(1000.0, 0.0, 0.0))
    content = json.loads(encode(record))
    del content["first_call_page_faults"], content["facts"], content["samples_ns"]["optimizer"]
    old = decode(json.dumps(content).encode())
    sentences = told(old)
    assert sentences[0].startswith("The first step took 1.30 s, a steady one 300 ms: 997 ms more")
    assert sentences[1].startswith("997 ms  other")
    assert sentences[2] == "None of the next 9 steps took longer than steady ones."
    assert sentences[-1] == "So one warm-up step suffices here."


def test_an_optimizer_that_is_not_slower_at_first_is_not_blamed() -> None:
    assert study(step_record(first_ms=(1000.0, 0.0, 0.5))).costs.optimizer_s is None  # type: ignore[union-attr]


def test_more_compilation_than_excess_leaves_no_rest() -> None:
    """It was then not all paid in the first step, and nothing is left to be told apart."""
    record = step_record("compiled", first_ms=(1000.0, 0, 0), facts={"compile_s": 1.5})
    assert study(record).costs.rest_s is None  # type: ignore[union-attr]
    assert not any("other" in sentence for sentence in told(record))


def test_a_first_step_that_costs_nothing_is_said_to() -> None:
    late = told(step_record(second_ms=500.0))
    assert late[1] == "Of the next 9 steps, 1 took longer than any steady one, 503 ms more in all."
    sentences = told(step_record(first_call_page_faults=3))
    assert sentences[0] == "The first step took 346 ms, no more than a steady one (350 ms)."
    assert not any("page" in sentence for sentence in sentences)
    assert sentences[-1] == "So no warm-up step is needed here."


def test_without_a_steady_state_there_is_no_answer_but_what_was_paid() -> None:
    unsteady = step_record(steady=False, first_ms=(1000.0, 0, 0))
    found = study(unsteady)
    assert (found.steady, found.enough, len(found.windows)) == (None, None, 4)
    assert told(unsteady) == [
        "The first step took 1.35 s, a measured one 350 ms: 996 ms more, for",
        "996 ms  other (threads and kernels started for the first time, new memory, cold caches)",
        "None of the next 9 steps took longer than measured ones.",
        "No steady state was detected: how many steps suffice is not known.",
    ]
    assert "Why more" not in text(unsteady)


def test_too_few_measured_steps_give_no_answer() -> None:
    short = replace(step_record(), warmup_samples=27)
    assert told(short) == [
        "No steady state was measured for long enough: how many steps suffice is not known."
    ]


def test_untimed_calls_and_loops_count_as_calls() -> None:
    short = step_record(steady_ms=(0.1, 0.1, 0.1), calls_per_sample=[1, 1, 10, *[20] * 27])
    assert [count_calls(short, n) for n in (0, 1, 2, 5)] == [0, 2, 4, 4 + 11 + 21 + 21]
    assert told(short)[-2:] == [
        "Counted in calls, 1, 2, 5 discarded steps are 2, 4, 57: short samples have an untimed call before them.",
        "From step 2 on a sample is the mean of up to 20 calls, and single calls vary more than such means.",
    ]
    cold = replace(short, calls_per_sample=[1] * 30, settings=Settings(cache="cold"))
    assert [count_calls(cold, n) for n in (0, 1, 2, 5)] == [0, 1, 2, 5]
    long = step_record()  # its samples take more than 0.2 s
    assert [count_calls(long, n) for n in (0, 1, 2, 5)] == [0, 1, 2, 5]
    assert not any("calls" in sentence for sentence in [*told(cold), *told(long)])


def test_the_printout_has_a_block_a_variant_and_a_table_a_number_of_steps() -> None:
    printed = text(
        step_record(first_ms=(1000.0, 0.0, 20.0)),
        step_record("compiled", first_ms=(9000.0, 0.0, 0.0), second_ms=500.0),
        step_record(model="medium", steady_ms=(1000.0, 2000.0, 500.0)),
        step_record(model="xl", **FAILED, status="oom", message="needs 41 GiB"),
        step_record("compiled", "xl", **FAILED, status="crash", message="died"),
    )
    assert printed.startswith(
        textwrap.dedent("""\
        steps eager batch=4 context=128 precision=fp32 optimizer=adamw; cpu, 1 thread, hot cache, allocator retain

        0 steps discarded
        +-------------------+----------------+---------------+-----------------+----------------+------------------+-----------------+---------+
        | Experiment_name   |   Forward time |   Forward std |   backward time |   backward std |   optimizer time |   optimizer std |   Steps |
        +===================+================+===============+=================+================+==================+=================+=========+
        | small             |            0.2 |     0.315878  |             0.2 |     0.00210819 |            0.052 |      0.00616892 |      10 |
        +-------------------+----------------+---------------+-----------------+----------------+------------------+-----------------+---------+
        | medium            |            1   |     0.0105409 |             2   |     0.0210819  |            0.5   |      0.00527046 |      10 |
        +-------------------+----------------+---------------+-----------------+----------------+------------------+-----------------+---------+

        1 step discarded
        """)
    )
    titles = [line for line in printed.splitlines() if line.endswith(("discarded", "retain"))]
    block = [
        "0 steps discarded", "1 step discarded", "2 steps discarded", "5 steps discarded",
        "until the steady state: 10 steps discarded",
    ]  # fmt: skip
    shared = "batch=4 context=128 precision=fp32 optimizer=adamw; cpu, 1 thread, hot cache, allocator retain"
    assert titles == [f"steps eager {shared}", *block, f"steps compiled {shared}", *block]
    assert "\nsmall, compiled:\n  The first step took" in printed
    assert printed.endswith(
        "Why more than one warm-up step? Because one is not enough in 1 of 3 experiments here: up to 2 are needed.\n"
        "Without tables: eager model=xl batch=4 context=128 precision=fp32 optimizer=adamw (oom), "
        "compiled model=xl batch=4 context=128 precision=fp32 optimizer=adamw (crash)."
    )


def test_where_one_step_is_enough_the_answer_is_that() -> None:
    printed = text(step_record(first_ms=(1000.0, 0, 0)))
    assert printed.endswith("No reason here: one is enough in 1 experiment.")


def test_other_suites_are_named_by_their_cases_and_others_phases_stand_apart() -> None:
    printed = text(
        make_record(case_id="1", params={"size": 4}),
        make_record(case_id="2", params={"size": 8}),
        make_record(case_id="3", params={"size": 9}, samples_ns={"forward": [1e6] * 20}),
    )
    blocks = printed.split("demo a; ")
    assert len(blocks) == 3
    assert "| size=4 " in blocks[1]
    assert "| size=8 " in blocks[1]
    assert "call time" in blocks[1]
    assert "| size=9 " in blocks[2]
    assert "Forward time" in blocks[2]


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
    assert "| Experiment_name   |   Forward time |" in printed.stdout
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
    assert "small, eager:" in skipping.stdout
