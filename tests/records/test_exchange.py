"""Files of other programs: what they say is what records say, and the other way round."""

from __future__ import annotations

import gzip
import json
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyperf
import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.cli.exchange import EXPORTS, IMPORTS
from flopwatch.cli.main import cli, run_command
from flopwatch.records.exchange import EXPORTERS, IMPORTERS, read_file
from flopwatch.records.exchange.google_benchmark import parse_name
from flopwatch.records.foreign import ForeignError, scale
from flopwatch.records.published import PUBLICATIONS
from flopwatch.records.record import Record, encode
from flopwatch.records.store import read
from tests.conftest import make_record

GOOGLE = Path(__file__).parents[1] / "data" / "google_benchmark.json"
"""Written by google-benchmark 1.9.5 itself."""

ENVIRONMENT = {
    "machine": {"cpu_model": "Z80", "logical_cores": 2, "memory_total_bytes": 25 * 2**30},
    "software": {"python": "3.11.7", "packages": {"torch": "2.13.0", "numpy": "2.0"}},
    "torch": {"version": "2.13.0+cpu", "git": "cf30153c4c13"},
    "project": {"commit": "0123456789ab"},
}


def run(*arguments: object) -> int:
    return run_command(lambda: cli.main(args=[*map(str, arguments)], standalone_mode=False))


def make_two_phases(**changes: Any) -> Record:
    """With warm-up, and loops that change in between."""
    forward = [900.0, 250.5, 101.25, 100.0, 102.0, 99.0, 98.5, 101.0, 103.0, 97.0, 100.5, 99.75]
    content: dict[str, Any] = {
        "samples_ns": {"forward": forward, "backward": [2 * ns for ns in forward]},
        "rounds": list(range(12)),
        "calls_per_sample": [1, 1, *[4] * 5, *[8] * 5],
        "warmup_samples": 2,
        "environment": ENVIRONMENT,
    }
    return make_record(**{**content, **changes})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    failed = make_record(case_id="j", variant="b", status="oom", message="it needs 3 GiB",
                         samples_ns={}, rounds=[], calls_per_sample=[])  # fmt: skip
    path.write_bytes(b"".join(encode(each) + b"\n" for each in (make_two_phases(), failed)))
    return path


def export(results: Path, form: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert run("export", results, "--format", form) == 0
    return json.loads(capsys.readouterr().out)


def test_the_commands_offer_the_formats_that_there_are() -> None:
    assert [*IMPORTERS, *PUBLICATIONS] == IMPORTS
    assert ["flopwatch", *EXPORTERS] == EXPORTS


@pytest.mark.parametrize("value", [1e-07, 2.9e-06, 0.1, 123456.789, 5e-324, 1 / 3])
def test_scaling_is_that_of_the_decimal_number(value: float) -> None:
    mantissa, _, exponent = f"{value!r}".partition("e")
    assert scale(value, 9) == float(f"{mantissa}e{int(exponent or 0) + 9}")


# pyperf


def test_pyperf_reads_what_is_exported_for_it(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "pyperf.json"
    assert run("export", results, "--format", "pyperf", "-o", out) == 0
    suite = pyperf.BenchmarkSuite.load(str(out))
    assert suite.get_benchmark_names() == [
        "demo a size=4", "demo a size=4 forward", "demo a size=4 backward",
    ]  # fmt: skip
    whole, forward, _ = suite.get_benchmarks()
    record = make_two_phases()
    assert list(forward.get_values()) == [
        ns / 1e9 for ns in record.samples_ns["forward"][record.warmup_samples :]
    ]
    assert whole.median() == pytest.approx(3 * forward.median(), rel=1e-12)
    first, second = whole.get_runs()
    assert first.warmups == ((1, 2700.0 / 1e9), (1, 751.5 / 1e9))
    assert (first.get_loops(), second.get_loops()) == (4, 8)
    metadata = whole.get_metadata()
    assert metadata["cpu_model_name"] == "Z80"
    assert metadata["torch_version"] == "2.13.0+cpu"
    assert metadata["commit_id"] == "0123456789ab"
    assert metadata["python_version"] == "3.11.7"


@pytest.mark.parametrize("command", [["show"], ["stats"], ["compare_to", "--table"], ["hist"]])
def test_pyperf_commands_take_an_export(command: list[str], results: Path, tmp_path: Path) -> None:
    out = tmp_path / "pyperf.json"
    run("export", results, "--format", "pyperf", "-o", out)
    files = [str(out)] * (2 if "compare_to" in command else 1)
    finished = subprocess.run(
        [sys.executable, "-m", "pyperf", *command, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


def make_pyperf_file(path: Path) -> pyperf.BenchmarkSuite:
    """By pyperf's own classes: two processes, one calibrated, loops within loops."""
    common = {"name": "sort", "inner_loops": 10, "hostname": "secret", "cpu_model_name": "Z80"}
    runs = [
        pyperf.Run([], warmups=[(1, 0.5), (2, 0.25)], collect_metadata=False,
                   metadata={**common, "calibrate_loops": 2}),
        pyperf.Run([1.1e-7, 1.2e-7], warmups=[(2, 3e-7)], collect_metadata=False,
                   metadata={**common, "loops": 2, "date": "2026-01-02 03:04:05.678900"}),
        pyperf.Run([1.3e-7, 2.9e-6], warmups=[(2, 4e-7)], collect_metadata=False,
                   metadata={**common, "loops": 2}),
    ]  # fmt: skip
    sizes = pyperf.Run([1024], metadata={"name": "size", "unit": "byte"})
    suite = pyperf.BenchmarkSuite([pyperf.Benchmark(runs), pyperf.Benchmark([sizes])])
    suite.dump(str(path))
    return suite


def test_what_pyperf_wrote_is_read_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    make_pyperf_file(path)
    name, content = read_file(path)
    (record,) = content.records
    assert name == "pyperf"
    assert record.samples_ns == {"call": [5e8, 2.5e8, 300.0, 400.0, 110.0, 120.0, 130.0, 2900.0]}
    assert record.warmup_samples == 4
    assert record.calls_per_sample == [10, 20, 20, 20, 20, 20, 20, 20]
    assert record.rounds == [0, 1, 2, 5, 3, 4, 6, 7], "the order of taking"
    assert (record.suite, record.variant, record.params) == ("pyperf", "sort", {})
    assert record.environment["machine"]["cpu_model"] == "Z80"
    assert "secret" not in encode(record).decode()
    assert content.remarks == ["size is in the unit byte, not a time, and was left out"]


def test_a_benchmark_that_pyperf_ran_has_its_median(tmp_path: Path) -> None:
    path = tmp_path / "timeit.json.gz"
    options = ["--processes=1", "--values=3", "--warmups=1", "--loops=1000", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pyperf", "timeit", *options, "-o", str(path), "1+1"], check=True
    )
    theirs = pyperf.Benchmark.load(str(path))
    (row,) = summarize(read_file(path)[1].records)
    assert row.total_ns is not None
    assert row.total_ns.value == pytest.approx(theirs.median() * 1e9, rel=1e-15)
    assert len(row.record.rounds) - row.record.warmup_samples == theirs.get_nvalue()
    assert row.record.environment["software"]["python"] == sys.version.split()[0]
    with gzip.open(path) as file:
        assert row.record.environment["imported"]["metadata"].items() <= (
            json.load(file)["metadata"].items()
        )


def test_a_pyperf_export_comes_back_as_the_same_case(results: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "pyperf.json", tmp_path / "back.jsonl"
    run("export", results, "--format", "pyperf", "-o", out)
    assert run("import", out, "-o", back) == 0
    whole, forward, _ = read(back).records
    original = make_two_phases()
    assert (whole.suite, whole.variant, whole.params) == ("demo", "a", {"size": 4})
    assert forward.params == {"size": 4, "phase": "forward"}
    assert forward.samples_ns["call"] == original.samples_ns["forward"]
    assert forward.calls_per_sample == original.calls_per_sample
    assert forward.warmup_samples == original.warmup_samples
    assert forward.environment["torch"]["version"] == "2.13.0+cpu"


def test_the_same_case_under_other_conditions_has_a_name_of_its_own() -> None:
    record = make_two_phases()
    other = replace(record, settings=replace(record.settings, threads=2))
    suite = pyperf.BenchmarkSuite.loads(EXPORTERS["pyperf"](summarize([record, other])))
    assert "demo a size=4 (2)" in suite.get_benchmark_names()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "0.9"}, "format 0.9"),
        ({"benchmarks": [{"runs": []}]}, "no runs"),
        ({"benchmarks": [{"runs": [{"values": [1.0]}]}]}, "no name"),
        ({"benchmarks": [{"runs": [{"values": ["1"]}]}]}, "Expected `float`, got `str`"),
        ({"benchmarks": [{"metadata": {"name": "x"}, "runs": [{"values": [0.0]}]}]}, "no time"),
        ({"benchmarks": [{"metadata": {"name": "x", "loops": 0}, "runs": [{"values": [1.0]}]}]},
         "loops is 0"),
    ],
)  # fmt: skip
def test_what_is_not_a_pyperf_file_is_refused(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"version": "1.0", "benchmarks": [], **change}))
    with pytest.raises(ForeignError, match=re.escape(reason)):
        read_file(path)


# google-benchmark


def test_repetitions_are_samples_and_aggregates_are_not() -> None:
    entries = json.loads(GOOGLE.read_text())["benchmarks"]
    name, content = read_file(GOOGLE)
    assert name == "google-benchmark"
    assert len(content.records) == 4
    for record in content.records[:3]:
        theirs = [
            each for each in entries
            if each["name"] == record.environment["imported"]["name"]
        ]  # fmt: skip
        unit_ns = {"ns": 1, "us": 1000}[theirs[0]["time_unit"]]
        assert record.samples_ns["call"] == pytest.approx(
            [each["real_time"] * unit_ns for each in theirs], rel=1e-15
        )
        assert record.calls_per_sample == [each["iterations"] for each in theirs]
        assert record.facts["cpu_time_ns"] == pytest.approx(
            statistics.median(each["cpu_time"] * unit_ns for each in theirs)
        )
    assert content.remarks == [
        "fits over sizes (copy_list_BigO, copy_list_RMS) were left out",
        "12 aggregates of samples (mean, median, stddev and 1 more) were left out: they are "
        "computed on reading",
    ]


def test_names_become_variants_and_parameters() -> None:
    summed, copied, *_, failed = read_file(GOOGLE)[1].records
    assert (summed.variant, summed.params) == ("sum_cells", {"rows": 8, "columns": 64})
    assert summed.facts["cells"] == 512
    assert (copied.variant, copied.params) == ("copy_list", {"arg0": 64})
    assert (failed.status, failed.message) == ("crash", "no such device")
    assert failed.params == {"clock": "real_time"}


@pytest.mark.parametrize(
    ("name", "variant", "params"),
    [
        ("BM_x", "BM_x", {}),
        ("BM_x/8/512/threads:2", "BM_x", {"arg0": 8, "arg1": 512, "threads": 2}),
        ("Fixture/method/-3", "Fixture/method", {"arg0": -3}),
        ("BM_x<std::pair<int, 4>>/8", "BM_x<std::pair<int, 4>>", {"arg0": 8}),
        ("BM_x/min_time:0.500", "BM_x", {"min_time": 0.5}),
        ("BM_x/process_time/real_time", "BM_x", {"clock": "process_time/real_time"}),
        ("ns::f/8/big", "ns::f/8/big", {}),
        ("BM_x/99999999999999999999", "BM_x/99999999999999999999", {}),
        ("8", "8", {}),
    ],
)
def test_only_what_is_surely_a_parameter_is_one(
    name: str, variant: str, params: dict[str, Any]
) -> None:
    assert parse_name(name) == (variant, params)


def write_google(path: Path, *entries: dict[str, Any], **context: Any) -> Path:
    content = {"context": context, "benchmarks": entries}
    path.write_text(json.dumps(content))
    return path


def test_where_there_are_only_aggregates_the_mean_stands_in(tmp_path: Path) -> None:
    content = json.loads(GOOGLE.read_text())
    aggregates = [each for each in content["benchmarks"] if each["run_type"] == "aggregate"]
    path = tmp_path / "aggregates.json"
    path.write_text(json.dumps({**content, "benchmarks": aggregates}))
    record = read_file(path)[1].records[0]
    mean = next(each for each in aggregates if each["aggregate_name"] == "mean")
    assert record.samples_ns["call"] == [pytest.approx(mean["real_time"] * 1000)]
    assert "the mean of 2 repetitions, whose standard deviation is" in record.notes[0]


def test_old_files_tell_aggregates_by_their_names(tmp_path: Path) -> None:
    path = write_google(
        tmp_path / "old.json",
        {"name": "f", "iterations": 10, "real_time": 2, "cpu_time": 1, "time_unit": "ms"},
        {"name": "f", "iterations": 10, "real_time": 3, "cpu_time": 1, "time_unit": "ms"},
        {"name": "f_mean", "iterations": 2, "real_time": 2.5, "time_unit": "ms"},
    )
    (record,) = read_file(path)[1].records
    assert record.samples_ns == {"call": [2e6, 3e6]}


def test_warnings_about_a_google_benchmark_are_notes(tmp_path: Path) -> None:
    timed = {"name": "f", "run_type": "iteration", "iterations": 1, "real_time": 2.0}
    path = write_google(
        tmp_path / "warned.json",
        timed,
        {**timed, "error_occurred": True, "error_message": "it slipped"},
        {"name": "g", "run_type": "iteration", "skipped": True, "skip_message": "no GPU"},
        library_build_type="debug",
        cpu_scaling_enabled=True,
    )
    timed_record, skipped = read_file(path)[1].records
    assert len(timed_record.notes) == 3
    assert "1 of 2 repetitions failed: it slipped" in timed_record.notes
    assert (skipped.status, skipped.message) == ("skipped", "no GPU")


# PyTorch's database


STRINGS = {"type": "object", "values": str}
SHAPES: dict[str, dict[str, Any]] = {
    "benchmark": {"name": str, "mode": str, "dtype": str, "extra_info": STRINGS},
    "model": {"name": str, "type": str, "backend": str, "origins": list, "extra_info": STRINGS},
    "metric": {
        "name": str, "benchmark_values": list, "target_value": float, "extra_info": STRINGS
    },
    "runner": {
        "name": str, "type": str, "cpu_info": str, "cpu_count": int, "mem_info": str,
        "avail_mem_in_gb": int, "gpu_info": str, "gpu_count": int, "gpu_mem_info": str,
        "avail_gpu_mem_in_gb": int, "extra_info": STRINGS,
    },
    "dependency": {
        "repo": str, "branch": str, "sha": str, "version": str, "extra_info": STRINGS
    },
}  # fmt: skip
"""Columns of the database's table, with their types."""


def check_shape(content: dict[str, Any], shape: dict[str, Any], *required: str) -> None:
    assert content.keys() <= shape.keys()
    assert set(required) <= content.keys()
    for key, value in content.items():
        if shape[key] is STRINGS:
            assert all(isinstance(each, str) for each in (*value, *value.values()))
        else:
            assert type(value) is shape[key]


def test_an_export_has_the_shape_of_pytorchs_database(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = export(results, "pytorch", capsys)
    for entry in entries:
        assert entry.keys() == {"benchmark", "model", "metric", "runners", "dependencies"}
        check_shape(entry["benchmark"], SHAPES["benchmark"], "name")
        check_shape(entry["model"], SHAPES["model"], "name")
        check_shape(entry["metric"], SHAPES["metric"], "name", "benchmark_values")
        assert all(type(value) is float for value in entry["metric"]["benchmark_values"])
        for runner in entry["runners"]:
            check_shape(runner, SHAPES["runner"])
        for dependency in entry["dependencies"].values():
            check_shape(dependency, SHAPES["dependency"])
    assert [entry["metric"]["name"] for entry in entries] == [
        "total_ms", "forward_ms", "backward_ms",
    ]  # fmt: skip
    (row,) = (row for row in summarize([make_two_phases()]))
    assert row.total_ns is not None
    assert row.total_ns.low is not None
    metric = entries[0]["metric"]
    assert metric["benchmark_values"] == [row.total_ns.value / 1e6]
    assert float(metric["extra_info"]["low"]) == row.total_ns.low / 1e6
    assert metric["extra_info"]["statistic"] == "median of 10 samples"
    assert entries[0]["dependencies"]["torch"] == {"version": "2.13.0+cpu", "sha": "cf30153c4c13"}


def make_entry(metric: str, /, *values: float, **changes: Any) -> dict[str, Any]:
    return {
        "benchmark": {"name": "llm", "dtype": "bfloat16", "extra_info": {"dynamic": False}},
        "model": {"name": "llama", "backend": "inductor"},
        "metric": {"name": metric, "benchmark_values": list(values)},
        "runners": [{"name": "secret", "gpu_info": "NVIDIA A100", "gpu_count": 1}],
        "dependencies": {"torch": {"version": "2.9"}},
        **changes,
    }


@pytest.mark.parametrize("is_list", [True, False])
def test_times_of_pytorchs_database_are_samples_and_the_rest_are_facts(
    is_list: bool, tmp_path: Path
) -> None:
    entries = [make_entry("latency(ms)", 12.5, 13), make_entry("tokens_per_s", 100, 102)]
    path = tmp_path / "upload.json"
    path.write_text(json.dumps(entries) if is_list else "\n".join(map(json.dumps, entries)))
    name, content = read_file(path)
    (record,) = content.records
    assert name == "pytorch"
    assert record.samples_ns == {"call": [12.5e6, 13e6]}
    assert record.facts == {"tokens_per_s": 101}
    assert record.variant == "inductor"
    assert record.params == {"model": "llama", "dtype": "bfloat16", "dynamic": False}
    assert record.environment["torch"] == {
        "version": "2.9", "gpu": {"name": "NVIDIA A100", "count": 1}
    }  # fmt: skip
    assert "secret" not in encode(record).decode()
    assert "tokens_per_s" in content.remarks[0]


def test_several_times_are_several_cases_and_lists_are_objects(tmp_path: Path) -> None:
    path = tmp_path / "upload.json"
    listed = make_entry("load_time_s", 2, benchmark=["llm", "", "bfloat16", {"dynamic": False}])
    named = make_entry("ttft", 3, metric=["ttft", [3], 2.5, {"unit": "us"}])
    path.write_text(json.dumps([listed, named, make_entry("speed", 4)]))
    records = read_file(path)[1].records
    assert [record.samples_ns["call"] for record in records] == [[2e9], [3e3]]
    assert [record.params["metric"] for record in records] == ["load_time_s", "ttft"]


def test_a_pytorch_export_comes_back_as_the_same_case(results: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "pytorch.json", tmp_path / "back.jsonl"
    run("export", results, "--format", "pytorch", "-o", out)
    assert run("import", out, "-o", back) == 0
    whole, forward, _ = read(back).records
    (row,) = summarize([make_two_phases()])
    assert row.total_ns is not None
    assert (whole.suite, whole.variant, whole.params) == ("demo", "a", {"size": 4})
    assert whole.samples_ns == {"call": [row.total_ns.value]}
    assert forward.params["phase"] == "forward"
    assert whole.environment["machine"]["cpu_model"] == "Z80"
    assert whole.environment["project"]["commit"] == "0123456789ab"


# github-action-benchmark


def check_entry(entry: dict[str, Any]) -> None:
    """As strictly as the action documents it and reads it."""
    assert {"name", "unit", "value"} <= entry.keys() <= {"name", "unit", "value", "range", "extra"}
    assert all(isinstance(entry[key], str) for key in entry.keys() - {"value"})
    assert isinstance(entry["value"], int | float)
    if "range" in entry:
        found = re.search(r"(\+-|±)\s*(\d.*)", entry["range"])
        assert found
        assert float(found[2]) >= 0


def test_times_are_exported_for_the_github_action(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, *others = entries = export(results, "github-action-smaller", capsys)
    for entry in entries:
        check_entry(entry)
    assert [entry["name"] for entry in others] == [
        "demo a size=4 forward",
        "demo a size=4 backward",
    ]
    (row,) = summarize([make_two_phases()])
    assert row.total_ns is not None
    assert whole["value"] == row.total_ns.value / 1e6
    assert whole["unit"] == "ms"
    half_width = row.total_ns.half_width
    assert half_width is not None
    assert float(whole["range"].removeprefix("± ")) == pytest.approx(half_width * whole["value"])
    assert whole["extra"].startswith("median of 10 samples, 99 % interval ")
    assert "torch: 2.13.0+cpu" in whole["extra"]


def test_rates_and_speedups_are_exported_as_bigger_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    tokens = {"facts": {"tokens": 50.0}}
    fast = make_record(case_id="j", variant="b", samples_ns={"call": [50.0] * 20}, **tokens)
    path.write_bytes(b"".join(encode(r) + b"\n" for r in (make_record(**tokens), fast)))
    entries = export(path, "github-action-bigger", capsys)
    for entry in entries:
        check_entry(entry)
    values = {entry["name"]: (entry["value"], entry["unit"]) for entry in entries}
    assert values == {
        "demo a size=4 tokens per s": (50 / 100e-9, "tokens/s"),
        "demo b size=4 tokens per s": (50 / 50e-9, "tokens/s"),
        "demo b size=4 speedup": (2.0, "x"),
    }


# The commands


def test_an_export_names_what_failed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(results, "pytorch", capsys)
    run("export", results, "--format", "pyperf")
    assert capsys.readouterr().err == (
        "flopwatch: demo b size=4 was left out: oom: it needs 3 GiB\n"
    )


def test_an_export_of_nothing_is_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run("export", results, "--format", "github-action-bigger", "-o", out) == 2
    assert "take --format github-action-smaller" in capsys.readouterr().err
    results.write_bytes(results.read_bytes().splitlines()[1] + b"\n")
    assert run("export", results, "--format", "pyperf", "-o", out) == 2
    assert "nothing to export" in capsys.readouterr().err
    assert not out.exists()


def test_an_export_overwrites_nothing(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir", encoding="utf-8")
    for file in (results, letter):
        before = file.read_bytes()
        assert run("export", results, "--format", "pyperf", "-o", file) == 2
        assert (
            f"{file} exists and is not empty; choose another, or remove it"
            in capsys.readouterr().err
        )
        assert file.read_bytes() == before
    empty = tmp_path / "empty.json"
    empty.touch()
    assert run("export", results, "--format", "pyperf", "-o", empty) == 0


def test_importing_twice_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results" / "new.jsonl"
    assert run("import", GOOGLE, "-o", out) == 0
    before = out.read_bytes()
    assert "4 records added" in capsys.readouterr().err
    assert run("import", GOOGLE, GOOGLE, "-o", out) == 0
    assert out.read_bytes() == before
    assert capsys.readouterr().err.count(f"nothing added: {out} has 4 of them already") == 2


def test_importing_into_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear John,\n")
    assert run("import", GOOGLE, "-o", letter) == 2
    assert "is not a results file" in capsys.readouterr().err
    assert letter.read_text() == "Dear John,\n"


def test_one_bad_file_imports_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, out = tmp_path / "bad.json", tmp_path / "new.jsonl"
    bad.write_text('{"version": "1.0", "benchmarks": [')
    assert run("import", GOOGLE, bad, "-o", out) == 2
    assert f"{bad} cannot be imported: it is not JSON (" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_published_formats_are_recognised(name: str, tmp_path: Path) -> None:
    from flopwatch.records.published import read_text

    path, out = tmp_path / "text", tmp_path / "new.jsonl"
    path.write_text(read_text(name))
    assert read_file(path)[0] == name
    assert run("import", path, "-o", out) == 0
    before = out.read_bytes()
    assert run("import", path, "--format", name, "-o", out) == 0
    assert out.read_bytes() == before


def test_imported_results_are_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "new.jsonl", tmp_path / "page.html"
    make_pyperf_file(tmp_path / "bench.json")
    assert run("import", GOOGLE, tmp_path / "bench.json", "-o", out) == 0
    assert run("show", out) == 0
    shown = capsys.readouterr().out
    assert "imported from google-benchmark" in shown
    assert "threads" not in shown, "nobody told their number"
    assert run("query", "SELECT median(ns) FROM samples WHERE NOT warmup AND variant = 'sort'",
               out, "--json") == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out) == [{"median(ns)": 125.0}]
    assert run("report", out, "-o", page) == 0
    assert "sum_cells" in page.read_text()
