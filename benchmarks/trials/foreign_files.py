"""Files that are not ours, given to every option that writes: none may be changed.

A refusal proves nothing if the command stops before it reaches the file. So each writer is also
tried where there is no file, which it must write, and a refusal must name the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from threading import Lock

from trials.environments import SUITE, says_why
from trials.trial import FLOPWATCH, Done, Outcome, run

CONTENTS: dict[str, bytes] = {
    "notes": b"Dear diary,\ntoday I measured nothing.\n",
    "notes without an end of line": b"Dear diary,\ntoday I measured nothing",
    "tsconfig": b'{\n  "compilerOptions": {"strict": true,\n  "target": "es2022"\n',
    "one line of JSON": b'{"schema": 7, "name": "package"}',
    "JSON lines": b'{"a": 1}\n{"a": 2}\n',
    "JSON lines, torn": b'{"a": 1}\n{"schema": 1, "sui',
    "begins like a record": b'{"schema":1,"suite"',
    "a log that ends like a record": b'started\nfailed\n{"schema": 1, "ca',
    "CSV": b"model,tokens_per_s\n7b,25651\n",
    "bytes": bytes(range(256)) * 40,
    "zeros": bytes(5000),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
    "suite": SUITE.encode(),
    "another program's trace": b'{"traceEvents": [], "displayTimeUnit": "ms"}',
    "another program's page": b"<!doctype html><html><head><title>report</title></head></html>",
}

FRESH = "no file"
"""Instead of a content: the writer must succeed."""

MODEL = "--model gpt:hidden_size=32:layers=1:vocabulary=101:positions=16 --seq-len 16"
WRITERS: dict[str, str] = {
    "run": "run tiny.py --case-budget 20ms --out FILE",
    "run --rerun": "run tiny.py --case-budget 20ms --rerun --out FILE",
    "run --skip-corrupt": "run tiny.py --case-budget 20ms --skip-corrupt --out FILE",
    "run --new": "run --new FILE.py",
    "profile": f"profile {MODEL} --steps 1 --trace FILE.json",
    "import": "import google.json -o FILE",
    "export": "export published:dyad --format pyperf -o FILE",
    "report": "report published:dyad -o FILE.html",
    "plot": "plot published:dyad --plot speedups -o FILE.json",
    "calibrate": "calibrate steps.jsonl --out FILE",
    "calibrate by environment": "FLOPWATCH_CALIBRATION=FILE calibrate steps.jsonl",
    "peaks": "peaks --quick --ranks 1 --out FILE",
    "peaks by environment": "FLOPWATCH_PEAKS=FILE peaks --quick --ranks 1",
}
"""Commands, after variables of the environment."""
GOOGLE = (
    '{"context": {"date": "2026-01-01T00:00:00+00:00"}, "benchmarks": [{"name": "x", '
    '"run_name": "x", "run_type": "iteration", "iterations": 10, "real_time": 1.0, '
    '"cpu_time": 1.0, "time_unit": "ns"}]}'
)


def try_foreign_file(writer: str, content: str) -> Outcome:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = WRITERS[writer].replace("FILE", "precious").split()
        file = folder / next(word.split("=")[-1] for word in words if "precious" in word)
        if content != FRESH:
            file.write_bytes(CONTENTS[content])
        done = write(words, folder)
        judge = judge_written if content == FRESH else judge_refused
        failures = tuple(judge(done, file, CONTENTS.get(content)))
    return Outcome(part="foreign files", name=f"{writer}: {content}", failures=failures)


def write(words: list[str], folder: Path) -> Done:
    (folder / "tiny.py").write_text(SUITE)
    (folder / "google.json").write_text(GOOGLE)
    if "steps.jsonl" in words:
        (folder / "steps.jsonl").write_bytes(measure_steps())
    changes = dict(word.split("=") for word in words if word.startswith("FLOPWATCH_"))
    return run([*FLOPWATCH, *words[len(changes) :]], folder, changes=changes)


def judge_written(done: Done, file: Path, content: bytes | None) -> Iterator[str]:
    yield from done.list_failures((0,))
    if not file.exists() or not file.read_bytes():
        yield f"does not write: {done.err[-200:]!r}"


def judge_refused(done: Done, file: Path, content: bytes | None) -> Iterator[str]:
    yield from done.list_failures((2,))
    if file.read_bytes() != content:
        yield "damaged"
    if len(list(file.parent.glob("precious*"))) > 1:
        yield "left something next to it"
    if not says_why(done.err) or "precious" not in done.err:
        yield f"refused for another reason: {done.err[-200:]!r}"


MEASURING = Lock()


def measure_steps() -> bytes:
    """Results of a training step on this machine, with its peaks: what `calibrate` needs."""
    with MEASURING:  # by one attempt, for all
        return _measure_steps()


@cache
def _measure_steps() -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        changes = {"FLOPWATCH_PEAKS": str(folder / "peaks.jsonl")}
        for command in (
            "peaks --quick --ranks 1",
            f"run steps {MODEL} --micro-batch 2 --filter variant=eager --case-budget 20ms "
            "--out steps.jsonl",
        ):
            done = run([*FLOPWATCH, *command.split()], folder, changes=changes)
            if done.code != 0:
                raise RuntimeError(f"flopwatch {command} failed: {done.err}")
        return (folder / "steps.jsonl").read_bytes()
