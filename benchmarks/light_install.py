"""How large the core's environment is, and how long its first prediction takes.

A venv is made and flopwatch is installed into it without extras, by the pip of the venv and its
settings. Cold: the first command, which finds nothing in the caches of Python; files may still be
in those of the system.

Measured with Python 3.11, 2 cores, 2026-11: 184 MB (duckdb 68, numpy 71, pip 14), 0.3 s. With scipy
in the core it was 330 MB, 143 of them scipy, a fifth of that its tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PREDICT = ("predict", "--model", "7b", "--seq-len", "2048", "--hardware", "8xH100-SXM")
BUILT = shutil.ignore_patterns("*.egg-info", "__pycache__")
RUNS = 5


def install(folder: Path) -> int:
    """Into a new venv; the bytes of all its files."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "-q"]
    with tempfile.TemporaryDirectory() as copy:  # pip leaves what it builds in the folder
        shutil.copytree(ROOT / "src", Path(copy) / "src", ignore=BUILT)
        for name in ("LICENSE", "README.md", "pyproject.toml"):
            shutil.copy(ROOT / name, copy)
        subprocess.run([*pip, "install", copy], check=True)
    return sum(size_bytes for _, size_bytes in list_sizes(folder))


def list_sizes(folder: Path) -> list[tuple[Path, int]]:
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [(path, path.stat().st_size) for path in paths]


def predict(folder: Path) -> str:
    done = subprocess.run(
        [str(folder / "bin" / "flopwatch"), *PREDICT, "--micro-batch", "4"],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "venv"
        size_bytes = install(folder)
        print(f"environment: {size_bytes / 1e6:.0f} MB")
        packages: dict[str, int] = {}
        for path, bytes_ in list_sizes(next(folder.glob("lib/*/site-packages"))):
            first = path.relative_to(next(folder.glob("lib/*/site-packages"))).parts[0]
            packages[first] = packages.get(first, 0) + bytes_
        for package, bytes_ in sorted(packages.items(), key=lambda item: -item[1])[:6]:
            print(f"  {package}: {bytes_ / 1e6:.0f} MB")
        times_s = []
        for _ in range(RUNS):
            start_s = time.perf_counter()
            predict(folder)
            times_s.append(time.perf_counter() - start_s)
        print(f"flopwatch predict: {times_s[0]:.2f} s cold, {min(times_s):.2f} s then")


if __name__ == "__main__":
    main()
