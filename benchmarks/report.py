"""How long does a report of many records take, how large is it, how soon does it answer a filter?

Writes 10,000 varied records of five suites with 40 samples each, some of them failures, to a
temporary folder, makes a report of them in a fresh process by `flopwatch report`, opens it in
Chromium and types into its filter. The reach is 10 s, 15 MB and 1 s on a machine with two cores;
where it is missed, this exits with 1. Without Chromium or Playwright, the filter is left out.

    python benchmarks/report.py
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from flopwatch.records.record import PhaseMemory, Rank, Record, encode
from flopwatch.suites.case import Case

REACH_S = 10.0
REACH_BYTES = 15e6
REACH_ANSWER_S = 1.0
NUM_SAMPLES = 40
NUM_WARMUP = 8

DTYPES = ["float32", "bfloat16"]
GRIDS: dict[str, tuple[dict[str, list[Any]], list[str]]] = {
    "dyad": (
        {
            "tokens": [64 * 2**n for n in range(8)],
            "shape": [[256 * n, 1024 * n] for n in range(1, 26)],
            "dtype": DTYPES,
        },
        ["dense", "dyad:auto:4", "dyad:auto:8", "dyad:it:4", "dyad:ot:4", "dyad:dt:4"],
    ),
    "activations": (
        {"shape": [[512, 128 * n] for n in range(1, 181)], "dtype": DTYPES},
        ["relu", "gelu", "gelu_tanh", "silu", "relu_squared"],
    ),
    "attention": (
        {"seq_len": [64 * n for n in range(1, 41)], "heads": list(range(1, 11))},
        ["plain", "sdpa", "compiled", "flex"],
    ),
    "steps": (
        {
            "model": [f"decoder:hidden_size=256:layers={n}" for n in range(1, 61)],
            "micro_batch": [1, 2, 4, 8, 16],
        },
        ["eager", "compiled", "recompute-full", "plain-attention", "bf16", "sgd"],
    ),
    "training": (
        {
            "model": ["gpt-125m", "gpt-350m", "gpt-760m", "gpt-1b"],
            "seq_len": [512, 1024, 2048, 4096, 8192],
            "micro_batch": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
            "ranks": [2],
            "grad_accum": [1],
            "precision": ["fp32"],
            "optimizer": ["adamw"],
        },
        ["none", "ddp", "full", "full+recompute-full", "zero2", "zero2+recompute-full", "hybrid",
         "hybrid+recompute-full", "ddp+recompute-full", "none+recompute-full", "full+compiled",
         "ddp+compiled"],
    ),
}  # fmt: skip
"""By suite: its axes and its variants, the baseline first."""

FAILURES = [
    ("oom", "ran out of memory during build"),
    ("crash", "died with SIGSEGV during sampling"),
    ("timeout", "nothing was heard for 300 s during check; raise --timeout if it is only slow"),
    ("wrong", "output differs from the reference by 0.2, and 0.001 is allowed"),
    ("unsupported", "no kernel for this shape"),
]

ENVIRONMENT = {
    "machine": {"machine_id": "0a1b2c3d", "cpu_model": "Some CPU", "usable_cores": 2,
                "memory_total_bytes": 25 * 10**9, "instruction_sets": ["avx", "avx2", "fma"]},
    "software": {"os": "Some Linux", "python": "3.11.7", "flopwatch": "0.1.0",
                 "packages": {"torch": "2.13.0", "numpy": "2.4.6"}, "variables": {}},
    "torch": {"version": "2.13.0", "cpu_capability": "AVX2", "threads": 2},
    "allocator": "glibc, memory retained, huge pages",
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as folder:
        results, page = Path(folder) / "results.jsonl", Path(folder) / "report.html"
        lines = [encode(record) for record in make_records()]
        results.write_bytes(b"\n".join([*lines, b""]))
        begin_s = time.perf_counter()
        words = [sys.executable, "-m", "flopwatch", "report", str(results), "-o", str(page)]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
        seconds, size_bytes = time.perf_counter() - begin_s, page.stat().st_size
        answer_s = time_filter(page)
    print(f"{'':20}{'measured':>12}{'reach':>12}")
    print(f"{'report, seconds':20}{seconds:12.2f}{REACH_S:12.2f}")
    print(f"{'page, MB':20}{size_bytes / 1e6:12.2f}{REACH_BYTES / 1e6:12.2f}")
    told = "no browser" if answer_s is None else f"{answer_s:.2f}"
    print(f"{'filter, seconds':20}{told:>12}{REACH_ANSWER_S:12.2f}")
    print(f"{len(lines):,} records, {len(lines) * NUM_SAMPLES:,} samples")
    if seconds > REACH_S or size_bytes > REACH_BYTES or (answer_s or 0) > REACH_ANSWER_S:
        sys.exit(1)


def make_records() -> Iterator[Record]:
    draw = random.Random(0)
    for suite, (axes, variants) in GRIDS.items():
        for number, values in enumerate(product(*axes.values())):
            params = dict(zip(axes, values, strict=True))
            base_ns = draw.lognormvariate(14, 1)
            for place, variant in enumerate(variants):
                case = Case(suite=suite, variant=variant, params=params)
                time_ns = base_ns * (1 + place * draw.uniform(-0.05, 0.1))
                fails = draw.random() < 0.04
                run = f"20260101T0000{number // 100:02}-{suite}"
                yield make_record(case, variants[0], run, None if fails else time_ns, draw)


def make_record(
    case: Case, baseline: str, run: str, time_ns: float | None, draw: random.Random
) -> Record:
    status, reason = ("ok", None) if time_ns is not None else draw.choice(FAILURES)
    content: dict[str, Any] = {
        "case_id": case.id, "group_id": case.group, "run_id": run, "suite": case.suite,
        "variant": case.variant, "baseline": baseline, "params": dict(case.params),
        "status": status, "message": reason, "environment": ENVIRONMENT,
        "measured_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Record(**content, **({} if time_ns is None else take_samples(case, time_ns, draw)))


def take_samples(case: Case, time_ns: float, draw: random.Random) -> dict[str, Any]:
    def times(share: float) -> list[float]:
        return [round(time_ns * share * draw.lognormvariate(0, 0.05)) for _ in range(NUM_SAMPLES)]

    samples_ns = {"forward": times(0.35), "backward": times(0.65)}
    still: list[float | None] = [0.0] * NUM_SAMPLES
    rank = Rank(samples_ns=samples_ns, waiting_ns=still, transfer_ns=still)
    return {
        "samples_ns": samples_ns,
        "rounds": list(range(NUM_SAMPLES)),
        "calls_per_sample": [1] * NUM_SAMPLES,
        "warmup_samples": NUM_WARMUP,
        "steady": draw.random() < 0.95,
        "stop_reason": draw.choice(["precise", "precise", "budget", "stalled"]),
        "flops": {"forward": {"float32": 1e9}, "backward": {"float32": 2e9}},
        "bytes": {"forward": 1e7, "backward": 2e7},
        "facts": {"parameters": float(draw.randrange(10**6, 10**8)), "tokens": 4096.0},
        "peak_memory_bytes": draw.randrange(2**20, 2**32),
        "memory": {name: PhaseMemory(peak_bytes=2**22, end_bytes=2**21) for name in samples_ns},
        "ranks": [rank, rank] if case.suite == "training" else [],
    }


def time_filter(page: Path) -> float | None:
    """From the last letter to what is drawn; None where there is nothing to draw it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if browser is None:
        return None
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_selector(".page-filter input")
        begin_s = time.perf_counter()
        tab.fill(".page-filter input", "bfloat16 dyad:auto")
        tab.locator(".page-filter output:not(:empty)").wait_for()
        tab.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        answer_s = time.perf_counter() - begin_s
        chromium.close()
    return answer_s


if __name__ == "__main__":
    main()
