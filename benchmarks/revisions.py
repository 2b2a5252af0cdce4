"""Does `flopwatch ab` find a revision that is 3 % slower, and leave an identical one alone?

A small repository is made with three revisions: one to compare with, one whose function does 3 %
more work, and one that differs in a comment only. Both pairs are compared again and again, in
random order, as the command does it: new processes, turns, looks, the same verdict. On a loaded
machine (`benchmarks/verdict_tools/neighbour.py`) unless `--quiet`.

    python benchmarks/revisions.py                  50 slower, 100 identical: about 45 minutes
    python benchmarks/revisions.py --slower 10 --same 20
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from rich.console import Console
from verdict_tools.neighbour import keep_condition

from flopwatch.output.progress import PlainWatcher
from flopwatch.runner import revision_session
from flopwatch.settings import Settings

SUITE = '''"""A loop of small matmuls."""
import torch

import flopwatch

suite = flopwatch.Suite("mine", axes={"width": [96]}, variants=["package"], baseline="package")


@suite.build
def build(case):
    from package import compute

    x = torch.randn(case.width, case.width)
    return lambda: compute(x)
'''
CODE = '''"""{comment}"""


def compute(x):
    y = x
    for _ in range({products}):
        y = x @ x
    return y
'''
REVISIONS = {
    "base": CODE.format(comment="Products.", products=100),
    "same": CODE.format(comment="Products, in other words.", products=100),
    "slower": CODE.format(comment="More products.", products=103),
}
GATE = 0.02
MIN_FOUND, MAX_FALSE_ALARMS = 0.9, 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slower", type=int, default=50, help="comparisons with 3 %% more work")
    parser.add_argument("--same", type=int, default=100, help="comparisons of the same code")
    parser.add_argument("--quiet", action="store_true", help="without a neighbour")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    heads = ["slower"] * given.slower + ["same"] * given.same
    random.Random(0).shuffle(heads)
    verdicts: dict[str, Counter[str]] = {"slower": Counter(), "same": Counter()}
    seconds: dict[str, list[float]] = {"slower": [], "same": []}
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "project")
        for number, head in enumerate(heads):
            with keep_condition("quiet" if given.quiet else "loaded", number):
                started_s = time.perf_counter()
                found = compare(repository, head, Path(folder) / str(number), given.threads)
                seconds[head].append(time.perf_counter() - started_s)
            verdicts[head][found] += 1
            print(f"{number + 1}/{len(heads)} {head}: {found}", flush=True)
    return judge(verdicts, seconds)


def make_repository(folder: Path) -> Path:
    (folder / "src" / "package").mkdir(parents=True)
    (folder / "bench.py").write_text(SUITE)
    git(folder, "init", "-q")
    for tag, code in REVISIONS.items():
        (folder / "src" / "package" / "__init__.py").write_text(code)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", tag)
        git(folder, "tag", tag)
    return folder


def git(folder: Path, *words: str) -> None:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    subprocess.run(command, check=True, capture_output=True)


def compare(repository: Path, head: str, out: Path, threads: int) -> str:
    """The verdict, as the gate of `flopwatch ab base HEAD --fail-if-slower 2%` has it."""
    options = revision_session.Options(
        base="base",
        head=head,
        suite=repository / "bench.py",
        settings=Settings(),
        threshold=GATE,
        repository=repository,
        out=out,
        threads=threads,
    )
    report = revision_session.run(options, PlainWatcher(Console(quiet=True)))
    (one,) = report.judgement.comparisons
    return one.verdict


def judge(verdicts: dict[str, Counter[str]], seconds: dict[str, list[float]]) -> int:
    for head, counts in verdicts.items():
        if counts:
            listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            print(f"{head:7} {listed}; {median(seconds[head]):.0f} s each (median)")
    found = verdicts["slower"]["slower"] / max(1, verdicts["slower"].total())
    false = sum(verdicts["same"][word] for word in ("slower", "faster"))
    alarms = false / max(1, verdicts["same"].total())
    print(f"3 % slower found   {found:6.1%}   (reach: at least 90 %)")
    print(f"false alarms       {alarms:6.1%}   (reach: at most 2 %)")
    return 0 if found >= MIN_FOUND and alarms <= MAX_FALSE_ALARMS else 1


if __name__ == "__main__":
    raise SystemExit(main())
