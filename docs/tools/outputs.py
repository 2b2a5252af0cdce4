"""What commands print, in the pages: a block behind ``<!-- output: COMMAND -->`` is the command's
real output, at 100 columns, or as many as ``COLUMNS=N`` before it says. Tests compare them; this
writes them anew.

    python docs/tools/outputs.py            # which differ
    python docs/tools/outputs.py --write

A command may end in ``| head -N`` or ``| tail -N``. It must give the same answer on every machine:
one that measures belongs into a plain block.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
OUTPUT = re.compile(r"<!-- output: (?P<command>.+?) -->\n```text\n(?P<text>.*?)```\n", re.DOTALL)
CUT = re.compile(r" \| (head|tail) -(\d+)$")


def list_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def find_outputs(page: Path) -> Iterator[tuple[str, str]]:
    """Commands, and what the page says that they print."""
    for found in OUTPUT.finditer(page.read_text()):
        yield found["command"], found["text"]


def run(command: str) -> str:
    from flopwatch.cli.main import cli

    cut = CUT.search(command)
    before, _, after = CUT.sub("", command).partition("flopwatch ")
    columns = before.strip().removeprefix("COLUMNS=") or "100"
    found = CliRunner(env={"COLUMNS": columns, "NO_COLOR": "1"}).invoke(cli, shlex.split(after))
    lines = [line.rstrip() for line in found.stdout.rstrip().splitlines()]
    if cut:
        number = int(cut[2])
        lines = lines[:number] if cut[1] == "head" else lines[-number:]
    return "".join(f"{line}\n" for line in lines)


def write(page: Path) -> int:
    """How many blocks have changed."""
    text = page.read_text()
    new = OUTPUT.sub(
        lambda found: f"<!-- output: {found[1]} -->\n```text\n{run(found[1])}```\n", text
    )
    changed = sum(run(command) != old for command, old in find_outputs(page))
    page.write_text(new)
    return changed


def main() -> None:
    for page in list_pages():
        if "--write" in sys.argv[1:]:
            print(f"{page.name}: {write(page)} changed")
        else:
            for command, text in find_outputs(page):
                print(f"{'same' if run(command) == text else 'DIFFERS'}  {page.name}: {command}")


if __name__ == "__main__":
    main()
