"""Tools that measure in processes of their own: pyperf and hyperfine.

| tool | settings | says |
| --- | --- | --- |
| pyperf | a script for each side: `--fast` (10 processes), default (20 processes) | what `pyperf compare_to` prints; "not significant" is no verdict, "unclear" |
| hyperfine | a command for each side: 5 runs, 10 runs (default) | slower or faster if the ratio of the means, plus and minus its standard deviation as it prints it, lies on one side of 1; "same" if it lies within 2 % of 1; "unclear" otherwise |

Every process of theirs imports torch, which counts: that is how they work, and `seconds` is what you
wait. hyperfine times the whole command. The command makes as many calls as should take 2 s, the
same number on both sides, so that start-up hides up to half of a difference.
"""  # noqa: E501

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from verdict_tools.operations import OPERATIONS, Pair
from verdict_tools.tools import OWN, Finding, Tool

WORK_S = 2.0
"""That a command of hyperfine is to compute, apart from its start."""
THRESHOLD = 0.02
TIMEOUT_S = 1800
HYPERFINE = shutil.which("hyperfine")


def ask_pyperf(options: list[str], pair: Pair) -> Finding:
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        files = {side: str(Path(folder) / f"{side}.json") for side in "ab"}
        for side, file in files.items():
            inherited = ["--inherit-environ", "PYTHONPATH,LD_LIBRARY_PATH,OMP_NUM_THREADS"]
            given = [*options, *inherited, "--quiet", "-o", file]
            run([*make_side_command(pair, side), *given])
        compared = run([sys.executable, "-m", "pyperf", "compare_to", files["a"], files["b"]])
        means_s = [read_mean(file) for file in files.values()]
    return Finding(
        verdicts={OWN: read_verdict(compared)},
        ratio=means_s[1] / means_s[0],
        seconds=time.perf_counter() - begin_s,
    )


def read_verdict(compared: str) -> str:
    """Of what `pyperf compare_to` prints: "Mean +- std dev: [a] ... -> [b] ...: 1.05x slower"."""
    if "not significant" in compared.lower():
        return "unclear"
    for verdict in ("slower", "faster"):
        if f"x {verdict}" in compared:
            return verdict
    if "no change" in compared:
        return "same"
    raise ValueError(f"pyperf compare_to printed {compared!r}, which says neither")


def read_mean(file: str) -> float:
    import pyperf

    return float(pyperf.Benchmark.load(file).mean())


def ask_hyperfine(runs: int, pair: Pair) -> Finding:
    assert HYPERFINE is not None
    calls = max(1, round(WORK_S / OPERATIONS[pair.operation].target_s))
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        commands = [
            " ".join([*make_side_command(pair, side), "--calls", str(calls)]) for side in "ab"
        ]
        options = ["-N", "--warmup", "1", "--runs", str(runs), "--export-json", str(file)]
        run([HYPERFINE, *options, *commands])
        a, b = json.loads(file.read_text())["results"]
    ratio = b["mean"] / a["mean"]
    deviation = ratio * math.hypot(a["stddev"] / a["mean"], b["stddev"] / b["mean"])
    return Finding(
        verdicts={OWN: judge_ratio(ratio, deviation)},
        ratio=ratio,
        seconds=time.perf_counter() - begin_s,
    )


def judge_ratio(ratio: float, deviation: float) -> str:
    low, high = ratio - deviation, ratio + deviation
    if low >= 1 / (1 + THRESHOLD) and high <= 1 + THRESHOLD:
        return "same"
    if low > 1:
        return "slower"
    return "faster" if high < 1 else "unclear"


def make_side_command(pair: Pair, side: str) -> list[str]:
    fields = {"operation": pair.operation, "percent": pair.percent, "rows": pair.rows}
    words = [sys.executable, "-m", "verdict_tools.side", "--side", side]
    for name, value in {**fields, "seed": pair.seed}.items():
        words += [f"--{name}", str(value)]
    return words


def run(words: list[str]) -> str:
    here = str(Path(__file__).parent.parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        words,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        raise RuntimeError(f"{words[:4]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def find_process_tools() -> tuple[list[Tool], list[str]]:
    """Those that are installed, and the names of those that are not."""
    pyperf = {"--fast": ["--fast"], "default": []}
    tools = {
        "pyperf": [
            Tool(name="pyperf", setting=setting, command=partial(ask_pyperf, options))
            for setting, options in pyperf.items()
        ],
        "hyperfine": [
            Tool(name="hyperfine", setting=f"{n} runs", command=partial(ask_hyperfine, n))
            for n in (5, 10)
        ],
    }
    installed = {"pyperf": find_spec("pyperf") is not None, "hyperfine": HYPERFINE is not None}
    found = [tool for name, listed in tools.items() if installed[name] for tool in listed]
    return found, [name for name, there in installed.items() if not there]
