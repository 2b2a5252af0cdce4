"""C++ beside Python: compiled once for this CPU, kept in a cache, loaded with ctypes.

Where there is no compiler, or it fails, `load` gives the reason instead of a library, and its
callers have another way. FLOPWATCH_NATIVE=off is such a reason too.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

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
"""Tried first. The library then shares the OpenMP threads of torch, which has loaded it before."""
TIMEOUT_S = 120


class NativeError(Exception):
    """Why there is no library, in a clause."""


@cache
def load(name: str) -> ctypes.CDLL | str:
    """The library made from `name`.cpp, or why there is none."""
    if os.environ.get("FLOPWATCH_NATIVE", "on") == "off":
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
    library = find_cache() / f"{source.stem}-{_digest(source, compiler)}.so"
    if not library.exists():
        _compile(compiler, source, library)
    return library


def find_compiler() -> str:
    """$CXX, or the first of the usual ones."""
    asked = os.environ.get("CXX")
    for name in [asked] if asked else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NativeError(
        f"CXX is {asked!r}, which is not there" if asked else "there is no C++ compiler"
    )


def find_cache() -> Path:
    """A folder that can be written to: the user's cache, or else a new one that does not last."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "flopwatch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="flopwatch-"))


def _digest(source: Path, compiler: str) -> str:
    """Of all that the library depends on: homes are shared by machines with different CPUs."""
    about = [source.read_text(), compiler, *FLAGS, platform.machine(), _read_cpu_features()]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]


def _read_cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not on Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, source: Path, library: Path) -> None:
    """Under another name first: two processes may do so at once, and one may be killed."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        for threads in ([THREADS], []):  # some compilers have no OpenMP
            command = [compiler, *FLAGS, *threads, str(source), "-o", str(made)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NativeError(f"{compiler} does not work ({error})") from None
            if done.returncode == 0:
                made.replace(library)
                return
    said = done.stderr.strip().splitlines()
    raise NativeError(f"{compiler} failed ({said[0] if said else f'exit {done.returncode}'})")
