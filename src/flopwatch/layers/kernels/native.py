"""C++ for Python: compiled once for this CPU, kept in a cache, loaded with ctypes.

Where there is no compiler, or it fails, `load` gives the reason instead of a library, and its
callers have another way. FLOPWATCH_NATIVE=off is such a reason too.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from flopwatch import env

HERE = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
)
THREADS = "-fopenmp"
"""Tried first. Where torch has loaded the same OpenMP, as its usual build does, the library shares
its threads."""
TIMEOUT_S = 120


class NativeError(Exception):
    """Why there is no library, in a clause."""


@cache
def load(name: str) -> ctypes.CDLL | str:
    """The library made from `name`.cpp, or why there is none."""
    if env.read("FLOPWATCH_NATIVE") == "off":
        return "FLOPWATCH_NATIVE is off"
    try:
        return ctypes.CDLL(str(_build(HERE / f"{name}.cpp")))
    except NativeError as error:
        return str(error)
    except OSError as error:
        return f"the compiled library cannot be loaded ({error})"


def _build(source: Path) -> Path:
    """Where the library is; it is compiled unless an earlier call has done so."""
    compiler = find_compiler()
    folder, digest = find_cache(), _digest(source, compiler)
    reason = ""
    for threads in ([THREADS], []):  # some compilers have no OpenMP
        library = folder / f"{source.stem}-{digest}{''.join(threads)}.so"
        if library.exists():
            return library
        reason = _compile([*compiler, *FLAGS, *threads, str(source)], library)
        if not reason:
            return library
    raise NativeError(reason)


def find_compiler() -> list[str]:
    """$CXX, which may have arguments, or the first of the usual ones."""
    asked = env.read("CXX").strip()
    for words in [shlex.split(asked)] if asked else [[name] for name in COMPILERS]:
        found = shutil.which(words[0])
        if found is not None:
            return [found, *words[1:]]
    raise NativeError(
        f"CXX is {asked!r}, which is not there" if asked else "there is no C++ compiler"
    )


def find_cache() -> Path:
    """A folder of the user's: in their cache, or where that cannot be, among temporary files."""
    candidates = [Path(tempfile.gettempdir()) / f"flopwatch-{os.getuid()}"]
    with suppress(RuntimeError):  # no home is known
        home = env.read("XDG_CACHE_HOME") or Path.home() / ".cache"
        candidates.insert(0, Path(home) / "flopwatch")
    for folder in candidates:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What is loaded from there is run: nobody else may have put it there.
            if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
                return folder
    raise NativeError(f"there is no folder to keep compiled code in, not even {candidates[-1]}")


def _digest(source: Path, compiler: list[str]) -> str:
    """Of all that the library depends on: compilers are upgraded, and homes are shared by machines
    with different CPUs."""
    program = Path(compiler[0]).resolve().stat()
    about = [
        *(path.read_text() for path in sorted(source.parent.glob(f"{source.stem}*.[ch]*"))),
        *(*compiler, str(program.st_size), str(program.st_mtime_ns), *FLAGS),
        *(platform.machine(), _read_cpu_features()),
    ]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]


def _read_cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not on Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(command: list[str], library: Path) -> str:
    """Why it failed; empty if it did not. It is made under another name: two processes may do so at
    once, and one may be killed."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        try:
            done = subprocess.run(
                [*command, "-o", str(made)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]} does not work ({error})"
        if done.returncode == 0:
            made.replace(library)
            return ""
    said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    return f"{command[0]} failed ({next((line for line in said if 'error' in line), said[0])})"
