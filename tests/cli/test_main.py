"""The command line as a user meets it: output and exit codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from glob import glob
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from flopwatch.cli.help_texts import SECTIONS
from flopwatch.cli.job_options import JOB
from flopwatch.cli.main import MOVED, RENAMED_OPTIONS, cli
from flopwatch.records.published import load
from flopwatch.records.record import Record, encode
from tests.command_line import run_command_line
from tests.output.test_case_tables import sampled
from tests.plot_tools import BREAKDOWN
from tests.traces.trace_maker import write_examples


def flopwatch(
    *arguments: object, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """In this process; with variables of its own, in one of its own."""
    if not environment:
        return run_command_line(*map(str, arguments), cwd=cwd)
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
    assert len(lines) <= 44
    assert max(map(len, lines)) <= 100
    sections = [line.removesuffix(":") for line in lines if line.endswith(":")]
    assert sections == [
        "Examples", "Options", "Measure", "Look", "Judge", "Predict", "Machine", "Exchange",
    ]  # fmt: skip
    assert len(cli.commands) <= 22
    for name in cli.commands:
        assert any(line.startswith(f"  {name} ") for line in lines), name
    assert not any(line.endswith("...") for line in lines if line.startswith("  ")), "cut short"


def in_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("FLOPWATCH", f"{shlex.quote(sys.executable)} -m flopwatch")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("words", ["show published:dyad", "show published:dyad --json", "--help"])
def test_a_full_disk_on_stdout_is_one_sentence(words: str) -> None:
    result = in_shell(f"FLOPWATCH {words} > /dev/full")
    assert result.returncode == 2
    assert result.stderr == (
        "flopwatch: output cannot be written (No space left on device); write it elsewhere\n"
    )


def test_what_is_closed_leads_nowhere(tmp_path: Path) -> None:
    """And never into a file that is opened next."""
    page = tmp_path / "page.html"
    result = in_shell(f"FLOPWATCH report published:dyad -o {page} <&- >&- 2>&-")
    assert result.returncode == 0
    assert page.read_text().startswith("<!doctype html>")
    assert page.read_text().endswith("</html>\n")
    result = in_shell("FLOPWATCH show published:dyad >&-")
    assert (result.returncode, result.stderr) == (0, "")


def test_characters_that_stdout_lacks_are_replaced() -> None:
    result = in_shell("FLOPWATCH show published:dyad -v", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert " +/- " in result.stdout
    assert result.stdout.isascii()


@pytest.mark.parametrize("name", sorted(MOVED))
def test_an_earlier_command_names_the_new_one(name: str, tmp_path: Path) -> None:
    refused = flopwatch(name, "results.jsonl", cwd=tmp_path)
    assert_refused(refused, f"there is no command {name!r}; it is `flopwatch {MOVED[name][0]}`")
    assert refused.stderr.count("\n") == 1
    for spelling in MOVED[name]:
        command, *words = spelling.split()
        with click.Context(cli) as parent:
            cli.commands[command].make_context(command, words, parent=parent)


@pytest.mark.parametrize("old", sorted(RENAMED_OPTIONS))
@pytest.mark.parametrize("command", ["predict", "plan", "memory", "mfu", "profile"])
def test_an_earlier_option_names_the_new_one(command: str, old: str) -> None:
    result = CliRunner().invoke(cli, [command, old, "4"])
    assert result.exit_code == 2
    assert f"no such option {old}; it is {RENAMED_OPTIONS[old]}" in result.stderr


def test_an_option_has_one_name_and_one_meaning() -> None:
    """The whole help is the same for options of a job, the first words for others."""
    found: dict[str, set[str]] = {}
    for command in cli.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for name in parameter.opts:
                    found.setdefault(name, set()).add(parameter.help or "")
    assert set(JOB) < set(found)
    assert {name: found[name] for name in JOB if len(found[name]) > 1} == {}
    first = {name: {re.split("[.:]", text)[0] for text in texts} for name, texts in found.items()}
    assert {name: words for name, words in first.items() if len(words) > 1} == {}
    assert [name for name, words in first.items() if words == {""}] == []


def test_an_option_is_spelled_in_the_same_way_everywhere() -> None:
    """With the same short form and the same kind of value."""
    spelled: dict[str, set[tuple[tuple[str, ...], str | None]]] = {}
    for command in cli.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                metavar = (parameter.metavar or "").removesuffix("[,...]")
                spelled.setdefault(parameter.opts[-1], set()).add((tuple(parameter.opts), metavar))
    assert len(spelled) > 50
    assert {name: ways for name, ways in spelled.items() if len(ways) > 1} == {}


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
    # What is left of `run` are axes, which its suite reads.
    assert not context.args or words[1] == "run"


RUNNABLE = ("predict", "plan", "mfu", "memory")


def is_runnable(words: list[str]) -> bool:
    """Whether it needs no results, and measures nothing."""
    of_published = any(word.startswith("published") for word in words)
    is_looked_up = words[1] == "peaks" and not words[2].startswith("--") if words[2:] else False
    return words[1] in RUNNABLE or "--list" in words or of_published or is_looked_up


@pytest.mark.parametrize(
    "words",
    [
        words for name, words in EXAMPLES
        if name == words[1] and is_runnable(words)
        and not {"--rows", "-o", "--new", "here"} & set(words)
        and not any(word.startswith("results/") for word in words)
        and not any("qwen2" in word for word in words)  # needs torch, and a process with it
    ],
    ids=" ".join,
)  # fmt: skip
def test_examples_in_help_run(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert result.stdout


READING = ("show", "explain", "plot", "report", "query", "compare", "check", "export")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results that examples name."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "results").mkdir()
    (folder / "upload").mkdir()
    contents = {
        "old": make_cases("mine", ["plain", "fast"]),
        "new": make_cases("mine", ["plain", "fast"], run_id="2"),
        "results/activations": make_cases("activations", ["relu", "gelu"]),
        "results/bench": make_cases("bench", ["a", "b"]),
        "results/dyad": make_cases("dyad", ["dense", "dyad:auto:4"]),
        "results/steps": BREAKDOWN,
        "results/training": load("mosaic"),
        "results/switchback": load("switchback"),
    }
    for name, records in contents.items():
        path = folder / f"{name}.jsonl"
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    write_examples(folder)
    return folder


def make_cases(suite: str, variants: list[str], **changes: object) -> list[Record]:
    """Each variant twice as fast as the one before, at two numbers of tokens."""
    return [
        sampled(
            1e6 / 2**place, 2e6 / 2**place, suite=suite, variant=variant, baseline=variants[0],
            case_id=f"{suite}{variant}{tokens}", group_id=f"{suite}{tokens}",
            params={"shape": [64, 64], "tokens": tokens}, **changes,
        )
        for tokens in (512, 1024)
        for place, variant in enumerate(variants)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        words for name, words in EXAMPLES
        if name == words[1] and name in READING and not any("published" in word for word in words)
    ],
    ids=" ".join,
)  # fmt: skip
def test_examples_that_read_results_run(
    words: list[str], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    files = [file for word in words[1:] for file in (sorted(glob(word)) or [word])]
    result = CliRunner().invoke(cli, files, catch_exceptions=False)
    # Warnings that spoil a number are what `check` finds.
    assert result.exit_code in ((0, 1) if words[1] == "check" else (0,)), result.stderr
    assert result.output or "-o" in words


def test_options_of_a_long_help_are_in_sections() -> None:
    for name in ("run", "predict", "show", "compare", "ab"):
        with click.Context(cli.commands[name]) as context:
            text = cli.commands[name].get_help(context)
        titles = re.findall(r"^(\S.*):$", text, flags=re.M)
        assert titles[0] == "Examples"
        assert titles[-1] == "Output"
        assert len(titles) > 2, name
    known = {option for names in SECTIONS.values() for option in names}
    options = {
        each.opts[-1] for command in cli.commands.values() for each in command.params
        if isinstance(each, click.Option)
    }  # fmt: skip
    assert known <= options


def complete(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    *before, last = words
    return [item.value for item in ShellComplete(cli, {}, "flopwatch", "").get_completions(
        before, last
    )]  # fmt: skip


def test_shells_complete_names() -> None:
    assert complete("pr") == ["predict", "profile"]
    assert complete("run", "act") == ["activations"]
    assert complete("run", "dyad", "--columns", "variant,speedup_l") == ["variant,speedup_low"]
    assert complete("run", "dyad", "--device", "c") == ["cpu", "cuda"]
    assert complete("predict", "--seq-") == ["--seq-len"]
    assert "gpt-125m" in complete("predict", "--model", "gpt-1")
    assert complete("predict", "--model", "1b,gpt-125") == ["1b,gpt-125m"]
    assert complete("profile", "--model", "sma") == ["small"]
    assert "8xH100-SXM" in complete("predict", "--hardware", "8xH100-S")
    assert complete("plan", "--hardware", "64xa100-sxm-8") == ["64xA100-SXM-80GB"]
    assert complete("predict", "--recompute", "none,se") == ["none,selective"]
    assert complete("memory", "--precision", "bf16-") == ["bf16-mixed"]
    assert complete("run", "steps", "--precision", "bf16-") == ["bf16-mixed"]
    assert "H100-SXM" in complete("peaks", "H100")
    assert complete("show", "published:dy") == ["published:dyad"]
    assert complete("report", "a.jsonl", "pub")[:2] == ["published:dyad", "published:switchback"]
    assert complete("query", "SELECT 1", "published:m") == ["published:mosaic"]
    assert complete("show", "p") == ["p"]  # files, which the shell lists itself
    assert complete("show", "a.jsonl", "--columns", "variant,total_") == [
        "variant,total_ns", "variant,total_low_ns", "variant,total_high_ns",
        "variant,total_half_width",
    ]  # fmt: skip
    assert "speedup" in complete("show", "a.jsonl", "--sort", "speed")
    assert complete("compare", "new.jsonl", "--with", "published:m") == ["published:mosaic"]
    assert complete("plot", "new.jsonl", "--plot", "roof") == ["roofline"]
    assert "llm-foundry-2023-late" in complete("predict", "--stack", "llm")
    assert complete("run", "./my") == ["./my"]  # the same


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
        (["run", "missing.py"], ["no suite file missing.py", "flopwatch run --new missing.py"]),
        (["run", "broken.py"], ["broken.py, line 2 is not valid Python", "suite = ("]),
        (["run", "raises.py"], ["raises.py cannot be loaded", "ValueError: on purpose"]),
        (["run", "activations", "--filter", "size=3"], ["no axis 'size'", "shape, dtype, variant"]),
        (["run", "activations", "--filter", "dtype=int8"], ["no value 'int8'", "float32"]),
        (["run", "activations", "--filter", "dtype"], ["not of the form axis=value"]),
        (["run", "activations", "--budget", "soon"], ["'soon' is not a duration", "10m"]),
        (["run", "activations", "--set", "dtype=float16"], ["accepts only its own values"]),
        (["run", "activations", "--set", "dtype"], ["--set 'dtype' is not of the form axis=value"]),
        (["run", "activations", "--budget", "1s"], ["a budget of 1s cannot hold 30 cases"]),
        (["run", "activations", "--memory-limit", "lots"], ["'lots' is not a size"]),
        (["run", "activations", "--target-interval", "0"], ["'0' is not a percentage"]),
        (["run", "activations", "--threads", "0"], ["0 is not in the range"]),
        (["run", "activations", "--device", "cpu,cuda"], ["--device takes one value here"]),
        (
            ["run", "activations", "--device", "cuda"],
            ["finds no accelerator here; choose cpu"],
        ),
        (["run", "activations", "--out", "/proc/nowhere/x.jsonl"], ["cannot be written"]),
        (["run", "nothing.py"], ["no case of suite 'nothing' is left"]),
        (["show", "missing.jsonl"], ["missing.jsonl does not exist"]),
        (["query", "SELECT 1"], ["no results in results/ here"]),
        (["run", "--new", "broken.py"], ["broken.py exists already"]),
        (["run", "--new", "my-suite.py"], ["is no name for a suite file"]),
        (["run", "--new", "x.py", "--quick"], ["--new writes a suite", "leave --quick out"]),
        (["run", "dyad", "--list"], ["--dry-run the cases of one; leave SUITE out"]),
        (["run"], ["name a suite: activations, attention, dyad,", "run --list", "run --new FILE"]),
        (["run", "--model", "small"], ["name a suite: activations"]),
        (["show", "published", "--where", "a"], ["is a list; leave --where out"]),
        (["show", "published:gpt"], ["no published benchmark is called 'gpt'; there are dyad, sw"]),
        (["query", "SELECT 1", "published:gpt"], ["no published benchmark is called 'gpt'"]),
        (["compare", "a.jsonl", "published:dyad"], ["compared as ratios", "--with published:NAME"]),
        (["compare", "published:dyad", "--with", "dyad"], ["--with takes published:NAME"]),
        (["peaks", "H100-SMX"], ["no device is called 'H100-SMX'; write H100-SXM"]),
        (["peaks", "H100-SXM", "--quick"], ["that is looked up; leave --quick out"]),
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
