"""Files that are not ours, given to every option that writes: none may be changed.

Where flopwatch replaces a file on request (a page, a plot, a table), it may replace what is there;
where it appends (results, peaks, calibrations), it may append to files of its own only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from trials.environments import SUITE
from trials.trial import FLOPWATCH, Outcome, run

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
}

WRITERS: dict[str, str] = {
    "run": "run tiny.py --case-budget 20ms --out FILE",
    "run --rerun": "run tiny.py --case-budget 20ms --rerun --out FILE",
    "run --skip-corrupt": "run tiny.py --case-budget 20ms --skip-corrupt --out FILE",
    "import": "import google.json -o FILE",
    "calibrate": "calibrate results.jsonl --out FILE",
    "peaks": "peaks --quick --ranks 1 --out FILE",
    "peaks by environment": "peaks --quick --ranks 1",
}
GOOGLE = (
    '{"context": {"date": "2026-01-01T00:00:00+00:00"}, "benchmarks": [{"name": "x", '
    '"run_name": "x", "run_type": "iteration", "iterations": 10, "real_time": 1.0, '
    '"cpu_time": 1.0, "time_unit": "ns"}]}'
)


def try_foreign_file(writer: str, content: str) -> Outcome:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "tiny.py").write_text(SUITE)
        (folder / "google.json").write_text(GOOGLE)
        (folder / "results.jsonl").write_text("")
        file = folder / "precious"
        file.write_bytes(CONTENTS[content])
        words = WRITERS[writer].replace("FILE", file.name).split()
        changes = {"FLOPWATCH_PEAKS": str(file)} if writer == "peaks by environment" else {}
        done = run([*FLOPWATCH, *words], folder, changes=changes)
        failures = [*done.list_failures((2,))]
        if file.read_bytes() != CONTENTS[content]:
            failures.append("damaged")
        if len(list(folder.glob("precious*"))) > 1:
            failures.append("left something next to it")
    return Outcome(part="foreign files", name=f"{writer}: {content}", failures=tuple(failures))
