"""Compiles the accelerator of the tests, once for a version of torch and of its source."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from flopwatch.layers.kernels.native import NativeError, find_compiler
from flopwatch.private_files import open_folder, write_file

HERE = Path(__file__).parent
SOURCE = HERE / "native" / "module.cpp"
PACKAGE = HERE / "package"
FLAGS = ("-O0", "-std=c++20", "-shared", "-fPIC", "-w")
NEWEST_HEADER = "torch/csrc/profiler/standalone/privateuse1_profiler.h"
"""Of those that it needs: older versions of torch lack it."""
TIMEOUT_S = 600
CACHE = Path.home() / ".cache" / "flopwatch-tests"
"""Not flopwatch's own, of which every run of the tests has a fresh one."""


class NotBuilt(Exception):
    """Why there is no device, in a clause."""


def build_device() -> Path:
    """The compiled part. Raises NotBuilt."""
    try:
        compiler = find_compiler()
    except NativeError as error:
        raise NotBuilt(str(error)) from None
    spec = find_spec("torch")  # without importing it
    assert spec is not None
    assert spec.origin is not None
    torch_folder = Path(spec.origin).parent
    if not (torch_folder / "include" / NEWEST_HEADER).exists():
        raise NotBuilt(f"torch {version('torch')} has no {NEWEST_HEADER}")
    command = [*compiler, *FLAGS, *list_includes(torch_folder), str(SOURCE)]
    command += [f"-L{torch_folder / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    path = CACHE / f"flop_native-{digest(compiler)}.so"
    with open_folder(CACHE) as folder, open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest may be about it
        if not path.exists():
            write_file(folder, path.name, compile_device(command))
    return path


def list_includes(torch_folder: Path) -> list[str]:
    include = torch_folder / "include"
    folders = [
        include,
        include / "torch/csrc/api/include",
        include / "kineto",
        sysconfig.get_path("include"),
    ]
    return [f"-I{folder}" for folder in folders]


def digest(compiler: list[str]) -> str:
    """Wherever the sources are: another clone has the same."""
    sources = sorted(SOURCE.parent.iterdir())
    about = [version("torch"), sys.version, *compiler, *FLAGS, *map(Path.read_text, sources)]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]


def compile_device(command: list[str]) -> bytes:
    made = CACHE / f".made-{os.getpid()}.so"
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "-o", str(made)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:5000]}"
        return made.read_bytes()
    except subprocess.TimeoutExpired:
        raise NotBuilt(f"{command[0]} has not ended in {TIMEOUT_S} s") from None
    finally:
        made.unlink(missing_ok=True)
        print(f"the test accelerator was compiled in {time.monotonic() - started_s:.0f} s")


def name_environment(library: Path) -> dict[str, str]:
    """With which torch finds the device, in this process's children and theirs."""
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(PACKAGE), *([inherited] if inherited else [])]
    return {"PYTHONPATH": os.pathsep.join(paths), "FLOP_LIBRARY": str(library)}
