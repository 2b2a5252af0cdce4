"""Suites that do the worst a workload can: `benchmarks/suites/hostile/`, one file each.

A file says in EXPECT which status each variant must have (`a|b`: one of them); None: the suite
cannot be loaded, which is a sentence and exit code 2. A wrong status of the variant `good` is wrong
blame. Every suite is run twice: the second run must find the answers of the first.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from flopwatch.errors import FlopwatchError
from flopwatch.records.store import read
from trials.trial import FLOPWATCH, Done, Outcome, run

FOLDER = Path(__file__).parents[1] / "suites" / "hostile"
OPTIONS = ("--case-budget", "50ms", "--timeout", "4s", "--memory-limit", "2G")


def list_suites() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def try_suite(path: Path) -> Outcome:
    expected = read_expectation(path)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite = Path(shutil.copy(path, folder))
        out = folder / "results.jsonl"
        command = [*FLOPWATCH, "run", suite.name, "--out", out.name, *OPTIONS]
        first = run(command, folder)
        failures = [*first.list_failures(), *judge(first, out, expected)]
        if not failures and expected is not None:
            again = run(command, folder)
            failures = [f"again: {failure}" for failure in judge(again, out, expected)]
    return Outcome(part="suites", name=path.stem, failures=tuple(failures))


def read_expectation(path: Path) -> Mapping[str, str] | None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECT":
            found: Mapping[str, str] | None = ast.literal_eval(node.value)
            return found
    raise ValueError(f"{path} has no EXPECT; say which status each variant must have")


def judge(done: Done, out: Path, expected: Mapping[str, str] | None) -> Iterator[str]:
    if expected is None:
        if done.code != 2 or "flopwatch: " not in done.err:
            yield f"exit code {done.code} and no sentence for a suite that cannot be loaded"
        return
    try:
        records = read(out).records if out.exists() else []
    except FlopwatchError as error:
        yield f"unreadable results: {error}"
        return
    found = {record.variant: record.status for record in records}
    for variant, statuses in expected.items():
        if variant not in found:
            yield f"no row for {variant}"
        elif found[variant] not in statuses.split("|"):
            kind = "wrong blame" if variant == "good" else "wrong status"
            yield f"{kind}: {variant} is {found[variant]}, not {statuses}"
