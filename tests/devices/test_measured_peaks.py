"""What the machine can do at best: how it is kept, found again and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from flopwatch.cli import machine
from flopwatch.cli.main import cli
from flopwatch.devices.matmul_rates import list_dtypes
from flopwatch.devices.measured_peaks import (
    BUS_PASSES,
    Curve,
    Exchange,
    Matmul,
    Peaks,
    Setup,
    Stream,
    append,
    find_file,
    find_peaks,
    from_environment,
    read,
    read_setup,
    shorten,
)
from flopwatch.devices.present_accelerators import Accelerators
from flopwatch.env import PEAKS
from flopwatch.errors import StoreError, UsageError
from flopwatch.output.device_tables import answer_peaks, as_dict, list_sheets
from flopwatch.runner.peaks import PeakOptions, choose_options, describe_time, serve_rank_zero
from flopwatch.runner.rank_processes import find_free_port
from flopwatch.settings import Settings

GB = 1e9
ENVIRONMENT: dict[str, Any] = {
    "machine": {"machine_id": "m", "cpu_model": "A CPU"},
    "torch": {"version": "2.9", "cpu_capability": "AVX2", "threads": 2},
}
SETTINGS = Settings(threads=2)


def make_curve(dtype: str, *rates: float, day: str = "2026-01-02", repeats: int = 3) -> Curve:
    return Curve(
        dtype=dtype,
        measured_at=f"{day}T00:00:00+00:00",
        points=[
            Matmul(rows=size, inner=size, columns=size, flops_per_s=rate, blocks=5, repeats=repeats)
            for size, rate in zip((128, 256, 512), rates, strict=False)
        ],
    )


def make_peaks(**changes: Any) -> Peaks:
    whole = Peaks(
        setup=read_setup(ENVIRONMENT, SETTINGS),
        measured_at="2026-01-02T00:00:00+00:00",
        quick=False,
        matmuls=[make_curve("float32", 100 * GB, 180 * GB, 170 * GB), make_curve("bfloat16", GB)],
        streams=[
            Stream(kernel=kernel, size_bytes=mib * 2**20, bytes_per_s=rate * GB)
            for kernel in ("read", "copy", "triad")
            for mib, rate in ((1, 120), (128, 27), (256, 28))
        ],
        cache_bytes=32 * 2**20,
        exchanges=[
            Exchange(
                operation=operation, ranks=4, backend="gloo", size_bytes=size, time_ns=size / 2
            )
            for operation in BUS_PASSES
            for size in (1000, 2000)
        ],
    )
    return replace(whole, **changes)


def test_bandwidths_are_counted_as_nccl_tests_do() -> None:
    bus = {
        e.operation: (e.algorithm_bytes_per_s, e.bus_bytes_per_s) for e in make_peaks().exchanges
    }
    assert bus == {
        "all-reduce": (2e9, 3e9),
        "all-gather": (2e9, 1.5e9),
        "reduce-scatter": (2e9, 1.5e9),
        "all-to-all": (2e9, 1.5e9),
        "send-receive": (2e9, 2e9),
    }


# How it is kept


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "peaks.jsonl"
    assert find_peaks(ENVIRONMENT, SETTINGS, path) is None
    append(path, [])
    assert read(path) == []
    append(path, [make_peaks()])
    assert find_peaks(ENVIRONMENT, SETTINGS, path) == make_peaks()


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        (ENVIRONMENT, Settings(threads=1)),
        ({**ENVIRONMENT, "machine": {"machine_id": "other", "cpu_model": "A CPU"}}, SETTINGS),
        ({**ENVIRONMENT, "torch": {"version": "3.0", "cpu_capability": "AVX2"}}, SETTINGS),
        ({**ENVIRONMENT, "isa": {"onednn_max_cpu_isa": "AVX2"}}, SETTINGS),
        (ENVIRONMENT, Settings(device="cuda", threads=2)),
    ],
)
def test_peaks_of_other_conditions_are_not_these(
    tmp_path: Path, environment: dict[str, Any], settings: Settings
) -> None:
    append(tmp_path / "p", [make_peaks()])
    assert find_peaks(environment, settings, tmp_path / "p") is None


def test_threads_do_not_matter_to_a_gpu(tmp_path: Path) -> None:
    gpu = {**ENVIRONMENT, "torch": {"version": "2.9", "gpu": {"name": "NVIDIA L4"}}}
    setup = read_setup(gpu, Settings(device="cuda", threads=2))
    append(tmp_path / "p", [make_peaks(setup=setup)])
    assert find_peaks(gpu, Settings(device="cuda", threads=8), tmp_path / "p") is not None


def test_the_best_counts_dtype_by_dtype(tmp_path: Path) -> None:
    newer = make_peaks(
        measured_at="2026-03-01T00:00:00+00:00",
        matmuls=[
            make_curve("float32", 90 * GB, day="2026-03-01"),  # on a busy machine, say
            make_curve("bfloat16", 900 * GB, day="2026-03-01"),
            make_curve("int8", 7 * GB, day="2026-03-01"),
        ],
        exchanges=[],
    )
    append(tmp_path / "p", [make_peaks(), newer])
    found = find_peaks(ENVIRONMENT, SETTINGS, tmp_path / "p")
    assert found is not None
    assert found.exchanges == make_peaks().exchanges
    peaks = [found.find_peak(dtype) for dtype in ("float32", "bfloat16", "int8", "float16")]
    assert [peak and peak.flops_per_s for peak in peaks] == [180 * GB, 900 * GB, 7 * GB, None]
    older, better, *_ = [peak.source for peak in peaks if peak]
    assert "2026-01-02" in older
    assert better == "measured here on 2026-03-01: a bfloat16 matmul of 128x128x128"


def test_what_is_sustained_counts_and_the_burst_stays_known(tmp_path: Path) -> None:
    burst = make_curve("bfloat16", 900 * GB)
    lasting = replace(make_curve("bfloat16", 800 * GB), sustained_flops_per_s=650 * GB)
    found = make_peaks(matmuls=[lasting])
    peak, moment = found.find_peak("bfloat16"), found.find_burst("bfloat16")
    assert peak is not None
    assert moment is not None
    assert (peak.flops_per_s, moment.flops_per_s) == (650 * GB, 800 * GB)
    assert peak.source == f"{moment.source}, sustained for seconds"
    # A burst of yesterday is higher, but nobody knows what it would have become.
    append(tmp_path / "p", [make_peaks(matmuls=[burst]), found, make_peaks(matmuls=[burst])])
    kept = find_peaks(ENVIRONMENT, SETTINGS, tmp_path / "p")
    assert kept is not None
    assert kept.find_peak("bfloat16") == peak
    carried = from_environment({"peaks": shorten(kept)})
    assert carried is not None
    assert carried.find_peak("bfloat16") == peak


def test_lines_of_before_have_no_sustained_rate(tmp_path: Path) -> None:
    append(tmp_path / "p", [make_peaks()])
    line = json.loads((tmp_path / "p").read_bytes())
    for curve in line["matmuls"]:
        del curve["sustained_flops_per_s"]
    (tmp_path / "p").write_text(json.dumps(line) + "\n")
    assert read(tmp_path / "p") == [make_peaks()]


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "p"
    append(path, [make_peaks()])
    whole = path.read_bytes()
    newer = json.dumps({**json.loads(whole), "schema": 99}).encode()
    odd = json.dumps({**json.loads(whole), "matmuls": 7}).encode()
    path.write_bytes(b"\n".join([b"\xff{", newer, odd, b"[]", whole, whole[:50]]))
    assert read(path) == [make_peaks()]


def test_only_a_file_of_peaks_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "p"
    append(path, [make_peaks()])
    whole = path.read_bytes()
    newer = whole.replace(b'"schema":1', b'"schema":99')
    path.write_bytes(newer + whole + whole[:50])
    append(path, [make_peaks(quick=True)])
    assert [peaks.quick for peaks in read(path)] == [False, True]
    assert (tmp_path / "p.torn").read_bytes() == whole[:50] + b"\n"
    for other in (b"notes\n", whole + b"notes\n", b'{"a": 1}\n', bytes(10), b'{"setup":{"device":'):
        path.write_bytes(other)
        with pytest.raises(StoreError, match=f"is not a file of peaks.*nothing was.*{PEAKS}$"):
            append(path, [])
        assert path.read_bytes() == other


def test_a_file_that_cannot_be_written_or_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"cannot be written .*; choose .*{PEAKS}$"):
        append(tmp_path / "file" / "p", [make_peaks()])
    with pytest.raises(StoreError, match=f"is a folder; choose another with {PEAKS}$"):
        read(tmp_path)


def test_the_file_is_where_the_user_says() -> None:
    assert find_file({PEAKS: "/x/p", "XDG_CACHE_HOME": "/c"}) == Path("/x/p")
    assert find_file({"XDG_CACHE_HOME": "/c"}) == Path("/c/flopwatch/peaks.jsonl")


def test_a_record_carries_the_bests_only() -> None:
    content = json.loads(json.dumps(shorten(make_peaks())))
    found = from_environment({"peaks": content})
    assert found is not None
    assert found.find_peak("float32") == make_peaks().find_peak("float32")
    assert found.find_bandwidth("copy") == make_peaks().find_bandwidth("copy")
    for operation in BUS_PASSES:
        assert found.find_exchange(operation) == make_peaks().find_exchange(operation)
        least = found.find_latency(operation)
        assert least is not None
        assert least.size_bytes == 1000
    assert [len(curve.points) for curve in found.matmuls] == [1, 1]
    assert len(json.dumps(content)) < 3500
    assert from_environment({}) is None
    assert from_environment({"peaks": {"schema": 1}}) is None


# How it is told


def list_remarks(peaks: Peaks) -> list[str]:
    return [remark for sheet in list_sheets(peaks) for remark in sheet.remarks]


def test_the_tables() -> None:
    best, matmuls, memory, streams, exchanges = list_sheets(make_peaks())
    assert best.groups[0][0] == ["float32", "180 GFLOP/s", "256x256x256", "1.00x", "3 of 5 blocks"]
    assert best.groups[0][1][:4] == ["bfloat16", "1.00 GFLOP/s", "128x128x128", "0.006x"]
    assert best.conditions == "cpu, 2 threads, A CPU, torch 2.9"
    assert matmuls.groups[0] == [
        ["128x128x128", "100 GFLOP/s", "1.00 GFLOP/s"],
        ["256x256x256", "180 GFLOP/s", ""],
        ["512x512x512", "170 GFLOP/s", ""],
    ]
    assert memory.groups[0][1] == ["copy", "one array into another", "28.0 GB/s", "256 MiB"]
    assert streams.groups[0][0] == ["1.00 MiB", *3 * ["120 GB/s"]]
    assert [len(group) for group in exchanges.groups] == 5 * [2]
    assert exchanges.groups[0][0][2:] == ["500 ns", "2.00 GB/s", "3.00 GB/s"]


def test_warnings_are_told() -> None:
    calm = list_remarks(make_peaks(matmuls=[make_curve("float32", GB)], background_share=0.01))
    assert len(calm) == 2, "what is counted, twice"
    warnings = list_remarks(
        make_peaks(
            matmuls=[
                make_curve("float32", 180 * GB, repeats=1),
                make_curve("bfloat16", GB),
                replace(make_curve("float16"), reason="no such kernel"),
            ],
            background_share=0.4,
            cache_bytes=2**30,
            exchanges=make_peaks().exchanges[:2],
        )
    )
    told = "\n".join(warnings)
    assert "bfloat16 is emulated here: float32 is 180 times as fast" in warnings
    assert "float16: none (no such kernel)" in warnings
    assert "seen once and not again: the best of float32; " in told
    assert "other work took 40 % of all cores' time" in told
    assert "too little free memory" in told
    assert "reduce-scatter: gloo does not have it" in warnings
    assert "all-reduce: gloo" not in told


def test_a_known_gpu_has_its_nominal_peaks_beside() -> None:
    setup = replace(make_peaks().setup, device="cuda", gpu_name="NVIDIA A100-SXM4-80GB")
    curve = make_curve("bfloat16", 156e12)
    best, _, memory, *_ = list_sheets(make_peaks(setup=setup, matmuls=[curve]))
    assert best.headings[-2:] == ["nominal", "of it"]
    assert best.groups[0][0][-2:] == ["312 TFLOP/s", "50%"]
    assert memory.headings[-1] == "nominal"
    assert memory.groups[0][0][-1] == "2039 GB/s"


def test_a_sustained_rate_is_shown_beside_the_burst() -> None:
    setup = replace(make_peaks().setup, device="cuda", gpu_name="NVIDIA A100-SXM4-80GB")
    curve = replace(make_curve("bfloat16", 280e12), sustained_flops_per_s=249.6e12)
    peaks = make_peaks(setup=setup, matmuls=[curve])
    best, *_ = list_sheets(peaks)
    assert best.headings[:3] == ["dtype", "best", "sustained"]
    assert best.groups[0][0][:3] == ["bfloat16", "280 TFLOP/s", "250 TFLOP/s"]
    assert best.groups[0][0][-1] == "80%"
    assert answer_peaks(peaks)[0] == (
        "Matmuls reach 280 TFLOP/s in bfloat16 (sustained 250 TFLOP/s)."
    )
    assert as_dict(peaks)["best"]["sustained_flops_per_s"] == {"bfloat16": 249.6e12}


def test_as_json_the_best_is_beside_what_is_stored() -> None:
    content = as_dict(make_peaks(exchanges=[]))
    assert content["best"]["flops_per_s"] == {"float32": 180 * GB, "bfloat16": GB}
    assert content["best"]["memory_bytes_per_s"]["read"] == 28 * GB
    assert content["best"]["bus_bytes_per_s"]["all-reduce"] is None
    assert content["matmuls"] == msgspec.to_builtins(make_peaks().matmuls)


# The command


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Those that would start processes; they find what `make_peaks` has."""
    made: list[tuple[str, dict[str, Any]]] = []
    whole = make_peaks()
    answers = {
        "measure_peaks": {
            "torch": ENVIRONMENT["torch"],
            "matmuls": whole.matmuls,
            "streams": whole.streams,
            "cache_bytes": whole.cache_bytes,
            "background_share": 0.0,
        },
        "measure_collectives": whole.exchanges,
    }

    def call(function: str, arguments: dict[str, Any], **given: Any) -> Any:
        made.append((function, {**arguments, **given}))
        return msgspec.to_builtins(answers[function])

    monkeypatch.setattr("flopwatch.runner.session.call", call)
    monkeypatch.setattr("flopwatch.runner.peaks.count_usable_cores", lambda quota: 4)
    return made


def test_the_command_keeps_and_prints(
    calls: list[tuple[str, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PEAKS, str(tmp_path / "p"))
    told = CliRunner().invoke(cli, ["peaks", "--quick", "--device", "cpu", "--threads", "2"])
    assert told.exit_code == 0, told.output
    assert "180 GFLOP/s" in told.stdout
    assert "this takes about" in told.stderr
    (kept,) = read(tmp_path / "p")
    assert kept.matmuls == make_peaks().matmuls
    assert kept.setup.threads == 2
    assert kept.quick
    assert [name for name, _ in calls] == [*2 * ["measure_collectives"], "measure_peaks"]
    for (_, given), ranks in zip(calls, (2, 4), strict=False):
        assert given == {"effort": "quick", "device": "cpu", "threads": 2, "ranks": ranks}
    assert calls[2][1]["dtypes"] == ["float32", "bfloat16", "float16", "int8"]


def test_the_command_as_json_without_collectives(
    calls: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    options = ["--device", "cpu", "--dtype", "int8", "--ranks", "1", "--out", str(tmp_path / "p")]
    told = CliRunner().invoke(cli, ["peaks", "--json", *options])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["best"]["flops_per_s"]["float32"] == 180 * GB
    assert [name for name, _ in calls] == ["measure_peaks"]
    assert calls[0][1]["dtypes"] == ["int8"]
    assert calls[0][1]["effort"] == "full"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ranks": 5}, "--ranks 5, but there are 4 cores, .* choose at most 4"),
        ({"dtypes": ["tf32"]}, "there are no tf32 matmuls on cpu; choose --dtype from float32, "),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    calls: list[Any], changes: dict[str, Any], sentence: str
) -> None:
    usual = {"device": "cpu", "threads": None, "dtypes": [], "ranks": None, "quick": True}
    with pytest.raises(UsageError, match=f"^{sentence}"):
        choose_options(**{**usual, **changes})
    assert not calls


def test_where_there_is_no_gpu_no_time_is_promised(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flopwatch.devices.present_accelerators._find", lambda _: Accelerators())
    told = CliRunner().invoke(cli, ["peaks", "--device", "cuda", "--out", str(tmp_path / "p")])
    assert isinstance(told.exception, UsageError)
    assert str(told.exception).startswith("--device cuda, but torch finds no accelerator here")
    assert (told.output, calls, (tmp_path / "p").exists()) == ("", [], False)


def test_the_command_offers_what_there_is() -> None:
    assert list(list_dtypes("cuda")) == list(list_dtypes("npu")) == machine.DTYPES
    assert set(list_dtypes("cpu")) < set(machine.DTYPES)


def test_the_time_is_told_by_effort(calls: list[Any]) -> None:
    usual = {"device": "cpu", "threads": None, "dtypes": [], "ranks": 1}
    quick, full = (describe_time(choose_options(**usual, quick=q)) for q in (True, False))
    assert quick == "this takes about 15s, and up to 22s while the machine is busy"
    assert full == "this takes about 50s, and up to 1m32s while the machine is busy"


def test_an_accelerator_takes_longer() -> None:
    """Every dtype is measured under load, too."""
    options = PeakOptions(
        device="npu", threads=None, dtypes=["bfloat16", "int8"], ranks=(), quick=False
    )
    assert describe_time(options).startswith("this takes about 1m, and up to 1m42s")


# Under torchrun


def set_place(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int = 4) -> None:
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    for name, value in {**place, "MASTER_PORT": 29500, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(("ranks", "chosen"), [(None, (4,)), (3, (3,)), (1, ())])
def test_collectives_are_those_of_torchrun_s_ranks(
    monkeypatch: pytest.MonkeyPatch, calls: list[Any], ranks: int | None, chosen: tuple[int, ...]
) -> None:
    set_place(monkeypatch, rank=0)
    usual = {"device": "cpu", "threads": None, "dtypes": [], "quick": True}
    options = choose_options(**usual, ranks=ranks)
    assert options.ranks == chosen
    assert not serve_rank_zero(options)
    with pytest.raises(UsageError, match=r"^--ranks 5, but torchrun has started 4; choose at most"):
        choose_options(**usual, ranks=5)


@pytest.mark.parametrize(("ranks", "served"), [("4", [2]), ("1", [])])
def test_other_ranks_only_do_what_rank_0_asks_for(
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Any],
    tmp_path: Path,
    ranks: str,
    served: list[int],
) -> None:
    set_place(monkeypatch, rank=2)
    found: list[int] = []
    serve = "flopwatch.runner.session.serve_rank"
    monkeypatch.setattr(serve, lambda place: found.append(place.rank))
    options = ["--device", "cpu", "--ranks", ranks, "--out", str(tmp_path / "p")]
    told = CliRunner().invoke(cli, ["peaks", *options])
    assert (told.exit_code, told.output) == (0, "")
    assert found == served
    assert not calls
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_the_whole_command_under_torchrun(tmp_path: Path) -> None:
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    wanted = ["--device", "cpu", "--quick", "--dtype", "float32", "--out", "p"]
    done = subprocess.run(
        [*starter, "-m", "flopwatch", "peaks", *wanted],
        cwd=tmp_path,
        env={**os.environ, "FLOPWATCH_PORT": str(find_free_port())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (kept,) = read(tmp_path / "p")
    assert {exchange.ranks for exchange in kept.exchanges} == {2}
    assert kept.find_peak("float32") is not None
    assert done.stdout.count("Matmuls reach") == 1, "only rank 0 prints"


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "p")]
    told = CliRunner().invoke(cli, ["peaks", "--device", "cpu", "--quick", "--json", *out])
    assert told.exit_code == 0, told.output
    best = json.loads(told.stdout)["best"]
    assert list(best["flops_per_s"]) == ["float32", "bfloat16", "float16", "int8"]
    assert set(best.pop("sustained_flops_per_s").values()) == {None}, "of accelerators only"
    assert all(rate > 1e6 for kind in best.values() for rate in kind.values())
    (kept,) = read(tmp_path / "p")
    assert isinstance(kept.setup, Setup)
    assert kept.find_peak("float32") is not None
