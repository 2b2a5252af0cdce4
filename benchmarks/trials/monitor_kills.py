"""Training loops with a monitor that are killed at a random moment: no step older than a second may
be missing from the results file.

The loop itself notes when each step ended, in a file of its own that is written at once. Clocks are
those of the system, which all processes share.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flopwatch.records.store import read
from trials.trial import Outcome, run

PART = "monitor"
LONGEST_S = 4.0
"""From the first step to the kill."""
LOST_S = 1.0
"""Steps that ended so long before the kill must be there."""
LOOP = """
import os, random, sys, time
import flopwatch

generator, kind = random.Random(int(sys.argv[1])), sys.argv[2]
shortest_s = generator.choice([0.0005, 0.005, 0.05])
model = None
if kind == "torch":
    import torch
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = flopwatch.Monitor(model, tokens_per_step=64, out="run.jsonl", live=False)
notes = os.open("notes", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
number = 0
while True:
    with monitor.step():
        if model is not None:
            model(torch.ones(8, 32)).sum().backward()
            optimizer.step()
        time.sleep(generator.uniform(1, 3) * shortest_s)
    os.write(notes, b"%d %d\\n" % (number, time.perf_counter_ns()))
    number += 1
"""


def try_kill(seed: int) -> Outcome:
    generator = random.Random(seed)
    kind = "torch" if seed % 8 == 0 else "plain"
    killed_ns = [0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def kill(process: subprocess.Popen[bytes]) -> None:
            while not (folder / "notes").exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(generator.uniform(0.0, LONGEST_S))
            killed_ns[0] = time.perf_counter_ns()
            os.kill(process.pid, signal.SIGKILL)

        done = run([sys.executable, "-c", LOOP, str(seed), kind], folder, meddle=kill)
        failures = list(done.list_failures((-signal.SIGKILL,)))
        if not failures:
            failures += _find_lost(folder, killed_ns[0])
    return Outcome(part=PART, name=str(seed), failures=tuple(failures))


def _find_lost(folder: Path, killed_ns: int) -> list[str]:
    lines = (folder / "notes").read_text().splitlines()
    noted = [(int(number), int(ended)) for number, ended in map(str.split, lines)]
    records = read(folder / "run.jsonl").records
    if len(records) != 1:
        return [f"records: {len(records)}"]
    stored = set(records[0].rounds)
    lost = [n for n, ended_ns in noted if killed_ns - ended_ns > LOST_S * 1e9 and n not in stored]
    strange = stored - {number for number, _ in noted} - {len(noted)}
    return [
        *([f"lost: {len(lost)} steps, from {lost[0]} on, of {len(noted)}"] if lost else []),
        *([f"never were: {sorted(strange)[:3]}"] if strange else []),
    ]
