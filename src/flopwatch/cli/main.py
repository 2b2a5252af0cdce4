"""The command line: a file a section, a function a command, which parses, calls and prints.

Results go to stdout, everything else to stderr. Exit codes: 0 fine, 1 some cases failed, 2 usage,
130 interrupted. Imports happen inside the commands, so that `flopwatch --help` answers at once.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import click

from flopwatch import __version__
from flopwatch.cli import (
    ab,
    exchange,
    explain,
    judge,
    look,
    machine,
    measure,
    models,
    options,
    plan,
    predict,
)
from flopwatch.cli.help_texts import write_help_text
from flopwatch.errors import FlopwatchError, UsageError

MOVED = {
    "break-even": ["compare RESULTS --break-even"],
    "crossover": ["compare RESULTS --break-even"],
    "devices": ["peaks --list", "peaks DEVICE"],
    "init": ["run --new FILE"],
    "list": ["run --list"],
    "precision": ["doctor --low-precision"],
    "published": ["show published", "show published:NAME"],
    "scorecard": ["validate RESULTS"],
    "suites": ["run --list", "run --new FILE"],
    "table": ["show RESULTS"],
    "warmup": ["show RESULTS --warmup"],
}
"""Earlier commands, and what does their work now."""

RENAMED_OPTIONS = {
    "--accumulation": "--grad-accum",
    "--batch": "--micro-batch",
    "--checkpoint": "--recompute none, selective or full",
    "--checkpointing": "--recompute none, selective or full",
    "--context": "--seq-len",
    "--shard": "--sharding",
}


class Sections(click.Group):
    """Commands under headings."""

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.sections: dict[str, tuple[click.Command, ...]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        self.sections[title] = commands
        for command in commands:
            self.add_command(command)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_help_text(self.help or "", formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        formatter.write("\n")
        for title, commands in self.sections.items():
            formatter.write(f"{title}:\n")
            for command in commands:
                summary = command.get_short_help_str(formatter.width - width - 4)
                formatter.write(f"  {command.name or '':{width}}  {summary}\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in MOVED:
            new = " or ".join(f"`flopwatch {words}`" for words in MOVED[args[0]])
            raise UsageError(f"there is no command {args[0]!r}; it is {new}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            new = RENAMED_OPTIONS.get(error.option_name)
            if new is None:
                raise
            raise click.UsageError(
                f"no such option {error.option_name}; it is {new}", error.ctx
            ) from None


@click.group(
    cls=Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND ...",
)
@click.version_option(__version__, prog_name="flopwatch")
def cli() -> None:
    """A stopwatch for training FLOPs.

    \b
    flopwatch run activations --quick
    flopwatch show results/activations.jsonl
    flopwatch predict --model 7b --seq-len 2048 --micro-batch 4 --hardware 8xH100-SXM
    """


cli.add_section("Measure", measure.run, measure.profile)
cli.add_section("Look", look.show, explain.explain, look.plot, look.report, look.query)
cli.add_section("Judge", judge.compare, ab.ab, judge.check)
cli.add_section(
    "Predict", predict.predict, plan.plan, predict.memory, predict.mfu, predict.validate,
    predict.calibrate, models.models,
)  # fmt: skip
cli.add_section("Machine", machine.doctor, machine.peaks)
cli.add_section("Exchange", exchange.import_files, exchange.export, exchange.schema)


REPLACEMENTS = {
    "±": "+/-", "×": "x", "−": "-", "µ": "u", "→": "->", "≥": ">=", "≤": "<=", "…": "...", "–": "-",
}  # fmt: skip
"""Of characters that a terminal's encoding lacks; any other becomes a question mark."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Why stdout cannot be written; our own files have sentences of their own."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit code."""
    open_streams()
    run = partial(cli.main, args=arguments, prog_name="flopwatch", standalone_mode=False)
    code = flush_streams(run_command(run))
    if has_endless_query():
        os._exit(code)  # Python would clean up what is still in use
    sys.exit(code)


def open_streams() -> None:
    """Make stdin, stdout and stderr fit for use, whatever we were started with: a closed one leads
    nowhere, or else the next file to be opened, perhaps the results, would get what is printed; and
    what an encoding lacks is replaced."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    codecs.register_error("flopwatch", replace_character)
    sys.stdin = sys.stdin or open(0, closefd=False)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="flopwatch")


def replace_character(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join(REPLACEMENTS.get(each, "?") for each in characters), error.end


def flush_streams(code: int) -> int:
    """The exit code, which is 2 where something could not be printed. Python would try once more
    at its end, and print a traceback."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            if code in (0, 1):  # else it was said, or nobody listens
                complain(f"output cannot be written ({error.strerror}); write it elsewhere")
                code = 2
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def has_endless_query() -> bool:
    query = sys.modules.get("flopwatch.records.query")
    return query is not None and query.is_running()


def run_command(command: Callable[[], Any]) -> int:
    """Its exit code; what went wrong is said in a sentence."""
    code = 2
    try:
        command()
        code = 0
    except FlopwatchError as error:
        complain(str(error))  # it may repeat what a file says
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted")
        code = 130
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        code = 141  # as if by SIGPIPE
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        complain(f"output cannot be written ({error.strerror}); write it elsewhere")
    except SystemExit as end:
        code = int(end.code or 0)
    return code


def complain(sentence: str) -> None:
    with suppress(OSError):  # there may be nowhere to say it
        options.print_remark(f"flopwatch: {sentence}")
