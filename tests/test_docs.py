"""The documentation is executed: Python blocks run, commands parse."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from flopwatch.cli.main import cli
from flopwatch.cli.measure import read_axes
from flopwatch.records.record import encode
from flopwatch.records.store import read

from .conftest import make_record
from .entry_points import write_entry_points

ROOT = Path(__file__).parent.parent
EXAMPLES = {"my_suite.py", "gelu.py"}
INTEGRATIONS = ROOT / "docs" / "integrations.md"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{number}", body)
        for page in PAGES
        for number, (kind, body) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]


FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
"""The first line of a block that is a file of the page on integrations, which has its own test."""


@pytest.mark.parametrize(
    ("name", "body"), [(name, body) for name, body in blocks("python") if not FILE.match(body)]
)
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
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        program = words[0].removeprefix(".venv/bin/")
        assert shutil.which(program, path=path), f"{program} is no command of ours"


VERDICTS = {"pytest": (0, 1), "flopwatch check": (0, 1), "flopwatch compare": (0, 1, 3, 4)}
"""Exit codes of commands that judge what they measure: tests do not. Others exit with 0."""


def test_the_page_on_integrations_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """Its files are written, its commands run; pip installs into a folder of the test."""
    write_entry_points(tmp_path / "about")
    work, programs = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    for name in ("flopwatch", "pip", "pytest"):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {name} "$@"\n')
        (programs / name).chmod(0o755)
    folders = (tmp_path / "about", tmp_path / "installed", ROOT / "src")
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PIP_TARGET": str(tmp_path / "installed"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which means: without it
    }
    for kind, body in BLOCK.findall(INTEGRATIONS.read_text()):
        file = FILE.match(body)
        if file is not None:
            (work / file[1]).parent.mkdir(parents=True, exist_ok=True)
            (work / file[1]).write_text(body)
        commands = re.findall(r"^\$ (.*)", body, re.MULTILINE) if kind == "console" else []
        for command in commands:
            done = subprocess.run(
                shlex.split(command),
                cwd=work,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
            )
            begun = [codes for words, codes in VERDICTS.items() if command.startswith(words)]
            allowed = begun[0] if begun else (0,)
            assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
    records = {name: read(work / f"{name}.jsonl").records for name in ("old", "new")}
    assert {len(each) for each in records.values()} == {4}
    layers = read(work / "results" / "dyad.jsonl").records
    assert [(r.variant, r.status, r.unchecked) for r in layers] == [
        ("dense", "ok", None), ("low-rank:8", "ok", None),
    ]  # fmt: skip


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
