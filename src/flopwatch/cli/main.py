"""The command line: a file a section, a function a command, which parses, calls and prints.

Results go to stdout, everything else to stderr. Exit codes: 0 fine, 1 some cases failed, 2 usage,
130 interrupted. Imports happen inside the commands, so that `flopwatch --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import click

from flopwatch import __version__
from flopwatch.cli import exchange, judge, look, machine, measure, options, predict
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
cli.add_section("Look", look.show, look.explain, look.plot, look.report, look.query)
cli.add_section("Judge", judge.compare, judge.check)
cli.add_section(
    "Predict", predict.predict, predict.plan, predict.memory, predict.mfu, predict.validate,
    predict.calibrate,
)  # fmt: skip
cli.add_section("Machine", machine.doctor, machine.peaks)
cli.add_section("Exchange", exchange.import_files, exchange.export)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit code."""
    run = partial(cli.main, args=arguments, prog_name="flopwatch", standalone_mode=False)
    sys.exit(run_command(run))


def run_command(command: Callable[[], Any]) -> int:
    try:
        command()
    except FlopwatchError as error:
        options.print_remark(f"flopwatch: {error}")  # it may repeat what a file says
        return 2
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("flopwatch: interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough; Python would complain once more
        # when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as if by SIGPIPE
    return 0
