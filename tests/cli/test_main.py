"""The command line as a user meets it: real processes, their output and exit codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from flopwatch.cli import options
from flopwatch.cli.main import MOVED, cli
from flopwatch.jobs.parallelism import SHARDINGS
from flopwatch.jobs.precision import PRECISIONS
from flopwatch.jobs.training_job import OPTIMIZERS, RECOMPUTES


def flopwatch(
    *arguments: object, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flopwatch", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One clear sentence on stderr, nothing on stdout, exit 2."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_help_is_short_and_has_every_command_in_a_section(tmp_path: Path) -> None:
    lines = flopwatch("--help", cwd=tmp_path).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    sections = [line.removesuffix(":") for line in lines if line.endswith(":")]
    assert sections == [
        "Options", "Measure", "Look", "Judge", "Predict", "Machine", "Exchange",
    ]  # fmt: skip
    assert len(cli.commands) <= 22
    for name in cli.commands:
        assert any(line.startswith(f"  {name} ") for line in lines), name
    assert not any(line.endswith("...") for line in lines if line.startswith("  ")), "cut short"


@pytest.mark.parametrize("name", sorted(MOVED))
def test_an_earlier_command_names_the_new_one(name: str, tmp_path: Path) -> None:
    refused = flopwatch(name, "results.jsonl", cwd=tmp_path)
    assert_refused(refused, f"there is no command {name!r}; it is `{MOVED[name]}`")
    assert refused.stderr.count("\n") == 1
    command, *words = MOVED[name].removeprefix("flopwatch ").split()
    known = {option for parameter in cli.commands[command].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("old", sorted(options.RENAMED_OPTIONS))
@pytest.mark.parametrize("command", ["predict", "plan", "memory", "mfu", "profile"])
def test_an_earlier_option_names_the_new_one(command: str, old: str) -> None:
    result = CliRunner().invoke(cli, [command, old, "4"])
    assert result.exit_code == 2
    assert f"no such option {old}; it is {options.RENAMED_OPTIONS[old]}" in result.stderr


def test_an_option_of_a_job_has_one_name_and_one_help() -> None:
    found: dict[str, set[str | None]] = {}
    for command in cli.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for name in set(parameter.opts) & set(options.JOB):
                    found.setdefault(name, set()).add(parameter.help)
    assert set(found) == set(options.JOB)
    assert all(len(helps) == 1 for helps in found.values())


EXAMPLES = [
    (name, shlex.split(re.split(r" [|>] ", line.strip())[0]))
    for name, command in cli.commands.items()
    for line in (command.help or "").replace("\\\n", "").splitlines()
    if line.strip().startswith("flopwatch ")
]


def test_every_command_has_an_example() -> None:
    assert {name for name, _ in EXAMPLES} == set(cli.commands)


@pytest.mark.parametrize("words", [words for _, words in EXAMPLES], ids=" ".join)
def test_examples_in_help_are_understood(words: list[str]) -> None:
    with click.Context(cli) as parent:
        context = cli.commands[words[1]].make_context(words[1], words[2:], parent=parent)
    assert not context.args


RUNNABLE = ("predict", "plan", "mfu", "devices", "published", "suites", "memory")


@pytest.mark.parametrize(
    "words",
    [
        words for name, words in EXAMPLES
        if words[1] in RUNNABLE and name == words[1]
        and not {"--rows", "-o", "--new", "here"} & set(words)
        and not any("qwen2" in word for word in words)  # needs torch, and a process with it
    ],
    ids=" ".join,
)  # fmt: skip
def test_examples_in_help_run(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert result.stdout


def complete(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    *before, last = words
    return [item.value for item in ShellComplete(cli, {}, "flopwatch", "").get_completions(
        before, last
    )]  # fmt: skip


def test_shells_complete_commands_suites_models_and_devices() -> None:
    assert complete("pr") == ["predict", "profile"]
    assert complete("run", "act") == ["activations"]
    assert complete("predict", "--seq") == ["--seq-len"]
    assert "gpt-125m" in complete("predict", "--model", "gpt-1")
    assert complete("predict", "--model", "1b,gpt-125") == ["1b,gpt-125m"]
    assert complete("profile", "--model", "sma") == ["small"]
    assert "8xH100-SXM" in complete("predict", "--hardware", "8xH100-S")
    assert complete("plan", "--hardware", "64xa100-sxm-8") == ["64xA100-SXM-80GB"]
    assert complete("predict", "--recompute", "none,se") == ["none,selective"]
    assert complete("memory", "--precision", "bf16-") == ["bf16-mixed"]
    assert complete("run", "steps", "--precision", "bf16-") == ["bf16-mixed"]
    assert "H100-SXM" in complete("devices", "H100")
    assert complete("published", "dy") == ["dyad"]
    assert complete("compare", "new.jsonl", "--with", "published:m") == ["published:mosaic"]
    assert complete("plot", "new.jsonl", "--plot", "roof") == ["roofline"]
    assert "llm-foundry-2023-late" in complete("predict", "--stack", "llm")
    assert complete("run", "./my") == ["./my"]  # files, which the shell lists itself


def test_a_shell_gets_its_script(tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        program = "from flopwatch.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "_FLOPWATCH_COMPLETE": f"{shell}_source"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "_FLOPWATCH_COMPLETE" in done.stdout, done.stderr


def test_help_has_examples_and_imports_nothing_heavy(tmp_path: Path) -> None:
    result = flopwatch("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "flopwatch run activations --quick" in result.stdout
    program = (
        "import sys\nfrom flopwatch.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'duckdb', 'numpy', 'rich', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_has_help(tmp_path: Path, command: str) -> None:
    result = flopwatch(command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "Usage: " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "activation"], ["no suite 'activation'", "did you mean 'activations'"]),
        (["run", "missing.py"], ["no suite file missing.py", "flopwatch suites --new missing.py"]),
        (["run", "broken.py"], ["broken.py, line 2 is not valid Python", "suite = ("]),
        (["run", "raises.py"], ["raises.py cannot be loaded", "ValueError: on purpose"]),
        (["run", "activations", "--filter", "size=3"], ["no axis 'size'", "shape, dtype, variant"]),
        (["run", "activations", "--filter", "dtype=int8"], ["no value 'int8'", "float32"]),
        (["run", "activations", "--filter", "dtype"], ["not of the form axis=value"]),
        (["run", "activations", "--budget", "soon"], ["'soon' is not a duration", "10m"]),
        (["run", "activations", "--set", "dtype=float16"], ["knows only its own values"]),
        (["run", "activations", "--set", "dtype"], ["--set 'dtype' is not of the form axis=value"]),
        (["run", "activations", "--budget", "1s"], ["a budget of 1s cannot hold 30 cases"]),
        (["run", "activations", "--memory-limit", "lots"], ["'lots' is not a size"]),
        (["run", "activations", "--target-interval", "0"], ["'0' is not a percentage"]),
        (["run", "activations", "--threads", "0"], ["0 is not in the range"]),
        (["run", "activations", "--device", "tpu"], ["'tpu' is not one of"]),
        (["run", "activations", "--device", "cuda"], ["no CUDA device here"]),
        (["run", "activations", "--out", "/proc/nowhere/x.jsonl"], ["cannot be written"]),
        (["run", "nothing.py"], ["no case of suite 'nothing' is left"]),
        (["show", "missing.jsonl"], ["missing.jsonl does not exist"]),
        (["query", "SELECT 1"], ["no results in results/ here"]),
        (["suites", "--new", "broken.py"], ["broken.py exists already"]),
        (["suites", "--new", "my-suite.py"], ["is no name for a suite file"]),
        (["frobnicate"], ["No such command 'frobnicate'"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "broken.py").write_text("import flopwatch\nsuite = (\n")
    (tmp_path / "raises.py").write_text("import flopwatch\nraise ValueError('on purpose')\n")
    (tmp_path / "nothing.py").write_text(
        "import flopwatch\nsuite = flopwatch.Suite('nothing', axes={}, variants=['a'],"
        " where=lambda case: False)\nsuite.build(lambda case: None)\n"
    )
    assert_refused(flopwatch(*arguments, cwd=tmp_path), *words)


def test_choices_of_commands_are_those_of_models() -> None:
    """They are written out, so that help need not load the layers."""
    assert tuple(PRECISIONS) == options.PRECISIONS
    assert OPTIMIZERS == options.OPTIMIZERS
    assert RECOMPUTES == options.RECOMPUTES
    assert SHARDINGS == options.SHARDINGS
