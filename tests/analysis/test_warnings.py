"""What is distrusted about results: hand-made records in, kinds, cases and sentences out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from flopwatch.analysis.warnings import KINDS, SEVERITIES, ResultWarning, find_warnings
from flopwatch.cli.main import cli
from flopwatch.errors import UsageError
from flopwatch.records.record import Check, PhaseMemory, Queue, Record, encode
from flopwatch.settings import Settings
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record
from tests.noise import make_noise

RNG = np.random.default_rng(0)
NOISE = make_noise(RNG, 60, correlation=0, sigma=0.01, outlier_share=0)
OTHER_NOISE = make_noise(RNG, 60, correlation=0, sigma=0.01, outlier_share=0)
FAILED = {
    "samples_ns": {},
    "rounds": [],
    "calls_per_sample": [],
    "steady": None,
    "stop_reason": None,
}
UNSTEADY = ("drift", "warm-up-never-ended", "two-modes")
GPU = {"torch": {"gpu": {"name": "NVIDIA A100-SXM4-80GB"}}}


def make_timed(times: object = NOISE, **changes: object) -> Record:
    """Of about 1 ms, and 2 % precise, unless `times` say otherwise."""
    samples = [1e6 * float(time) for time in np.asarray(times)]
    timed = {
        "samples_ns": {"call": samples},
        "rounds": list(range(len(samples))),
        "calls_per_sample": [1] * len(samples),
    }
    return make_record(**{**timed, **changes})


def make_pair(variant: dict[str, object], **both: object) -> list[Record]:
    """A baseline `a` and a variant `b`."""
    b = {"variant": "b", "case_id": "b", "times": OTHER_NOISE, **both, **variant}
    return [make_timed(**{"case_id": "a", **both}), make_timed(**b)]  # type: ignore[arg-type]


def find(records: list[Record], kind: str) -> ResultWarning:
    """The only warning, which is of that kind; what is not steady also has a wide interval."""
    beside = "few-samples" if kind in UNSTEADY else ""
    warnings = [warning for warning in find_warnings(records) if warning.kind != beside]
    assert [warning.kind for warning in warnings] == [kind]
    assert warnings[0].severity == KINDS[kind].severity
    return warnings[0]


def test_good_results_raise_no_warning() -> None:
    assert find_warnings(make_pair({})) == []
    assert find_warnings([]) == []


RISING = np.linspace(1, 1.3, 60) * NOISE
WARMING = np.concatenate([np.full(20, 1.3), np.ones(40)]) * NOISE


def test_a_time_that_rises_is_a_drift_and_its_speedup_is_not() -> None:
    """Both variants rise alike."""
    records = make_pair({"times": np.linspace(1, 1.3, 60) * OTHER_NOISE}, times=RISING)
    warnings = {warning.kind: warning for warning in find_warnings(records)}
    assert warnings.keys() == {"drift", "few-samples"}
    assert len(warnings["drift"].cases) == 2
    assert "its time rose by 2" in warnings["drift"].sentence
    assert "of 60 samples" in warnings["drift"].sentence


def test_a_variant_that_rises_alone_is_a_drift_of_its_speedup_too() -> None:
    warnings = {warning.kind: warning for warning in find_warnings(make_pair({"times": RISING}))}
    assert {"drift", "speedup-drift"} <= warnings.keys()
    assert "its speedup fell by 1" in warnings["speedup-drift"].sentence
    assert [record.variant for record in warnings["speedup-drift"].cases] == ["b"]


def test_what_is_in_parts_has_no_speedup_to_drift() -> None:
    records = make_pair({"times": RISING, "variant": "b", "kind": "parts"})
    assert {warning.kind for warning in find_warnings(records)} == {"drift", "few-samples"}


def test_a_time_that_falls_and_settles_was_still_warming_up() -> None:
    warning = find([make_timed(WARMING)], "warm-up-never-ended")
    assert "still fell by 23 %" in warning.sentence


def test_a_time_that_falls_to_the_end_drifts_unless_it_never_was_steady() -> None:
    assert "fell by 1" in find([make_timed(RISING[::-1])], "drift").sentence
    kinds = [warning.kind for warning in find_warnings([make_timed(RISING[::-1], steady=False)])]
    assert kinds == ["warm-up-never-ended", "unsteady", "few-samples"]


def test_two_levels_are_told_with_their_distance_and_share() -> None:
    times = np.where(np.arange(60) % 3 == 0, 1.5, 1.0) * NOISE
    warning = find([make_timed(times)], "two-modes")
    assert "33 % of 60 samples" in warning.sentence
    assert "50 % above the others" in warning.sentence


def test_a_few_outliers_are_no_second_level() -> None:
    times = np.where(np.arange(60) % 6 == 0, 1.5, 1.0) * NOISE
    assert find_warnings([make_timed(times)]) == []


def test_an_interval_wider_than_was_asked_for_says_why() -> None:
    wide = make_noise(np.random.default_rng(1), 30, correlation=0, sigma=0.3, outlier_share=0)
    record = make_timed(wide, settings=Settings(target_interval=0.02), stop_reason="budget")
    warning = find([record], "few-samples")
    assert (
        "from 30 samples, and ±2.0 % was asked for (the time budget was spent)" in warning.sentence
    )
    free = find([replace(record, settings=Settings())], "few-samples")
    assert "from 30 samples (the time budget was spent)" in free.sentence


def test_nobody_asked_others_for_a_precision_or_for_threads() -> None:
    wide = make_noise(np.random.default_rng(1), 30, correlation=0, sigma=0.3, outlier_share=0)
    told = {"imported": {"format": "pyperf"}, "load": {"average": [9.0, 9.0, 9.0]}}
    assert find_warnings([make_timed(wide, environment=told)]) == []
    assert len(find_warnings([make_timed(wide, environment={"load": told["load"]})])) == 2


def test_too_few_samples_for_an_interval() -> None:
    assert "5 samples give no interval; 8 " in find([make_timed(NOISE[:5])], "few-samples").sentence
    single = find([make_timed(NOISE[:1])], "few-samples")
    assert "it is a single value" in single.sentence
    assert "--case-budget" not in single.advice


def test_what_was_not_steady_is_told_once_for_all_cases_with_the_worst() -> None:
    records = [
        make_timed(
            case_id=str(number),
            params={"size": number},
            group_id=str(number),
            steady=False,
            warmup_samples=number,
        )
        for number in range(3, 9)
    ]
    warning = find(records, "unsteady")
    assert warning.sentence.startswith("6 cases, the worst demo a size=8: no steady state in 8 ")
    assert [record.params["size"] for record in warning.cases] == [8, 7, 6, 5, 4, 3]


@pytest.mark.parametrize(
    ("load", "threads", "words"),
    [
        ({"background_share": 0.31, "average": [2.0, 2, 2]}, 2, "used 31 % of the cores' time"),
        ({"background_share": 0.02, "average": [9.0, 2, 2]}, 2, None),  # that was a minute ago
        ({"average": [3.4, 1, 1]}, 2, "load of the machine was 3.4, and the run's own 2 threads"),
        ({"average": [2.5, 9, 9]}, 2, None),
        ({"average": [66.5, 1, 1]}, 64, None),
        ({"average": [80.0, 1, 1]}, 64, "was 80.0"),
        ({"steal_share": 0.069}, 2, "6.9 % of the cores' time"),
        ({"steal_share": 0.01}, 2, None),
    ],
)
def test_a_machine_that_others_use(
    load: dict[str, object], threads: int, words: str | None
) -> None:
    settings = Settings(threads=threads)
    # Only the first record of a group has shares of the time.
    later = {"steal_share": 0.0, **({"average": load["average"]} if "average" in load else {})}
    _, second = make_pair({"environment": {"load": later}}, settings=settings)
    first = make_timed(settings=settings, environment={"load": load})
    if words is None:
        assert find_warnings([first, second]) == []
        return
    warning = find([first, second], "loaded-machine")
    assert words in warning.sentence
    assert len(warning.cases) == 2


def make_run(frequencies_ghz: list[float]) -> list[Record]:
    return [
        make_timed(
            case_id=str(number),
            group_id=str(number),
            params={"size": number},
            measured_at=f"2026-01-01T00:{number:02}:00+00:00",
            environment={"load": {"cpu_frequency_hz": 1e9 * frequency_ghz}},
        )
        for number, frequency_ghz in enumerate(frequencies_ghz)
    ]


def test_a_clock_that_falls_over_a_run() -> None:
    warning = find(make_run([3.5 - 0.05 * number for number in range(18)]), "throttled")
    assert "clock fell by 18 % over the run's 18 groups, to 2.65 GHz" in warning.sentence
    assert min(record.params["size"] for record in warning.cases) == 12


def test_a_clock_that_is_sometimes_idle_is_not_throttled() -> None:
    assert find_warnings(make_run([3.5, 1.2, 3.4, 0.8, 3.5, 3.5, 1.0, 0.8, 3.5] * 2)) == []


def test_a_hot_cpu_and_a_gpu_that_lowered_its_clocks_are_throttled() -> None:
    hot = make_timed(environment={"load": {"cpu_temperature_c": 97.0}})
    assert "97 °C" in find([hot], "throttled").sentence
    assert find_warnings([make_timed(environment={"load": {"cpu_temperature_c": 70.0}})]) == []
    lowered = find([make_timed(throttled=["its power limit"])], "throttled")
    assert "the GPU lowered its clocks because of its power limit" in lowered.sentence


def make_queued(enqueue_ns: float, drain_ns: float, **changes: object) -> Record:
    queue = Queue(enqueue_ns=[None, *[enqueue_ns] * 59], drain_ns=[None, *[drain_ns] * 59])
    return make_timed(queue=queue, settings=Settings(device="cuda"), environment=GPU, **changes)


def test_a_device_that_waits_for_python_is_launch_bound() -> None:
    warning = find([make_queued(0.93e6, 20e3)], "launch-bound")
    assert "launch-bound: 93 % of the time the device waited for Python" in warning.sentence
    assert "cuda-graph" in warning.advice


@pytest.mark.parametrize(
    ("enqueue_ns", "drain_ns"),
    [
        (0.5e6, 0.5e6),  # Python is done half-way
        (0.98e6, 30e6),  # Python was stopped by a full queue, and the device has work left
    ],
)
def test_a_device_that_always_has_work_is_not(enqueue_ns: float, drain_ns: float) -> None:
    assert find_warnings([make_queued(enqueue_ns, drain_ns)]) == []


def test_more_than_the_nominal_peak() -> None:
    cuda = {"settings": Settings(device="cuda"), "environment": GPU}
    impossible = {"call": {"bfloat16": 4e12}}  # in 1 ms: 4 PFLOP/s
    warning = find([make_timed(flops=impossible, **cuda)], "over-peak")
    assert "128" in warning.sentence
    assert "of the nominal peak" in warning.sentence
    assert find_warnings([make_timed(flops={"call": {"bfloat16": 2e11}}, **cuda)]) == []


def test_flops_that_only_some_declare() -> None:
    flops = {"call": {"float32": 1e6}}
    warning = find(make_pair({}, flops=flops)[:1] + make_pair({}, flops={})[1:], "flops-uncounted")
    assert "it declares no FLOPs, and a of its group does" in warning.sentence
    unknown = make_timed(flops={"call": {"unknown": 1e6}})
    assert "unknown dtype" in find([unknown], "flops-uncounted").sentence
    samples = {"samples_ns": {"forward": [1e6] * 60, "backward": [2e6] * 60}}
    some = make_timed(flops={"forward": {"float32": 1e6}}, **samples)
    assert "none for backward" in find([some], "flops-uncounted").sentence
    assert find_warnings(make_pair({}, flops={})) == []
    parts = make_pair({"kind": "parts", "flops": {}}, flops=flops)
    assert find_warnings(parts) == []


def test_a_baseline_that_failed() -> None:
    failed = make_record(case_id="a", status="oom", message="needs 3 TiB", **FAILED)
    warning = find([failed, make_pair({})[1]], "baseline-failed")
    assert "its baseline a failed (oom: needs 3 TiB)" in warning.sentence
    assert [record.variant for record in warning.cases] == ["b"]
    lone = make_pair({"group_id": "other"})
    assert "no record of its baseline a" in find(lone, "baseline-failed").sentence
    assert find_warnings(lone[1:]) == []  # nobody meant to compare


def test_a_suite_of_which_nothing_was_measured() -> None:
    broken = [
        make_record(
            case_id=str(n), variant=str(n), status="crash", message="SIGILL " * 30, **FAILED
        )
        for n in range(3)
    ]
    large = make_record(case_id="l", variant="l", status="oom", message="needs 3 TiB", **FAILED)
    warnings = [d for d in find_warnings([*broken, large]) if d.kind == "nothing-measured"]
    assert [len(warning.cases) for warning in warnings] == [3, 1]
    assert all(warning.severity == "spoils" for warning in warnings)
    assert warnings[0].sentence.startswith("3 cases, such as demo 0 size=4: crash: SIGILL SIGILL")
    assert len(warnings[0].sentence) < 200
    assert warnings[1].sentence == "demo l size=4: oom: needs 3 TiB; no case of demo has a time"
    assert find_warnings([*make_pair({}), large]) == []  # some that do not fit are a finding
    other = make_record(case_id="o", group_id="o", suite="other", status="crash", **FAILED)
    assert [d.kind for d in find_warnings([*make_pair({}), other])] == ["nothing-measured"]


def test_a_baseline_of_another_name_is_none() -> None:
    warning = find(
        [*make_pair({}), make_timed(case_id="c", variant="c", baseline="x")], "baseline-failed"
    )
    assert "there is no record of its baseline x in its group" in warning.sentence


def test_changes_of_the_environment_are_told_by_field() -> None:
    def make(number: int, governor: str, commit: str) -> Record:
        return make_timed(
            case_id=str(number),
            group_id=str(number),
            run_id=str(number),
            params={"size": number},
            measured_at=f"2026-01-0{number}T00:00:00+00:00",
            environment={
                "machine": {"governor": governor, "memory_available_bytes": number},
                "project": {"commit": commit, "dirty": False},
                "published": {"line": number},
            },
        )

    records = [make(3, "performance", "c3"), make(1, "powersave", "c1"), make(2, "powersave", "c1")]
    warning = find(records, "environment-changed")
    assert warning.sentence == (
        "demo a size=3: machine.governor powersave → performance, project.commit c1 → c3"
    )
    assert find_warnings(records[1:]) == []


def test_only_some_of_many_changes_are_written_out() -> None:
    def make(number: int) -> Record:
        fields = {f"field{place}": number for place in range(9)}
        return make_timed(
            case_id=str(number),
            params={"size": number},
            environment={"machine": fields},
            run_id=str(number),
        )

    (warning,) = find_warnings([make(number) for number in range(6)])
    assert "machine.field0 0 → 1 → ... → 5" in warning.sentence
    assert warning.sentence.endswith(", and 5 more fields")


def test_what_is_worth_knowing() -> None:
    dirty = make_timed(environment={"project": {"commit": "abc", "dirty": True}})
    assert "differed from commit abc" in find([dirty], "dirty-tree").sentence
    differences = make_pair({"conditions": {"dtype": "bfloat16"}}, conditions={"dtype": "float32"})
    assert (
        "dtype float32 in the baseline and bfloat16 here"
        in find(differences, "not-comparable").sentence
    )
    noted = make_timed(notes=["bfloat16 is emulated here"])
    assert find([noted], "noted").sentence == "demo a size=4: bfloat16 is emulated here"
    unchecked = make_timed(unchecked="its reference failed: no memory")
    assert "its reference failed" in find([unchecked], "unchecked").sentence


def test_a_tolerance_that_is_nearly_used() -> None:
    def check(error: float | None) -> Check:
        return Check(reference="a", errors={"output": error, "grad x": 1e-6}, tolerance=0.01)

    warning = find([make_timed(check=check(0.0093))], "tolerance-used")
    assert "the error of its output is 0.0093, 93 % of the 0.01" in warning.sentence
    assert (
        find_warnings([make_timed(check=check(0.005)), make_timed(case_id="j", check=check(None))])
        == []
    )


def test_instruments_that_cost_too_much() -> None:
    def make(factor: float) -> Record:
        return make_timed(instrumented_ns=[1e6 * factor * float(time) for time in NOISE])

    assert "30 % longer" in find([make(1.3)], "instruments-cost").sentence
    assert find_warnings([make(1.03)]) == []


def test_memory_that_was_predicted_wrong() -> None:
    def make(estimate_bytes: float, **changes: object) -> Record:
        return make_timed(
            resident_bytes=600,
            memory={"call": PhaseMemory(peak_bytes=400, end_bytes=0)},
            predicted_memory_bytes={"all": estimate_bytes} if estimate_bytes else {},
            **changes,
        )

    warning = find([make(1500)], "memory-estimate")
    assert "50 % more than was measured" in warning.sentence
    assert find_warnings([make(1050)]) == []
    # Beside tensors of a variant that is not predicted, nobody can tell.
    assert find_warnings([make(1500), make(0, case_id="b", variant="b")]) == []


def test_only_the_newest_record_of_a_case_counts() -> None:
    old = make_timed(RISING, measured_at="2025-01-01T00:00:00+00:00", run_id="old")
    assert find_warnings([old, make_timed()]) == []


def test_the_most_serious_comes_first_and_every_kind_explains_itself() -> None:
    records = [
        make_timed(notes=["odd"], steady=False),
        make_timed(
            case_id="hot", params={"size": 1}, environment={"load": {"cpu_temperature_c": 99.0}}
        ),
    ]
    assert [warning.severity for warning in find_warnings(records)] == list(SEVERITIES)
    for kind in KINDS.values():
        assert kind.meaning
        assert kind.method
        assert kind.advice
        assert kind.severity in SEVERITIES


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    path = tmp_path / "noted.jsonl"
    path.write_bytes(encode(make_timed(notes=["odd"])) + b"\n")
    return path


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    path = tmp_path / "spoiled.jsonl"
    times = np.where(np.arange(60) % 3 == 0, 1.5, 1.0) * NOISE
    record = make_timed(times, notes=["odd"], settings=Settings(target_interval=1.0))
    path.write_bytes(encode(record) + b"\n")
    return path


@pytest.mark.parametrize(
    ("name", "options", "exit_code"),
    [
        ("noted", [], 0),
        ("noted", ["--strict"], 1),
        ("noted", ["--strict", "--ignore", "noted"], 0),
        ("spoiled", [], 1),
        ("spoiled", ["--json"], 1),
        ("spoiled", ["--ignore", "two-modes"], 0),
    ],
)
def test_exit_codes(
    name: str, options: list[str], exit_code: int, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    assert CliRunner().invoke(cli, ["check", str(path), *options]).exit_code == exit_code


def test_the_printout(spoiled: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(spoiled)])
    assert result.stdout.splitlines()[:3] == [
        "Spoils a number",
        "  two-modes",
        "    demo a size=4: 33 % of 60 samples lie around a level of their own, 50 % above the "
        "others, with nothing",
    ]
    assert "Worth knowing\n  noted\n    demo a size=4: odd\n    → state it" in result.stdout
    assert result.stderr == ("2 warnings about 1 record: 1 that spoils a number, 1 worth knowing\n")


def test_json(spoiled: Path) -> None:
    warnings = json.loads(CliRunner().invoke(cli, ["check", str(spoiled), "--json"]).stdout)
    assert [warning["kind"] for warning in warnings] == ["two-modes", "noted"]
    assert warnings[0]["severity"] == "spoils"
    (case,) = warnings[0]["cases"]
    assert (case["variant"], case["params"]) == ("a", {"size": 4})


def test_the_list_of_kinds() -> None:
    listed = CliRunner().invoke(cli, ["check", "--list"])
    assert listed.exit_code == 0
    assert all(f"  {name}: {kind.meaning}" in listed.stdout for name, kind in KINDS.items())
    content = json.loads(CliRunner().invoke(cli, ["check", "--list", "--json"]).stdout)
    assert [kind["kind"] for kind in content] == list(KINDS)


def test_what_cannot_be_checked_is_refused(noted: Path, tmp_path: Path) -> None:
    assert_refused(flopwatch("check", cwd=tmp_path), "name a results file")
    result = CliRunner().invoke(cli, ["check", str(noted), "--ignore", "bad-luck"])
    assert isinstance(result.exception, UsageError)
    assert "no kind of warning 'bad-luck'" in str(result.exception)
