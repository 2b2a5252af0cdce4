"""Instruction sets that a CPU announces but that crash.

On some virtual machines the CPU lists ``amx_bf16`` and oneDNN's bfloat16 matmul dies with SIGILL.
Every bfloat16 case would then be a crash, where one variable, ``ONEDNN_MAX_CPU_ISA``, avoids it.
So before the first run after a boot, `probe` has a child try one small matmul of each dtype
(`instruction_probe`). Where a matmul kills the child, it is tried again under lower and lower caps
until all survive; that cap is then set for the warm server, and stored in the record.

A matmul that raises a Python error is not a crash: this torch does not support it, and that is
noted. A cap that you have set yourself stays. Where no cap helps, none is set, and the cases
that crash become records of crashes. Only oneDNN is capped: MKL and torch's own kernels have other
variables, and no machine is known on which those crash.

The child also reports which kernels torch chose for this CPU. The answer is cached for as long as
the machine is up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from flopwatch import __version__, env
from flopwatch.devices import instruction_probe, system_files
from flopwatch.errors import UsageError, WorkerError
from flopwatch.lazy import require
from flopwatch.records.file_safety import replace_file
from flopwatch.suites.case import digest

VARIABLE = "ONEDNN_MAX_CPU_ISA"
USER_VARIABLES = (VARIABLE, "DNNL_MAX_CPU_ISA")
"""The second is the older name, which oneDNN still reads."""

CAPS = (
    ("AVX512_CORE_FP16", "avx512_fp16"),
    ("AVX512_CORE_BF16", "avx512_bf16"),
    ("AVX512_CORE_VNNI", "avx512_vnni"),
    ("AVX512_CORE", "avx512bw"),
    ("AVX2", "avx2"),
    ("SSE41", "sse4_1"),
)
"""oneDNN's names, highest first, and the flag without which a cap is no different from the next
one. Source: oneDNN's developer guide, "CPU Dispatcher Control"."""

DEATHS = {"SIGALRM": "hang"}
"""Signals with a meaning of their own here; see `instruction_probe`."""

FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
"""Signals that no instruction raises: someone else ended the child, or memory ran out."""

TIMEOUT_S = 300.0
"""For one child, most of it for importing torch, which can be slow from a cold network disk."""

CACHE_ENTRIES = 16
CACHE_KEY_VARIABLES = (*USER_VARIABLES, "ATEN_CPU_CAPABILITY", "LD_PRELOAD")


class InstructionSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the CPU announces, and how much of that can be used."""

    cpu_flags: list[str]
    onednn_max_cpu_isa: str | None = None
    """The cap to set; None where none is needed or none helps."""
    capped_because: str | None = None
    crashes: dict[str, str] = msgspec.field(default_factory=dict)
    """By matmul, without our cap: the signal that it died of, or "hang"."""
    unsupported: dict[str, str] = msgspec.field(default_factory=dict)
    """By matmul: the error that torch raised."""
    cpu_capability: str | None = None
    """The kernels that torch chose for this CPU, such as AVX2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a child ended."""

    messages: list[dict[str, Any]]
    death: str | None
    """The name of the signal, or what else kept it from finishing."""

    def find(self, key: str) -> Any:
        """The value of the last message that has the key."""
        return next((m[key] for m in reversed(self.messages) if key in m), None)

    @property
    def died_in(self) -> str | None:
        """The step that was announced but not ended."""
        return None if self.death is None else self.find("start")


Run = Callable[[Sequence[str], Mapping[str, str]], Outcome]
"""Given the matmuls to leave out and the variables to add, run a child."""


def probe(
    *,
    run: Run | None = None,
    cache_path: Path | None = None,
    cpu_flags: Sequence[str] | None = None,
    environ: env.Environ = None,
) -> InstructionSet:
    """Find out which instructions can be used; from the cache where it knows.

    Everything that starts a process with torch asks here first. Raises MissingPackage where torch
    is not installed, and WorkerError where it cannot be imported.
    """
    require("torch")
    path = cache_path or env.find_cache_folder(environ) / "isa.json"
    flags = list(system_files.read_cpu_flags() if cpu_flags is None else cpu_flags)
    key = make_cache_key(environ, flags)
    cache = _read_cache(path)
    if key is not None and key in cache:
        return cache[key]
    found = _examine(run or run_child, flags, environ)
    if key and not set(FROM_OUTSIDE) & set(found.crashes.values()):
        _write_cache(path, {**cache, key: found})
    return found


def environment(isa: InstructionSet) -> dict[str, str]:
    """The variables to set for the server."""
    return {} if isa.onednn_max_cpu_isa is None else {VARIABLE: isa.onednn_max_cpu_isa}


def describe(isa: InstructionSet) -> dict[str, Any]:
    """For the record: what is out of the ordinary. The CPU's flags and devices are elsewhere."""
    names = ("onednn_max_cpu_isa", "capped_because", "crashes", "unsupported")
    return {name: value for name in names if (value := getattr(isa, name))}


def run_child(
    left_out: Sequence[str],
    variables: Mapping[str, str],
    *,
    program: Path = Path(instruction_probe.__file__),
    timeout_s: float = TIMEOUT_S,
) -> Outcome:
    """Run the matmuls in an interpreter of their own."""
    try:
        child = subprocess.run(
            # -P: a file called torch.py in the user's folder is not what is meant.
            [sys.executable, "-P", str(program), *left_out],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return Outcome(messages=_parse(expired.stdout or b""), death="hang")
    except OSError as error:
        return Outcome(messages=[], death=f"{sys.executable} cannot be started ({error.strerror})")
    messages = _parse(child.stdout)
    finished = any("finished" in m or "no_torch" in m for m in messages)
    return Outcome(messages=messages, death=None if finished else name_death(child.returncode))


def name_death(returncode: int) -> str:
    """
    >>> name_death(-4), name_death(-14), name_death(1)
    ('SIGILL', 'hang', 'exit code 1')
    """
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        return f"exit code {returncode}"
    return DEATHS.get(name, name)


def make_cache_key(environ: env.Environ, flags: Sequence[str]) -> str | None:
    """Everything on which the answer depends; None where it is not known how long it holds."""
    boot_id = system_files.read_text("proc/sys/kernel/random/boot_id")
    if boot_id is None:
        return None
    try:
        torch_version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    variables = {name: env.read(name, environ) for name in CACHE_KEY_VARIABLES}
    machine = [boot_id, system_files.read_cpu_model(), list(flags)]
    program = [__version__, instruction_probe.MATMULS]
    return digest([program, machine, torch_version, sys.executable, variables])


def _examine(run: Run, flags: list[str], environ: env.Environ) -> InstructionSet:
    outcomes = _find_crashes(run)
    crashes = {step: o.death for o in outcomes if (step := o.died_in) and o.death}
    guilty = {step: death for step, death in crashes.items() if death not in FROM_OUTSIDE}
    cap, because = None, None
    users = next((name for name in USER_VARIABLES if env.read(name, environ)), None)
    if users is not None:
        cap = env.read(users, environ)
        because = f"{users} is set to {cap} in the environment"
    elif guilty:
        cap = _find_cap(run, flags, left_out=[step for step in crashes if step not in guilty])
        because = None if cap is None else _explain(guilty)
    return InstructionSet(
        cpu_flags=flags,
        onednn_max_cpu_isa=cap,
        capped_because=because,
        crashes=crashes,
        unsupported={m["end"]: m["error"] for o in outcomes for m in o.messages if m.get("error")},
        cpu_capability=outcomes[0].find("cpu_capability"),
    )


def _find_crashes(run: Run) -> list[Outcome]:
    """Children without a cap of ours: each leaves out what killed the ones before it."""
    outcomes: list[Outcome] = []
    killers: list[str] = []
    while True:
        outcome = run(killers, {})
        reason = outcome.find("no_torch") or (None if outcome.find("start") else outcome.death)
        if reason is not None:
            raise WorkerError(
                f"torch cannot be imported by {sys.executable} ({reason}); "
                "reinstall it with: pip install 'flopwatch[torch]'"
            )
        outcomes.append(outcome)
        step = outcome.died_in
        if step is None or step in killers:
            return outcomes
        killers.append(step)


def _find_cap(run: Run, flags: Sequence[str], left_out: Sequence[str]) -> str | None:
    """The highest cap under which every matmul survives."""
    for cap, flag in CAPS:
        if flag in flags and run(left_out, {VARIABLE: cap}).death is None:
            return cap
    return None


def _explain(crashes: Mapping[str, str]) -> str:
    parts = [
        f"{matmul} matmul " + ("hung" if death == "hang" else f"died with {death}")
        for matmul, death in crashes.items()
    ]
    return f"{' and '.join(parts)} under the full instruction set"


def _parse(output: bytes) -> list[dict[str, Any]]:
    """The JSON objects among the lines; libraries may print lines of their own."""
    messages = []
    for line in output.decode(errors="replace").splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            messages.append(msgspec.json.decode(line, type=dict[str, Any]))
    return messages


def _read_cache(path: Path) -> dict[str, InstructionSet]:
    """By key; empty where it is missing or damaged, since it is only a cache."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, InstructionSet])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _write_cache(path: Path, entries: Mapping[str, InstructionSet]) -> None:
    latest = dict(list(entries.items())[-CACHE_ENTRIES:])
    with contextlib.suppress(OSError, UsageError):  # next time the probe is simply run again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(latest))
