"""C++ for Python: compiled once for this CPU, kept in a cache, loaded with ctypes.

Where there is no compiler, or it fails, `load` gives the reason instead of a library, and its
callers have another way. FLOPWATCH_NATIVE=off is such a reason too.

What is kept is run later, so it must be what this user has compiled: folder and file are private
(`private_files`), and a file's name ends with the digest of its content, which is compared before
the file is loaded, from the descriptor that was read. A file that is cut short, damaged or foreign
is removed and compiled again. Where the cache is no private folder, the library is compiled into a
temporary one by every process, with a note. No failure is kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from flopwatch import env
from flopwatch.private_files import NotPrivate, open_file, open_folder, write_file

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


class Library(ctypes.CDLL):
    has_openmp: bool
    note: str
    """What a reader of timings should know; mostly empty."""


@cache
def load(name: str) -> Library | str:
    """The library made from `name`.cpp, or why there is none."""
    if env.read("FLOPWATCH_NATIVE") == "off":
        return "FLOPWATCH_NATIVE is off"
    try:
        return _load(HERE / f"{name}.cpp")
    except NativeError as error:
        return str(error)


def _load(source: Path) -> Library:
    compiler = find_compiler()
    kept = env.find_cache_folder()
    try:
        return _load_from(kept, source, compiler)
    except (NotPrivate, OSError) as error:
        reason = f"{kept} {error}" if isinstance(error, NotPrivate) else str(error)
    try:
        # Of mode 0700, with a name that nobody can foresee.
        with TemporaryDirectory(prefix="flopwatch-") as folder:
            library = _load_from(Path(folder), source, compiler)
    except (NotPrivate, OSError) as error:
        raise NativeError(f"compiled code cannot be kept or loaded ({reason}; {error})") from None
    library.note = f"compiled code is not kept, since {reason}"
    return library


def _load_from(path: Path, source: Path, compiler: list[str]) -> Library:
    """Compiled unless an earlier call has done so."""
    beginning = f"{source.stem}-{_digest(source, compiler)}"
    with open_folder(path) as folder:
        for name in os.listdir(folder):
            if name.startswith(beginning):
                library = _open(path, folder, name)
                if library is not None:
                    return library
                os.unlink(name, dir_fd=folder)
        threads, content = _compile([*compiler, *FLAGS, str(source)])
        name = f"{beginning}{threads}-{hashlib.sha256(content).hexdigest()}.so"
        write_file(folder, name, content)
        library = _open(path, folder, name)
    if library is None:
        raise NativeError(f"{path / name} was changed while it was made")
    return library


def _open(path: Path, folder: int, name: str) -> Library | None:
    """None where the file is not what its name says, or not this user's."""
    try:
        file = open_file(folder, name)
    except (NotPrivate, FileNotFoundError):
        return None
    with os.fdopen(file, "rb", closefd=False) as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    if not name.endswith(f"-{digest}.so"):
        os.close(file)
        return None
    # By its descriptor, so that nothing else can be loaded by its name. It stays open: a library
    # that is loaded is known to the system by this path.
    of_descriptor = Path(f"/proc/self/fd/{file}")
    library = Library(str(of_descriptor if of_descriptor.exists() else path / name))
    library.has_openmp = THREADS in name
    library.note = ""
    return library


def find_compiler() -> list[str]:
    """$CXX, which may have arguments, or the first of the usual ones."""
    asked = env.read("CXX").strip()
    try:
        candidates = [shlex.split(asked)] if asked else [[name] for name in COMPILERS]
    except ValueError as error:
        raise NativeError(f"CXX is {asked!r}, which is not a command ({error})") from None
    for words in candidates:
        if words and (found := shutil.which(words[0])) is not None:
            return [found, *words[1:]]
    raise NativeError(
        f"CXX is {asked!r}, which is not there" if asked else "there is no C++ compiler"
    )


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


def _compile(command: list[str]) -> tuple[str, bytes]:
    """The library, after the option that gives it threads; empty where the compiler has none."""
    reason = ""
    for threads in (THREADS, ""):  # some compilers have no OpenMP
        with TemporaryDirectory(prefix="flopwatch-") as folder:
            made = Path(folder) / "library.so"
            options = [threads] if threads else []
            try:
                done = subprocess.run(
                    [*command, *options, "-o", str(made)],
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=TIMEOUT_S,
                    check=False,
                )
                if done.returncode == 0:
                    return threads, made.read_bytes()
            except FileNotFoundError:
                reason = f"{command[0]} made nothing"
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = f"{command[0]} does not work ({error})"
            else:
                said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
                line = next((line for line in said if "error" in line), said[0])
                reason = f"{command[0]} failed ({line})"
    raise NativeError(reason)
