"""The documentation is executed: Python blocks run, and so do commands; those that would measure
are previewed (`--dry-run`), or else parsed with all their options."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flopwatch.cli.main import cli
from flopwatch.cli.measure import read_axes
from flopwatch.records.published import load
from flopwatch.records.record import encode
from flopwatch.records.store import read
from flopwatch.runner import session
from flopwatch.runner.durations import Speed
from flopwatch.suites.catalog import write_template

from .conftest import make_record
from .entry_points import write_entry_points
from .plot_tools import make_pipeline
from .traces.trace_maker import write_examples

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
    ("body", "name"),
    {body: name for name, body in blocks("python") if not FILE.match(body)}.items(),
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
    # Those of the page on integrations need the files of that page, and have a test of their own.
    if line.startswith("$ ") and not name.startswith(INTEGRATIONS.stem)
]
PARSED = {"ab", "calibrate", "doctor", "profile", "validate"}
"""Commands that measure, need what was measured on this very machine, or take long."""
ANSWERS = {"check": {0, 1}, "compare": {0, 1, 3, 4}}
"""Exit codes of commands whose exit code is an answer."""


def how_to_test(words: list[str]) -> str:
    """run, preview (a measurement, with --dry-run), or parse."""
    subcommand, rest = words[0], words[1:]
    if subcommand == "run":
        if "--launcher" in rest:  # there need not be a Slurm here
            return "parse"
        return "run" if {"--list", "--new"} & set(rest) else "preview"
    if subcommand in PARSED or (subcommand == "peaks" and not rest):
        return "parse"
    return "parse" if "here" in rest else "run"  # this machine has not been measured


def find_words(command: str) -> list[str]:
    words = shlex.split(command.partition(" | ")[0], comments=True)
    return words[words.index("flopwatch") + 1 :] if "flopwatch" in words else []


OURS = list({tuple(found): one for one in COMMANDS if (found := find_words(one[1]))}.values())
"""Commands of flopwatch, each once, with one of the places where it stands."""
KINDS = {command: how_to_test(find_words(command)) for _, command in OURS}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the documentation's commands name: quick runs that were kept."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "tests" / "data" / "examples", folder / "results")
    for suite in ("dyad", "switchback"):
        with (folder / "results" / f"{suite}.jsonl").open("ab") as file:
            file.writelines(encode(record) + b"\n" for record in load(suite))
    for name in ("results/activations", "mine", "old", "new"):
        shutil.copy(folder / "results" / "steps.jsonl", folder / f"{name}.jsonl")
    (folder / "pipelines.jsonl").write_bytes(encode(make_pipeline()) + b"\n")
    for name in ("fused", "unfused"):
        shutil.copy(folder / "results" / "training.jsonl", folder / f"{name}.jsonl")
    shutil.copy(ROOT / "tests" / "data" / "google_benchmark.json", folder / "bench.json")
    (folder / "jobs.csv").write_text(
        "d_model,n_layers,seq_len,n_gpus,gpu_type,micro_batch_seqs\n4096,32,2048,8,A100-80GB,4\n"
    )
    write_examples(folder)
    write_template(folder / "my_suite.py")
    layers = next(
        body for name, body in blocks("python") if "layers.md" in name and "suite" in body
    )
    (folder / "my_layers.py").write_text(layers)
    return folder


def list_run() -> list[Any]:
    """Models of transformers, whose memory is found on fake tensors, take their time."""
    slow = {command for _, command in OURS if re.search("run steps .*opt-125m", command)}
    return [
        pytest.param(name, command, marks=[pytest.mark.slow] if command in slow else [])
        for name, command in OURS
        if KINDS[command] != "parse"
    ]


@pytest.mark.parametrize(("name", "command"), list_run())
def test_commands_run(
    name: str, command: str, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(examples, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    words = find_words(command)
    if KINDS[command] == "preview":
        words += ["--dry-run"] if "--dry-run" not in words else []
        # A preview asks a worker with torch for the speed of matmuls, to say how long it takes.
        monkeypatch.setattr(session, "measure_speed", lambda *_: Speed(rates={"float32": 1e11}))
    elif "--new" in words or words[0] == "export":  # neither replaces a file
        Path(words[-1]).unlink(missing_ok=True)
    words = [path for word in words for path in expand(word)]

    result = CliRunner().invoke(cli, words)

    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in ANSWERS.get(words[0], {0}), result.output
    assert result.stdout or result.stderr


def expand(word: str) -> list[str]:
    """As a shell does."""
    return sorted(map(str, Path().glob(word))) if word.endswith("*.jsonl") else [word]


@pytest.mark.parametrize(("name", "command"), [one for one in OURS if KINDS[one[1]] == "parse"])
def test_commands_parse(name: str, command: str) -> None:
    """As the real call would, without carrying it out."""
    subcommand, *rest = find_words(command)
    with click.Context(cli) as parent:
        context = cli.commands[subcommand].make_context(subcommand, rest, parent=parent)
        if context.args:  # axes as options
            read_axes(context.params["suite"], context.args)


def test_most_commands_of_the_documentation_run() -> None:
    counted = Counter(KINDS[command] for _, command in OURS)
    assert counted["run"] + counted["preview"] > 8 * counted["parse"], counted


@pytest.mark.parametrize(("name", "command"), [one for one in COMMANDS if not find_words(one[1])])
def test_other_programs_exist(name: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    elif words[:2] == ["pip", "install"]:
        extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert all(set(re.findall(r"[a-z]+", word)) <= set(extras) for word in words[2:])
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


@pytest.mark.parametrize(("name", "body"), blocks("sh"))
def test_shell_blocks_parse(name: str, body: str) -> None:
    subprocess.run(["bash", "-n"], input=body, text=True, check=True)


ACTION = "flopwatch/flopwatch@"


@pytest.mark.parametrize(("name", "body"), [one for one in blocks("yaml") if ACTION in one[1]])
def test_workflows_use_inputs_that_the_action_has(name: str, body: str) -> None:
    given = re.findall(r"^ +([\w-]+):", body.partition(ACTION)[2], re.MULTILINE)
    inputs = (ROOT / "action.yml").read_text().partition("inputs:")[2].partition("runs:")[0]

    assert len(given) > 2
    assert set(given) - {"with"} <= set(re.findall(r"^  ([\w-]+):", inputs, re.MULTILINE))


@pytest.mark.parametrize(("name", "body"), [one for one in blocks("yaml") if "torchrun" in one[1]])
def test_jobs_of_clusters_call_us_as_we_are_called(name: str, body: str) -> None:
    import yaml  # mkdocs needs it

    assert all(isinstance(part, dict) for part in yaml.safe_load_all(body))
    _, words = " ".join(body.split()).split(" -m flopwatch ", 1)
    command = re.split(r" env:| \[", words)[0]
    test_commands_parse(name, f"flopwatch {command}")


def load_tool(name: str) -> ModuleType:
    """A script of the documentation."""
    specification = importlib.util.spec_from_file_location(name, ROOT / f"docs/tools/{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


OUTPUTS = load_tool("outputs")
PRINTED = [
    (page.name, command, text)
    for page in OUTPUTS.list_pages()
    for command, text in OUTPUTS.find_outputs(page)
]


@pytest.mark.parametrize(("page", "command", "text"), PRINTED)
def test_printed_answers_are_what_commands_print(page: str, command: str, text: str) -> None:
    """`python docs/tools/outputs.py --write` writes them anew."""
    assert OUTPUTS.run(command) == text


def test_the_readme_is_short_and_answers_five_questions() -> None:
    text = (ROOT / "README.md").read_text()

    assert len(text.split()) <= 1200
    assert len(re.findall(r"^### \d\. .*\?$", text, re.MULTILINE)) == 5
    for image in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (ROOT / image).is_file()


def test_links_of_the_readme_lead_somewhere() -> None:
    """Those of docs/ are checked by building the site."""
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())

    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    named = re.findall(r":prog_name: flopwatch ([\w-]+)", text)

    assert sorted(named) == sorted(cli.commands)
    assert [name for name in named if f"| `flopwatch {name}" not in text] == []


def test_every_public_name_is_in_the_reference() -> None:
    import flopwatch

    named = re.findall(r"^::: flopwatch\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(set(flopwatch.__all__) - {"__version__"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does: a link or an anchor that leads nowhere is an error."""
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


@pytest.mark.slow
def test_the_site_needs_no_network(site: Path) -> None:
    fetched = re.compile(
        r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(https?:[^"'\s>]+)"""
    )
    imported = re.compile(r"""url\(["']?(https?:[^)"']+)""")
    pages, styles = sorted(site.rglob("*.html")), sorted(site.rglob("*.css"))

    assert len(pages) > 25
    assert {url for page in pages for url in fetched.findall(page.read_text())} == set()
    assert {url for style in styles for url in imported.findall(style.read_text())} == set()


@pytest.mark.slow
def test_the_site_has_references_generated_from_code(site: Path) -> None:
    commands, python = ((site / f"{name}.html").read_text() for name in ("commands", "api"))

    assert "--fail-if-slower" in commands
    assert "--global-batch-tokens" in commands
    assert "Time functions side by side against the first one" in python
    assert "fused is" in (site / "notebooks" / "first_steps.html").read_text()


def test_the_notebook_runs() -> None:
    pytest.importorskip("nbclient", reason="pip install '.[test]'")
    subprocess.run(
        [sys.executable, ROOT / "docs" / "tools" / "run_notebook.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        check=True,
    )


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


def test_the_help_of_every_benchmark_can_be_printed() -> None:
    """argparse formats it with %: a percent sign alone is an error there."""
    helps = [
        keyword.value.value
        for script in (ROOT / "benchmarks").rglob("*.py")
        for keyword in ast.walk(ast.parse(script.read_text()))
        if isinstance(keyword, ast.keyword) and keyword.arg == "help"
        if isinstance(keyword.value, ast.Constant)
    ]

    assert len(helps) > 20
    for text in helps:
        assert text % {"default": 1, "prog": "name"}
