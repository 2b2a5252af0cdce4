"""Whole runs with real child processes: ones that work, crash, hang and run out of memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwatch.errors import FlopwatchError, SuiteError, UsageError
from flopwatch.records.record import Record, encode
from flopwatch.records.store import read
from flopwatch.runner import session
from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Settings
from tests.conftest import make_record

QUICK = Settings(budget_s=0.3, target_interval=0.5, silence_limit_s=60)

Write = Callable[..., Path]


class SilentWatcher:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.groups: list[str] = []

    def begin(self, groups: Any, settings: Any, estimate: Any) -> None: ...
    def begin_group(self, group: Any) -> None:
        self.groups.append(group.label)

    def progress(self, progress: Any, records: Any) -> None: ...

    def remark(self, sentence: str) -> None:
        self.say(sentence)

    def end_group(self, group: Any, records: Any) -> None: ...
    def say(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture
def write_suite(tmp_path: Path) -> Write:
    def write(body: str, variants: str = "['plain', 'odd']", axes: str = "{'size': [64]}") -> Path:
        path = tmp_path / "mine.py"
        path.write_text(
            "import contextlib, os, signal, sys, time\nimport torch\nimport flopwatch\n"
            f"suite = flopwatch.Suite('mine', axes={axes}, variants={variants})\n"
            f"@suite.build\ndef build(case):\n"
            "    x = torch.arange(float(case.size))\n"
            "    if case.variant == 'plain':\n        return lambda: x + x\n" + body
        )
        return path

    return write


def run(path: Path, watcher: SilentWatcher | None = None, **options: Any) -> session.Report:
    settings = options.pop("settings", QUICK)
    options.setdefault("memory_limit_bytes", 3 * 2**30)  # none may take all of the memory
    return session.run(
        session.Options(
            suite=str(path), settings=settings, out=path.parent / "out.jsonl", **options
        ),
        watcher or SilentWatcher(),
    )


def by_variant(report: session.Report) -> dict[str, Record]:
    return {record.variant: record for record in report.measured}


def test_a_run_stores_complete_records(write_suite: Write) -> None:
    report = run(write_suite("    return lambda: 2 * x\n"), threads=1)
    stored = read(report.out).records
    assert list(report.measured) == stored
    plain, odd = stored
    assert (plain.variant, odd.variant, odd.baseline) == ("plain", "odd", "plain")
    assert plain.status == odd.status == "ok"
    assert plain.rounds == odd.rounds == list(range(len(plain.rounds)))
    assert len(plain.samples_ns["call"]) == len(plain.rounds) == len(plain.calls_per_sample)
    assert 0 < plain.warmup_samples < len(plain.rounds)
    assert max(plain.calls_per_sample) > 1  # an addition of 64 numbers is short
    assert odd.check is not None
    assert odd.check.errors == {"output": 0.0}
    assert odd.check.reference == "plain"
    assert plain.settings.threads == 1
    assert plain.environment["torch"]["threads"] == 1
    assert plain.environment["torch"]["version"]
    assert plain.environment["allocator"]
    assert list(plain.sources) == ["mine.py"]


HOSTILE = """
def garble(line):
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.islink(path) and os.readlink(path).startswith("pipe:"):
            os.write(int(name), line)


@suite.flops
def count_flops(case):
    if case.variant == "flops_of_no_phase":
        return 1e9
    phase = "cal" if case.variant == "misspelt_phase" else "call"
    return {phase: -1 if case.variant == "negative_flops" else 1}


@suite.memory
def estimate_memory(case):
    return {"weights": float("nan") if case.variant == "memory_is_nan" else 1}
"""

FAILURES = {
    "garbles": (
        "garble(b'garbage\\n'); time.sleep(100)",
        "crash",
        "broken message during build: b'garbage' is not a message",
    ),
    "reports_nonsense": (
        """garble(b'{"kind": "Points", "variant": "nobody", "points": []}\\n'); time.sleep(100)""",
        "crash",
        "broken message during build: a report about 'nobody'",
    ),
    "kills_the_server": (
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(100)",
        "crash",
        "the server that starts worker processes died with SIGKILL during build",
    ),
    "forks": ("return lambda: (os.fork(), 2 * x)[1]", "ok", ""),
    "negative_flops": (
        "return lambda: 2 * x",
        "crash",
        "the flops function of suite 'mine' gives -1 for 'unknown'",
    ),
    "flops_of_no_phase": (
        "return lambda: 2 * x",
        "crash",
        "the flops function of suite 'mine' returns 1000000000.0; return numbers by name",
    ),
    "misspelt_phase": (
        "return lambda: 2 * x",
        "crash",
        "the flops function names the phase 'cal', which the workload does not have; its phases "
        "are call",
    ),
    "memory_is_nan": (
        "return lambda: 2 * x",
        "crash",
        "the memory function of suite 'mine' gives nan for 'weights'",
    ),
    "odd_phase": (
        "return {'\\ud800': lambda: 2 * x}",
        "crash",
        r"'\\ud800' is not valid Unicode",
    ),
    "raises_half_a_character": ("raise ValueError('\\ud800')", "crash", "^ValueError: "),
    "raises": (
        "raise ValueError('no such luck')",
        "crash",
        r"ValueError: no such luck \(mine.py:\d+\)",
    ),
    "raises_late": (
        "calls = iter(range(5)); return lambda: (next(calls), 2 * x)[1]",
        "crash",
        r"StopIteration \(mine.py:\d+\)",
    ),
    "segfault": (
        "import ctypes; return lambda: ctypes.string_at(0)",
        "crash",
        r"died with SIGSEGV during check at .*\.py:\d+",
    ),
    "illegal_instruction_late": (
        "calls = iter(range(5)); return lambda: 2 * x if next(calls, None) is not None "
        "else os.kill(os.getpid(), signal.SIGILL)",
        "crash",
        "died with SIGILL during sampling: an instruction that this CPU announces",
    ),
    "leaves": ("os._exit(7)", "crash", "left with exit code 7 during build"),
    "oom_in_torch": ("return lambda: torch.zeros(2**40)", "oom", "can't allocate memory"),
    "oom_in_python": ("return lambda: bytes(2**42)", "oom", "MemoryError"),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "crash",
        "killed by SIGKILL during build",
    ),
    "wrong": ("return lambda: x + x + 1", "wrong", "disagrees with plain: output is off by"),
    "unsupported": (
        "raise flopwatch.Unsupported('not on a Monday')",
        "unsupported",
        "^not on a Monday$",
    ),
    "unimplemented": (
        "return lambda: torch.ones(2, 2, dtype=torch.bool) @ torch.ones(2, 2, dtype=torch.bool)",
        "unsupported",
        "not implemented for 'Bool'",
    ),
}


def test_failures_are_records_and_the_others_are_measured(write_suite: Write) -> None:
    """All of them in one group: every death costs only the variant that died."""
    body = "".join(
        f"    if case.variant == {variant!r}:\n        {code}\n"
        for variant, (code, _, _) in FAILURES.items()
    )
    variants = ["plain", *FAILURES, "last"]
    report = run(write_suite(f"{body}    return lambda: 2 * x\n{HOSTILE}", variants=repr(variants)))
    records = by_variant(report)
    assert list(records) == variants
    for variant, (_, status, reason) in FAILURES.items():
        assert records[variant].status == status, variant
        assert re.search(reason, records[variant].message or ""), records[variant].message
    for variant in ("plain", "last"):
        assert records[variant].status == "ok"
        assert len(records[variant].rounds) > records[variant].warmup_samples
    assert records["plain"].rounds == records["last"].rounds
    assert read(report.out).records == list(report.measured)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("    time.sleep(1000)\n", "build"),
        ("    calls = iter(range(5))\n    def stall():\n        if next(calls, None) is None:\n"
         "            time.sleep(1000)\n        return 2 * x\n    return stall\n", "sampling"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("patient")
def test_a_hang_is_ended_and_told_with_its_place(write_suite: Write, body: str, place: str) -> None:
    settings = replace(QUICK, silence_limit_s=8)
    records = by_variant(run(write_suite(body), settings=settings))
    assert records["odd"].status == "timeout"
    assert records["odd"].message is not None
    assert f"no progress for 8 s during {place} at mine.py:" in records["odd"].message
    assert records["plain"].status == "ok", records["plain"].message


def test_the_memory_limit_is_the_users(write_suite: Write) -> None:
    path = write_suite("    return lambda: torch.zeros(2**27) .sum() * 0 + 2 * x\n")  # 512 MiB
    assert by_variant(run(path, memory_limit_bytes=2**28))["odd"].status == "oom"
    assert by_variant(run(path, memory_limit_bytes=2**33))["odd"].status == "ok"


def test_the_memory_limit_holds_while_a_suite_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("kept = [bytearray(1 << 28) for _ in range(12)]\n")  # zeros: no real memory
    with pytest.raises(FlopwatchError, match="MemoryError"):
        run(path, memory_limit_bytes=2**30)


def test_who_fits_does_not_fail_for_what_another_left_behind(write_suite: Write) -> None:
    """A block that is freed in a heap that is kept is too small for the next of its size."""
    path = write_suite(
        "    y = torch.ones(2**27)\n"  # 512 MiB, twice which is not allowed
        "    if case.variant == 'odd': keep = torch.ones(4); torch.ones(2**28)\n"
        "    return lambda: 2 * x * y[0]\n",
        variants="['plain', 'odd', 'last']",
    )
    records = by_variant(run(path, memory_limit_bytes=int(0.9 * 2**30)))
    assert {variant: record.status for variant, record in records.items()} == {
        "plain": "ok",
        "odd": "oom",
        "last": "ok",
    }
    assert records["plain"].rounds == records["last"].rounds


def test_a_failed_baseline_leaves_the_others_measured_but_unchecked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={}, variants=['base', 'other'])\n"
        "@suite.build\ndef build(case):\n"
        "    if case.variant == 'base':\n        raise ValueError('gone')\n"
        "    return lambda: 1.0\n"
    )
    records = by_variant(run(path))
    assert records["base"].status == "crash"
    assert records["other"].status == "ok"
    assert records["other"].unchecked == "its reference, base, is not measured here"


def test_what_a_suite_prints_does_not_reach_our_output(
    write_suite: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    run(write_suite("    print('noise')\n    os.system('echo louder')\n    return lambda: 2 * x\n"))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_phases_gradients_and_counts_reach_the_record(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch, flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={'dtype': ['float32']}, variants=['a', 'b'])\n"
        "@suite.build\ndef build(case):\n"
        "    w = torch.randn(8, 8, requires_grad=True)\n"
        "    x = torch.randn(4, 8)\n"
        "    def clear(): w.grad = None\n"
        "    return flopwatch.Workload(phases={'forward': lambda: x @ w,\n"
        "        'backward': lambda y: y.sum().backward()}, gradients={'w': w}, reset=clear)\n"
        "@suite.flops\ndef flops(case): return {'forward': 512, 'backward': {'float32': 1024}}\n"
        "@suite.bytes\ndef count(case): return {'forward': 384}\n"
    )
    record = by_variant(run(path))["b"]
    assert list(record.samples_ns) == ["forward", "backward"]
    assert record.flops == {"forward": {"float32": 512.0}, "backward": {"float32": 1024.0}}
    assert record.bytes == {"forward": 384.0}
    assert record.check is not None
    assert record.check.errors == {"output": 0.0, "grad w": 0.0}  # same seed, same weights


def test_notes_of_a_workload_reach_the_record(write_suite: Write) -> None:
    path = write_suite(
        "    return flopwatch.Workload(phases={'call': lambda: None}, notes=['built by hand'])\n"
    )
    record = by_variant(run(path))["odd"]
    assert record.status == "wrong"  # and still it says how it was built
    path = write_suite(
        "    return flopwatch.Workload(phases={'call': lambda: 2 * x}, notes=['built by hand'])\n"
    )
    assert by_variant(run(path))["odd"].notes == ["built by hand"]


FLOPS = (
    "@suite.flops\ndef flops(case): return {'call': {'float32': 3e9 * case.size, 'int8': 1e9}}\n"
)


def test_a_run_says_first_how_long_it_will_take(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n" + FLOPS)
    watcher = SilentWatcher()
    run(path, watcher)
    assert "2 cases in 1 group, " in watcher.said[0]
    assert re.search(r"a plain matmul here: float32 \d.* .FLOP/s", watcher.said[0])
    again = SilentWatcher()
    run(path, again)
    assert not any("in 1 group" in text for text in again.said)  # nothing is to be measured
    bare = SilentWatcher()
    run(write_suite("    return lambda: 2 * x\n"), bare, rerun=True)
    assert "plain matmul" not in bare.said[0]


def test_load_is_said_before_anything_is_measured(
    write_suite: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to do about it; a calm machine is not worth a word."""
    said = []
    for share in (0.64, 0.02):
        monkeypatch.setattr(session.machine, "load", lambda s=share: {"background_share": s})
        watcher = SilentWatcher()
        run(write_suite("    return lambda: 2 * x\n"), watcher, rerun=True)
        said.append(watcher.said)
    assert said[0][1] == (
        "other processes take 64 % of the cores: times will be longer and less certain; end them, "
        "or wait"
    )
    assert not any("other processes" in sentence for sentence in said[1])


def test_counts_that_fail_cost_the_estimate_nothing(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n@suite.flops\ndef flops(case): return 1 / 0\n")
    watcher = SilentWatcher()
    records = by_variant(run(path, watcher))
    assert "2 cases in 1 group, " in watcher.said[0]
    assert records["plain"].status == "crash"
    assert "ZeroDivisionError" in (records["plain"].message or "")


def test_a_second_run_measures_only_what_is_missing(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n", axes="{'size': [64, 128]}")
    first = run(path, filters=["size=64"])
    watcher = SilentWatcher()
    second = run(path, watcher)
    assert watcher.groups == ["size=128"]
    assert list(second.answered) == list(first.measured)
    assert any("2 cases are in" in sentence for sentence in watcher.said)
    third = run(path)
    assert not third.measured
    assert len(run(path, rerun=True).measured) == 4


def test_a_changed_source_or_setting_is_measured_again(write_suite: Write) -> None:
    path = write_suite("    from beside import twice\n    return lambda: twice(x)\n")
    beside = path.parent / "beside.py"
    beside.write_text("def twice(x): return 2 * x\n")
    assert sorted(run(path).measured[1].sources) == ["beside.py", "mine.py"]
    assert not run(path).measured
    beside.write_text("def twice(x): return x * 2\n")
    assert len(run(path).measured) == 2
    assert len(run(path, threads=1).measured) == 2
    strict = Settings(budget_s=0.3, target_interval=0.4)
    assert len(run(path, threads=1, settings=strict).measured) == 2
    assert not run(path, threads=1).measured


def test_another_compiler_is_measured_again(
    write_suite: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fell back to a slower way for lack of one is no answer once there is one."""
    path = write_suite("    return lambda: 2 * x\n")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert len(run(path).measured) == len(run(path).answered) == 2
    monkeypatch.setenv("CXX", "true")
    assert len(run(path).measured) == 2


def test_a_compiler_that_was_repaired_is_measured_again(
    write_suite: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_suite("    return lambda: 2 * x\n")
    compiler = path.parent / "compiler"
    monkeypatch.setenv("CXX", str(compiler))
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    assert len(run(path).measured) == len(run(path).answered) == 2
    compiler.write_text("#!/bin/sh\necho compiler 12.2.0\n")
    assert len(run(path).measured) == 2


def test_a_new_variant_is_measured_beside_its_baseline(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n")
    run(path, filters=["variant=plain"])
    assert [record.variant for record in run(path).measured] == ["plain", "odd"]


def test_the_budget_of_a_run_is_kept_and_what_is_over_is_skipped(write_suite: Write) -> None:
    path = write_suite(
        "    time.sleep(4.5 if case.size < 3 else 0)\n    return lambda: 2 * x\n",
        axes="{'size': [1, 2, 3, 4]}",
    )
    report = run(path, budget_s=8.0, settings=Settings(target_interval=0.0001))
    by_size = {record.params["size"]: record for record in report.measured}
    assert by_size[1].settings.budget_s == pytest.approx(7.2 / 8, abs=0.2)  # and not the least, 0.5
    assert (by_size[1].status, by_size[4].status) == ("ok", "skipped")
    assert by_size[4].message == "the run's budget was used up"
    with pytest.raises(UsageError, match="a budget of 1s cannot hold 8 cases"):
        run(path, budget_s=1.0, rerun=True)


def test_a_run_within_a_budget_is_resumed_too(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n")
    unreachable = Settings(target_interval=0.0001)
    first = run(path, budget_s=2.0, settings=unreachable)
    assert {record.stop_reason for record in first.measured} <= {"budget", "stalled"}
    assert not run(path, budget_s=2.0, settings=unreachable).measured


def test_a_reference_that_fails_is_not_the_variants_fault(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import flopwatch\n"
        "suite = flopwatch.Suite('mine', axes={}, variants=['a'])\n"
        "suite.build(lambda case: lambda: 1.0)\n"
        "@suite.reference\ndef reference(case): raise MemoryError('too large')\n"
    )
    record = by_variant(run(path))["a"]
    assert record.status == "ok"
    assert record.unchecked == "its reference failed: MemoryError: too large (mine.py:5)"


def test_what_goes_wrong_after_measuring_spoils_nothing(write_suite: Write) -> None:
    """A worker that does not go home, with a child that holds the pipe open."""
    path = write_suite(
        "    import atexit, threading\n"
        "    if os.fork() == 0: time.sleep(300); os._exit(0)\n"
        "    return lambda: 2 * x\n"
    )
    started_s = time.monotonic()
    records = by_variant(run(path, settings=replace(QUICK, silence_limit_s=300)))
    assert time.monotonic() - started_s < 120
    assert {record.status for record in records.values()} == {"ok"}


def test_corrupt_lines_that_are_skipped_are_named(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n")
    out = path.parent / "out.jsonl"
    out.write_bytes(b"garbage\n" + encode(make_record()) + b"\n")
    watcher = SilentWatcher()
    assert len(run(path, watcher, skip_corrupt=True).measured) == 2
    assert any("line 1 was skipped" in sentence for sentence in watcher.said)


def test_a_file_that_looks_like_a_module_does_not_get_in_the_way(
    write_suite: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_suite("    return lambda: 2 * x\n")
    (path.parent / "queue.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(path.parent)
    assert by_variant(run(path))["odd"].status == "ok"


def test_a_suite_that_cannot_be_loaded_is_one_sentence(write_suite: Write) -> None:
    path = write_suite("    pass\n")
    path.write_text("import flopwatch\nimport nonexistent_module\n")
    with pytest.raises(
        SuiteError, match=r"mine.py cannot be loaded: ModuleNotFoundError.*mine.py:2"
    ):
        run(path)
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    with pytest.raises(SuiteError, match="mine.py cannot be loaded: died with SIGSEGV during load"):
        run(path)


def test_the_runner_never_imports_torch(write_suite: Write) -> None:
    path = write_suite("    return lambda: 2 * x\n")  # which imports torch at its top
    program = (
        "import sys\nfrom flopwatch.cli.main import main\n"
        f"try: main(['run', {str(path)!r}, '--case-budget', '0.1s'])\n"
        "except SystemExit as leaving: assert leaving.code == 0, leaving.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=path.parent, stdout=subprocess.DEVNULL
    )


def test_an_accelerator_where_there_is_none_is_refused(write_suite: Write) -> None:
    with pytest.raises(UsageError, match="cuda, but torch finds no accelerator here; choose cpu"):
        run(write_suite("    return lambda: 2 * x\n"), device="cuda")


def test_spawned_workers_do_the_same(write_suite: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopwatch.runner.local_launcher.CAN_FORK_SERVER", False)
    path = write_suite("    os.kill(os.getpid(), signal.SIGSEGV)\n")
    records = by_variant(run(path))
    assert records["plain"].status == "ok"
    assert records["odd"].status == "crash"


@pytest.mark.own_server
def test_the_server_has_imported_torch_and_started_no_thread() -> None:
    with Launcher(environment={"OPENBLAS_NUM_THREADS": "1"}) as launcher:
        assert launcher._server is not None
        assert launcher._server.threads == 1
        maps = Path(f"/proc/{launcher.server_pid}/maps").read_text()
        assert "libtorch_cpu" in maps
    assert not Path(f"/proc/{launcher.server_pid}").exists()


def test_no_process_outlives_a_killed_runner(write_suite: Write, tmp_path: Path) -> None:
    path = write_suite(f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                       "    return lambda: time.sleep(1000)\n")  # fmt: skip
    runner = subprocess.Popen(
        [sys.executable, "-m", "flopwatch", "run", str(path), "--out", str(tmp_path / "o.jsonl")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pid_file = tmp_path / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    runner.kill()
    runner.wait()
    worker = int(pid_file.read_text())
    wait_until(lambda: not is_alive(worker))


@contextmanager
def start(command: Sequence[object], told: Path) -> Iterator[subprocess.Popen[bytes]]:
    """flopwatch, which tells what it has to say to a file, and does not outlive a failed test."""
    with told.open("w") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-m", "flopwatch", *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def press_ctrl_c(run: subprocess.Popen[bytes], told: Path) -> None:
    """For the first time; returns when it was noticed, since signals at once would be one."""
    sentence = "finishing the current group; press Ctrl-C again to stop at once"
    run.send_signal(signal.SIGINT)
    wait_until(lambda: sentence in told.read_text())


@contextmanager
def start_interruptible(
    write_suite: Write, told: Path, case_budget: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of two groups; begins when the first one is past its warm-up, which is when runs are
    instrumented."""
    marker = write_suite("").parent / "marker"
    path = write_suite(
        "    calls = iter(range(10**9))\n"
        "    def slow():\n"
        "        time.sleep(0.02)\n"
        "        return 2 * x\n"
        "    @contextlib.contextmanager\n"
        "    def instrument(stopwatch):\n"
        f"        if next(calls) == 3: open({str(marker)!r}, 'w')\n"
        "        yield\n"
        "    return flopwatch.Workload(phases={'call': slow}, instrument=instrument)\n",
        axes="{'size': [8, 9]}",
    )
    command = ["run", path, "--target-interval", "0.0001%"]
    command += ["--out", path.parent / "out.jsonl", "--case-budget", case_budget]
    with start(command, told) as run:
        wait_until(marker.exists)
        yield run


def test_ctrl_c_once_finishes_the_group(write_suite: Write, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with start_interruptible(write_suite, told, "4s") as run:
        press_ctrl_c(run, told)
        assert run.wait(timeout=120) == 130
    records = read(tmp_path / "out.jsonl").records
    assert [(r.params["size"], r.status) for r in records] == [(8, "ok"), (8, "ok")]
    assert {r.stop_reason for r in records} <= {"budget", "stalled"}  # it was not cut short


def test_ctrl_c_twice_stops_at_once_and_stores_what_was_measured(
    write_suite: Write, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    with start_interruptible(write_suite, told, "1h") as run:
        press_ctrl_c(run, told)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=60) == 130
    records = read(tmp_path / "out.jsonl").records
    assert [(r.params["size"], r.status, r.stop_reason) for r in records] == [
        (8, "ok", "interrupted")
    ] * 2
    assert all(len(r.rounds) > r.warmup_samples > 0 for r in records)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):  # it may end between the two
        return False


def wait_until(condition: Callable[[], bool], limit_s: float = 120) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.05)
