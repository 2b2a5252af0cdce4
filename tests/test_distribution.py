"""The sdist and the wheel: built, checked, installed into an empty folder and run from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from pathlib import Path

import pytest

from flopwatch import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "flopwatch"
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")


def run(*words: object, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, **more},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both; the wheel is built from the sdist."""
    project = tmp_path_factory.mktemp("project")
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, project)
    shutil.copytree(ROOT / "src", project / "src", ignore=leave_out)
    run("-m", "build", "--no-isolation", project)
    return project / "dist"


def list_shipped() -> list[str]:
    """All files of the package, by the path that they are installed at."""
    files = [path for path in SOURCE.rglob("*") if path.is_file()]
    return [
        f"flopwatch/{path.relative_to(SOURCE).as_posix()}"
        for path in files
        if "__pycache__" not in path.parts
    ]


def find_one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_twine_has_nothing_against_them(built: Path) -> None:
    printed = run("-m", "twine", "check", "--strict", *built.iterdir(), NO_COLOR="1")
    assert printed.count("PASSED") == 2, printed


def test_the_wheel_has_every_file(built: Path) -> None:
    wheel = zipfile.ZipFile(find_one(built, "*.whl"))
    shipped = list_shipped()

    assert len([name for name in shipped if not name.endswith(".py")]) > 15
    assert set(shipped) - set(wheel.namelist()) == set()
    foreign = [n for n in wheel.namelist() if not n.startswith(("flopwatch/", "flopwatch-"))]
    assert foreign == []


def test_the_sdist_has_every_file(built: Path) -> None:
    with tarfile.open(find_one(built, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {f"src/{name}" for name in list_shipped()} - names == set()
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names


def read_about(built: Path, name: str) -> bytes:
    wheel = zipfile.ZipFile(find_one(built, "*.whl"))
    return wheel.read(f"flopwatch-{__version__}.dist-info/{name}")


def test_the_wheel_says_what_it_is(built: Path) -> None:
    about = message_from_bytes(read_about(built, "METADATA"))
    entry_points = read_about(built, "entry_points.txt").decode().splitlines()

    assert (about["Name"], about["Version"]) == ("flopwatch", __version__)
    assert about["Description-Content-Type"] == "text/markdown"
    # pipx and uvx run the command that is called like the package.
    assert "flopwatch = flopwatch.cli.main:main" in entry_points
    assert "flopwatch = flopwatch.pytest_plugin" in entry_points


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    wheel = find_one(built, "*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel)
    return target


COMMANDS: list[tuple[Sequence[str], str]] = [
    (["--version"], f"flopwatch, version {__version__}"),
    (["run", "--list"], "activations"),
    (["show", "published:mosaic", "--layout", "published"], "FULL_SHARD"),
    (["predict", "--model", "7b", "--seq-len", "2048", "--micro-batch", "4", "--hardware",
      "8xA100-80GB"], "tokens/s"),
    (["schema", "record"], '"urn:flopwatch:schema:record:1"'),
    (["report", "published:dyad", "-o", "-"], "vega"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "printed"), COMMANDS, ids=lambda each: str(each)[:30])
def test_what_is_installed_runs(
    installed: Path, tmp_path: Path, words: Sequence[str], printed: str
) -> None:
    done = subprocess.run(
        [installed / "bin" / "flopwatch", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert printed in done.stdout


def test_it_is_the_installed_one_that_runs(installed: Path, tmp_path: Path) -> None:
    where = run("-c", "import flopwatch; print(flopwatch.__file__)", PYTHONPATH=str(installed))
    assert where.strip() == str(installed / "flopwatch" / "__init__.py")
