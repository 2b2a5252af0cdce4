"""The entry points of flopwatch as pyproject.toml declares them: what is installed may be older."""

from __future__ import annotations

import tomllib
from pathlib import Path

from flopwatch import __version__

ROOT = Path(__file__).parent.parent


def write_entry_points(folder: Path) -> None:
    """For processes that have the folder in their path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = folder / f"flopwatch-{__version__}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: flopwatch\nVersion: {__version__}\n"
    )
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["pytest11"].items()]
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
