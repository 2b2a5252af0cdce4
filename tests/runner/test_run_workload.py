"""Whole runs of workloads that say more than times: regions, facts, curves, memory."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwatch.records.record import Record
from flopwatch.records.store import read
from tests.runner.test_session import (
    QUICK,
    SilentWatcher,
    by_variant,
    press_ctrl_c,
    run,
    start,
    wait_until,
)

WriteFile = Callable[[str], Path]


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    """Write a suite of one group, given the body of its build function."""

    def write(body: str, variants: str = "['plain', 'odd']") -> Path:
        path = tmp_path / "mine.py"
        indented = "".join(f"    {line}\n" for line in body.splitlines())
        path.write_text(
            "import contextlib, os, signal, threading, time\nimport torch\nimport flopwatch\n"
            f"suite = flopwatch.Suite('mine', axes={{}}, variants={variants})\n"
            f"@suite.build\ndef build(case):\n{indented}"
        )
        return path

    return write


def measure(path: Path, **settings: Any) -> dict[str, Record]:
    """Records by variant, which are also what can be read back from the file."""
    report = run(path, settings=replace(QUICK, **settings))
    assert read(report.out).records == list(report.measured)
    return by_variant(report)


HOOKED = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
x = torch.randn(32, 64, requires_grad=True)
runs = iter(range(10**9))

@contextlib.contextmanager
def instrument(stopwatch: flopwatch.Stopwatch):
    next(runs)
    hooks = []
    for layer in model:
        name = type(layer).__name__
        hooks += [
            layer.register_forward_pre_hook(lambda *_, n=name: stopwatch.start(f"forward/{n}")),
            layer.register_forward_hook(lambda *_, n=name: stopwatch.stop(f"forward/{n}")),
            layer.register_full_backward_pre_hook(
                lambda *_, n=name: stopwatch.start(f"backward/{n}")),
            layer.register_full_backward_hook(lambda *_, n=name: stopwatch.stop(f"backward/{n}")),
        ]
    yield
    for hook in hooks:
        hook.remove()
"""

WORKLOAD = """
return flopwatch.Workload(
    phases={"forward": lambda: model(x), "backward": lambda y: y.sum().backward()},
    reset=model.zero_grad,
    instrument=instrument if case.variant == "odd" else None,
)
"""


def test_hooks_of_torch_modules_give_regions(write_file: WriteFile) -> None:
    records = measure(write_file(HOOKED + WORKLOAD))
    odd, plain = records["odd"], records["plain"]
    assert odd.status == "ok", odd.message
    assert {name: region.calls for name, region in odd.regions.items()} == {
        "forward/Linear": 2,
        "forward/ReLU": 1,
        "backward/Linear": 2,
        "backward/ReLU": 1,
    }
    measured = len(odd.rounds) - odd.warmup_samples
    assert len(odd.instrumented_ns) == measured > 0
    together = [
        sum(times) for times in zip(*(r.samples_ns for r in odd.regions.values()), strict=True)
    ]
    assert all(0 < part < whole for part, whole in zip(together, odd.instrumented_ns, strict=True))
    assert plain.rounds == odd.rounds
    assert plain.instrumented_ns == []
    assert plain.regions == {}


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ("raise ValueError('enough')", "ValueError: enough (mine.py:"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died with SIGSEGV during sampling at mine.py:"),
    ],
)
def test_a_crash_in_an_instrumented_run_leaves_a_valid_record(
    write_file: WriteFile, death: str, reason: str
) -> None:
    # The pause makes sure that what was taken before is sent before it dies.
    code = f"""run = next(runs)
    if run == 1:
        time.sleep(0.5)
    if run == 2:
        {death}
"""
    records = measure(write_file(HOOKED.replace("next(runs)\n", code) + WORKLOAD), budget_s=5)
    odd = records["odd"]
    assert odd.status == "crash"
    assert reason in (odd.message or "")
    assert len(odd.instrumented_ns) == 2
    assert len(odd.rounds) - odd.warmup_samples in (2, 3)  # the last one was perhaps not sent
    assert records["plain"].status == "ok", records["plain"].message


def test_a_region_that_is_never_stopped_is_a_failed_record(write_file: WriteFile) -> None:
    hooked = HOOKED.replace('stopwatch.stop(f"backward/{n}")', "None")
    odd = measure(write_file(hooked + WORKLOAD))["odd"]
    assert odd.status == "crash"
    assert odd.message is not None
    assert odd.message.startswith("region 'backward/Linear' is started again before it was stopped")
    assert odd.rounds


def test_conditions_and_facts_reach_the_record(write_file: WriteFile) -> None:
    body = """
if case.variant == "plain":
    return lambda: 1.0
return flopwatch.Workload(
    phases={"call": lambda: 1.0},
    conditions={"autocast": "off"},
    facts={"parameters": 125_000_000, "density": 0.25},
)
"""
    records = measure(write_file(body))
    assert records["odd"].conditions == {"autocast": "off"}
    assert records["odd"].facts == {"parameters": 125e6, "density": 0.25}
    assert records["plain"].conditions == records["plain"].facts == {}


CURVES = """
def curves():
    {curves}
if case.variant == "plain":
    return lambda: 1.0
return flopwatch.Workload(phases={{"call": lambda: 1.0}}, curves=curves)
"""


def test_a_study_gives_curves_from_the_same_seed(write_file: WriteFile) -> None:
    curves = "for step in range(3): yield {'step': step, 'loss': torch.rand(())}"
    path = write_file(CURVES.format(curves=curves), variants="['plain', 'a', 'b']")
    watcher = SilentWatcher()
    records = by_variant(run(path, watcher))
    assert [record.status for record in records.values()] == ["ok"] * 3
    assert records["plain"].curves == {}
    assert records["a"].curves["step"] == [0, 1, 2]
    assert len(set(records["a"].curves["loss"])) == 3
    assert records["a"].curves == records["b"].curves
    assert watcher.said[-1] == "mine: timed; taking the curves of a, b"
    assert not run(path).measured  # curves are resumed too


FAILED_STUDIES = {
    "raises": ("raise ValueError('enough')", "crash", r"^ValueError: enough \(mine.py:\d+\)$"),
    "oom": ("torch.zeros(2**42)", "oom", "can't allocate memory"),
    "nan": (
        "yield {'loss': float('nan')}",
        "wrong",
        "^its curve diverged: loss is nan at point 3; the points before it are stored$",
    ),
    "names": (
        "yield {'los': 1}",
        "crash",
        "^the first point has loss, and point 3 los; yield the same names each time$",
    ),
    "segfault": (
        # The pause makes sure that what was yielded before is sent before it dies.
        "time.sleep(0.3); yield {'loss': 0}; os.kill(os.getpid(), signal.SIGSEGV)",
        "crash",
        "^died with SIGSEGV during curves at mine.py:",
    ),
    "hangs": (
        "time.sleep(0.3); yield {'loss': 0}; time.sleep(1000)",
        "timeout",
        "^no progress for 8 s during curves at mine.py:",
    ),
}


@pytest.mark.usefixtures("patient")
def test_curves_that_fail_or_hang_costs_only_its_variant_and_keeps_what_was_measured(
    write_file: WriteFile,
) -> None:
    curves = "yield {'loss': 2}\n    yield {'loss': 1}\n"
    for variant, (code, _, _) in FAILED_STUDIES.items():
        curves += f"    if case.variant == {variant!r}: {code}\n"
    variants = ["plain", *FAILED_STUDIES, "last"]
    path = write_file(CURVES.format(curves=curves), variants=repr(variants))
    records = measure(path, silence_limit_s=8)
    for variant, (_, status, reason) in FAILED_STUDIES.items():
        record = records[variant]
        assert record.status == status, variant
        assert re.search(reason, record.message or ""), record.message
        assert record.curves["loss"][:2] == [2, 1]
        assert len(record.rounds) > record.warmup_samples
    assert records["last"].status == records["plain"].status == "ok"
    assert records["last"].curves == {"loss": [2, 1]}
    assert records["last"].rounds == records["plain"].rounds


@pytest.mark.slow
def test_a_study_may_take_longer_than_the_silence_limit_while_points_arrive(
    write_file: WriteFile,
) -> None:
    curves = "for step in range(18): time.sleep(0.5); yield {'step': step}"
    odd = measure(write_file(CURVES.format(curves=curves)), silence_limit_s=8)["odd"]
    assert (odd.status, odd.message) == ("ok", None)
    assert odd.curves == {"step": list(range(18))}


def test_ctrl_c_during_a_study_keeps_what_was_measured(
    write_file: WriteFile, tmp_path: Path
) -> None:
    marker, out, told = tmp_path / "marker", tmp_path / "out.jsonl", tmp_path / "told"
    curves = "for step in range(10**6): time.sleep(0.01); yield {'step': step}; " + (
        f"step == 60 and open({str(marker)!r}, 'w')"
    )
    path = write_file(CURVES.format(curves=curves))
    with start(["run", path, "--case-budget", "0.3s", "--out", out], told) as process:
        wait_until(marker.exists)
        press_ctrl_c(process, told)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    plain, odd = read(out).records
    assert plain.stop_reason in ("settled", "budget", "stalled")  # it was done before
    assert (odd.status, odd.stop_reason) == ("ok", "interrupted")
    assert odd.curves["step"][:61] == list(range(61))
    assert odd.rounds == plain.rounds


ALLOCATING = """
size, item = 1_000_000, 4
weight = torch.ones(size, requires_grad=True)
kept = [torch.ones(size)]

class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        temporaries = [torch.empty(size) for _ in range(3)]
        return torch.zeros(()).expand(size)

def replace():
    kept[0] = torch.empty(size)  # and only then is the old one released
    return torch.empty(size)

def one_after_the_other():
    torch.empty(size)
    torch.empty(size)

def clear():
    weight.grad = None

runs = {
    "nothing": lambda: weight.detach().add_(1),
    "one": lambda: torch.empty(size),
    "one_after_the_other": one_after_the_other,
    "two": lambda: [torch.empty(size), torch.empty(size)],
    "replaced": replace,
    "backward": lambda: Custom.apply(weight).backward(),
    "no_tensors": lambda: bytearray(size),
}
def call():
    runs[case.variant]()

return flopwatch.Workload(phases={"call": call}, reset=clear)
"""


def test_peak_memory_of_tensors_on_a_cpu(write_file: WriteFile) -> None:
    size = 4_000_000
    expected = {
        "nothing": 0,
        "one": size,
        "one_after_the_other": size,
        "two": 2 * size,
        "replaced": size,
        "backward": 3 * size,
        "no_tensors": None,
    }
    records = measure(write_file(ALLOCATING, variants=repr(list(expected))))
    assert {record.status for record in records.values()} == {"ok"}
    peaks = {variant: record.peak_memory_bytes for variant, record in records.items()}
    assert peaks.pop("no_tensors") is expected.pop("no_tensors")
    for variant, peak in peaks.items():
        assert peak == pytest.approx(expected[variant], abs=4096), variant


def test_a_workload_that_cannot_be_watched_has_no_peak_but_its_times(write_file: WriteFile) -> None:
    body = """
def call():
    with torch.autograd.profiler.profile():  # two profilers at once are one too many
        return torch.ones(3)
return call
"""
    record = measure(write_file(body, variants="['plain']"))["plain"]
    assert record.status == "ok"
    assert record.peak_memory_bytes is None
