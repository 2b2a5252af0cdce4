"""The documentation is executed: Python blocks run, commands parse."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from flopwatch.cli.main import cli
from flopwatch.cli.measure import read_axes
from flopwatch.records.record import encode

from .conftest import make_record

ROOT = Path(__file__).parent.parent
EXAMPLES = {"my_suite.py", "gelu.py"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{number}", body)
        for page in PAGES
        for number, (kind, body) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]


@pytest.mark.parametrize(("name", "body"), blocks("python"))
def test_python_blocks_run(
    name: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results/activations.jsonl").write_bytes(encode(make_record()) + b"\n")
    exec(compile(body, name, "exec"), {"__name__": name})


COMMANDS = [
    (name, line.removeprefix("$ "))
    for name, body in blocks("console")
    for line in body.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_commands_exist(name: str, command: str) -> None:
    words = shlex.split(command.partition("  #")[0])
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    elif words[0] == "flopwatch":
        # Parses the arguments as the real call would, without carrying it out.
        subcommand = cli.commands[words[1]]
        with click.Context(cli) as parent:
            context = subcommand.make_context(words[1], words[2:], parent=parent)
            if context.args:  # axes as options
                read_axes(context.params["suite"], context.args)
    else:
        assert shutil.which(words[0]), f"{words[0]} is no command of ours"


SOURCE = re.compile(r"`([\w/]+\.(?:py|md|sh))`")


def test_files_that_are_named_exist() -> None:
    """Paths are those of the repository, of the package or of the page; a bare name, anywhere."""
    named = {(page, name) for page in PAGES for name in SOURCE.findall(page.read_text())}
    missing = {
        (page.name, name)
        for page, name in named
        if name not in EXAMPLES
        and not any(
            (folder / name).is_file() for folder in (ROOT, ROOT / "src" / "flopwatch", page.parent)
        )
        and ("/" in name or not any(ROOT.glob(f"[st]*/**/{name}")))
    }

    assert len(named) > 20
    assert missing == set()


def test_the_flow_of_a_run_names_modules() -> None:
    flow = (ROOT / "CONTRIBUTING.md").read_text().partition("passes through these files")[2]
    named = re.findall(r"\b[a-z]+/[a-z_]+", flow.partition("##")[0])

    assert len(named) > 10
    assert [name for name in named if not (ROOT / f"src/flopwatch/{name}.py").is_file()] == []


def test_every_benchmark_is_named_in_the_documentation() -> None:
    text = "".join(page.read_text() for page in PAGES)
    scripts = [f"benchmarks/{script.name}" for script in (ROOT / "benchmarks").glob("*.py")]

    assert len(scripts) > 10
    assert [script for script in scripts if script not in text] == []
