"""Damaged results files through every command that reads one, in this process.

A file is made of real records, in which places are replaced by strange values, keys are removed or
added, or bytes are changed. A command may accept it or refuse it in a sentence; it never raises,
never takes more than ten seconds, and all commands agree on how many records there are.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flopwatch.cli.main import cli, run_command
from flopwatch.records.published import load
from flopwatch.records.record import encode
from trials.trial import CODES, Outcome

SLOW_S = 10.0
COUNT = ("query", "SELECT count(*) AS n FROM records", "FILE", "--json")
LIST = ("show", "FILE", "--json")
READERS: tuple[tuple[str, ...], ...] = (
    ("show", "FILE"),
    ("show", "FILE", "--skip-corrupt"),
    ("show", "FILE", "--warmup"),
    ("show", "FILE", "--columns", "suite,variant,total,speedup"),
    ("explain", "FILE"),
    ("explain", "FILE", "FILE"),
    ("compare", "FILE"),
    ("compare", "FILE", "FILE"),
    ("compare", "FILE", "--break-even"),
    ("compare", "FILE", "--with", "published:dyad"),
    ("check", "FILE"),
    ("query", "SELECT * FROM samples", "FILE"),
    ("query", "SELECT * FROM cases", "FILE", "--json"),
    ("report", "FILE", "-o", "OUT"),
    ("plot", "FILE", "--list"),
    ("export", "FILE", "--format", "pyperf"),
    ("validate", "FILE"),
    ("calibrate", "FILE", "--out", "OUT"),
    ("import", "FILE", "-o", "OUT"),
)
STRANGE: tuple[Any, ...] = (
    *(None, True, False, [], {}, [None], {"": {"": []}}, "", "\0", "a\nb", "</script>", "nan"),
    *(0, -1, 0.5, 5e-324, 1e-300, 1e18, 2**53 + 1, 2**63, 2**64, 2**70, 1e99, 1e308),
    *(-1e308, 10**310, 10**400, -(10**400)),
    *(float("nan"), float("inf"), float("-inf"), "bogus", "\x1b[2J", "é" * 3000, "\ud800"),
)


def try_file(seed: int) -> Outcome:
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = folder / "file.jsonl"
        file.write_bytes(damage(generator))
        failures = [f for reader in READERS for f in drive(reader, file, folder)[1]]
        counted, listed = (drive(reader, file, folder) for reader in (COUNT, LIST))
        failures += [*counted[1], *listed[1], *disagree(counted[0], listed[0])]
    return Outcome(part="files", name=str(seed), failures=tuple(failures))


@cache
def make_lines() -> list[dict[str, Any]]:
    """A few real records of every published benchmark."""
    return [
        json.loads(encode(record))
        for name in ("dyad", "switchback", "cs336", "mosaic")
        for record in load(name)[:3]
    ]


def damage(generator: random.Random) -> bytes:
    records = copy.deepcopy(generator.sample(make_lines(), 4))
    for _ in range(generator.randint(1, 4)):
        container, key = generator.choice([*list_places(records)])
        kind = generator.choice(("replace", "replace", "remove", "add"))
        if kind == "replace":
            container[key] = generator.choice(STRANGE)
        elif kind == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[generator.choice(("", "status", "x" * 300))] = generator.choice(STRANGE)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    if generator.random() < 0.2:
        changed = bytearray(data)
        for _ in range(generator.randint(1, 8)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        data = bytes(changed)
    return data[: generator.randrange(len(data))] if generator.random() < 0.1 else data


def list_places(content: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(content) if isinstance(content, dict) else range(len(content))
    for key in keys:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from list_places(content[key])


def drive(reader: Sequence[str], file: Path, folder: Path) -> tuple[str, list[str]]:
    """What it printed, and what it must not do."""
    places = {"FILE": str(file), "OUT": str(folder / "out")}
    arguments = [places.get(word, word) for word in reader]
    # As a real one: exports are written as bytes.
    printed, noted = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    began_s = time.perf_counter()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(noted):
        try:
            code = run_command(lambda: cli.main(args=arguments, standalone_mode=False))
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            return "", [f"traceback: {reader[0]}: {error!r}"[:300]]
    failures = [] if code in CODES else [f"exit code: {code} of {reader[0]}"]
    if time.perf_counter() - began_s > SLOW_S:
        failures.append(f"slow: {reader[0]}")
    printed.seek(0)
    return printed.read() if code in (0, 1) else "", failures


def disagree(counted: str, listed: str) -> Iterator[str]:
    """Whether SQL counts records that other commands refuse, or the other way round; `show` has
    the newest of every case, so that it may list fewer."""
    if bool(counted) != bool(listed):
        yield f"wrong number: query {'accepts' if counted else 'refuses'} what show does not"
    elif counted and json.loads(counted)[0]["n"] < len(json.loads(listed)):
        yield "wrong number: query counts fewer records than show lists cases"
