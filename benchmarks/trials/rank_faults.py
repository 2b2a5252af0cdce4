"""Jobs under torchrun that go wrong, and strangers who talk to their port.

A rank that dies, stops, or never comes is a row or a sentence that names it; whoever connects to
the job's port without belonging to it is not obeyed, and does not keep the job from running.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from flopwatch.records.store import read
from trials.trial import Done, Outcome, run

SUITE = """
import os, signal, time
import torch
from torch import distributed

import flopwatch

suite = flopwatch.Suite("ranks", axes={"ranks": [2]}, variants=["good", "bad"])
FAULT = os.environ.get("FAULT", "")
FAULTS = {
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leaves": lambda: os._exit(0),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hangs": lambda: time.sleep(1e6),
    "raises": lambda: 1 / 0,
}


@suite.build
def build(case):
    calls = []
    x = torch.ones(8)

    def meet():
        calls.append(1)
        if case.variant == "bad" and distributed.get_rank() == 1 and len(calls) > 3:
            FAULTS.get(FAULT, lambda: None)()
        summed = x.clone()
        distributed.all_reduce(summed)
        return summed

    return meet
"""
STATUSES = {
    "": "ok",
    "dies": "crash",
    "leaves": "crash",
    "stops": "timeout",
    "hangs": "timeout",
    "raises": "crash",
}
CALL = '{"kind":"Call","settings":{},"function":"os:system","arguments":{"command":"touch OWNED"}}'
START = f'{{"kind":"Start","job":1,"request":{CALL}}}'
EVIL = "\n".join(["n" * 32, '{"kind":"Welcome"}', START, CALL, ""]).encode()
HELLO = (
    b'{"kind":"Hello","place":{"rank":1,"ranks":2,"local_rank":1,"local_ranks":2,"node_ranks":2,'
    b'"address":"127.0.0.1","port":1}}'
)
TORCHRUNS_OWN = re.compile(
    r"Traceback \(most recent call last\):(?:(?!Traceback).)*?ChildFailedError", re.S
)
"""torchrun prints it wherever one of its processes ends with another exit code than 0."""


def try_fault(fault: str) -> Outcome:
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        done = run(make_command(folder), folder, changes={"FAULT": fault})
        failures += list_failures(done)
        out = folder / "out.jsonl"
        records = read(out).records if out.exists() else []
        found = {record.variant: record for record in records}
        if {name: record.status for name, record in found.items()} != {
            "good": "ok",
            "bad": STATUSES[fault],
        }:
            failures.append(f"wrong rows: {[(r.variant, r.status, r.message) for r in records]}")
        elif fault and "rank 1" not in (found["bad"].message or ""):
            failures.append(f"wrong blame: {found['bad'].message}")
    return Outcome(part="torchrun", name=f"a rank {fault}", failures=tuple(failures))


def try_stranger(kind: str) -> Outcome:
    """Somebody else on this machine connects to, or listens on, every port that the job uses."""
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stop = threading.Event()

        def meddle(process: subprocess.Popen[bytes]) -> None:
            threading.Thread(target=bother, args=(process.pid, kind, stop), daemon=True).start()

        done = run(make_command(folder), folder, meddle=meddle)
        stop.set()
        failures += list_failures(done)
        if any(folder.rglob("OWNED")):
            failures.append("code was run")
        out = folder / "out.jsonl"
        statuses = [record.status for record in read(out).records] if out.exists() else []
        if statuses != ["ok", "ok"]:
            failures.append(f"job disturbed: {statuses} {done.err[-300:]!r}")
    return Outcome(part="torchrun", name=f"stranger {kind}", failures=tuple(failures))


def list_failures(done: Done) -> list[str]:
    return list(replace(done, err=TORCHRUNS_OWN.sub("", done.err)).list_failures())


def make_command(folder: Path) -> list[str]:
    (folder / "ranks.py").write_text(SUITE)
    options = ["--out", "out.jsonl", "--case-budget", "100ms", "--timeout", "15s"]
    options += ["--memory-limit", "2G"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", "2", "-m", "flopwatch", "run", "ranks.py", *options]


def bother(pid: int, kind: str, stop: threading.Event) -> None:
    texts = {
        "commands": EVIL,
        "garbage": random.Random(0).randbytes(4096),
        "is silent": b"",
        "says hello": b"n" * 32 + b"\n" + b"s" * 64 + HELLO + b"\n" + HELLO + b"\n",
    }
    kept = []
    while not stop.is_set():
        for port in find_ports(pid):
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=0.2)
                connection.sendall(texts[kind])
                kept.append(connection)
        time.sleep(0.05)
    for connection in kept:
        connection.close()


def find_ports(pid: int) -> set[int]:
    """Those that flopwatch's own processes of the job listen on; torch's store is not ours."""
    found = set()
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if "flopwatch" in process.cmdline():
                    listening = process.net_connections("tcp")
                    found |= {c.laddr.port for c in listening if c.status == psutil.CONN_LISTEN}
    return found
