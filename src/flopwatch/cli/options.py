"""The options that commands share. Each is defined once, here, so that it has one name and one
meaning in all commands; and what commands share besides: reading results, printing safely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.output.tables import Sheet
    from flopwatch.records.record import Record

    Type = click.ParamType[Any]
else:
    Type = click.ParamType  # not generic before click 8.4

Decorator = Callable[[Any], Any]

SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MOST_SHOWN = 40
"""Characters of what an error is about."""


# What a word of an option means, and what can stand there.


def read_count(option: str, word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word[:12]) <= 10**9:
        raise UsageError(
            f"{option} {word[:MOST_SHOWN]!r} is not a whole number from 1 to 1e9; write for "
            f"example {option} 4"
        )
    return int(word)


def read_amount(option: str, word: str) -> float:
    """A number that may end in K, M, B or T."""
    factor = SUFFIXES.get(word[-1:].upper(), 1.0)
    try:
        amount = float(word[:-1] if factor > 1 else word) * factor
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e18:
        raise UsageError(
            f"{option} {word[:MOST_SHOWN]!r} is not a number above 0; write for example 4M, 300B "
            "or 2.5"
        )
    return amount


def read_word(option: str, word: str) -> str:
    return word


def read_duration(option: str, word: str) -> float:
    from flopwatch.output.units import parse_duration

    return parse_duration(word)


def read_size(option: str, word: str) -> int:
    from flopwatch.output.units import parse_bytes

    return parse_bytes(word)


def read_percentage(option: str, word: str) -> float:
    from flopwatch.output.units import parse_percentage

    return parse_percentage(word)


def choose_from(*known: str) -> Callable[[str, str], str]:
    def read(option: str, word: str) -> str:
        if word not in known:
            raise UsageError(
                f"{option} {word[:MOST_SHOWN]!r} is not known; choose from {', '.join(known)}"
            )
        return word

    return read


def list_devices() -> Iterable[str]:
    from flopwatch.devices.device_names import list_devices

    return [device.name for device in list_devices()]


def list_device_kinds() -> Iterable[str]:
    from flopwatch.devices.kinds import KINDS

    return KINDS


def list_suites() -> Iterable[str]:
    from flopwatch.suites.catalog import list_names

    return list_names()


def list_plots() -> Iterable[str]:
    from flopwatch.output.plots.plot_catalog import KINDS

    return list(KINDS)


def list_stacks() -> Iterable[str]:
    from flopwatch.prediction.software_stacks import load_stacks

    return list(load_stacks())


def list_publications() -> Iterable[str]:
    from flopwatch.records.published import PUBLICATIONS
    from flopwatch.records.store import PUBLISHED

    return [f"{PUBLISHED}{name}" for name in PUBLICATIONS]


def list_schemas() -> Iterable[str]:
    from flopwatch.output.json_schemas import OUTPUTS

    return list(OUTPUTS)


def list_columns() -> Iterable[str]:
    """Those of all results; axes, phases and facts are known to `--columns help`."""
    from flopwatch.output.columns import list_columns

    return list_columns([])


class Word(Type):
    """A value, or several separated by commas, with completion of the last one."""

    name = "value"

    def __init__(
        self,
        read: Callable[[str, str], Any] = read_word,
        list_known: Callable[[], Iterable[str]] = tuple,
        *,
        many: bool = False,
    ) -> None:
        self.read, self.list_known, self.many = read, list_known, many

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        option = param.opts[0] if param is not None else ""
        if not self.many and "," in value:
            raise UsageError(f"{option} takes one value here, and got {value[:MOST_SHOWN]!r}")
        if not self.many:
            return self.read(option, value)
        words = [word for word in map(str.strip, value.split(",")) if word]
        if not words:
            raise UsageError(f"{option} {value!r} names nothing; give a value, or leave it out")
        return [self.read(option, word) for word in words]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        return [CompletionItem(f"{before}{comma}{name}") for name in self.list_matches(last)]

    def list_matches(self, begun: str) -> list[str]:
        return [name for name in self.list_known() if name.startswith(begun)]


class ColumnNames(Word):
    """Completed here and read where the columns of the results are known."""

    def __init__(self) -> None:
        super().__init__(list_known=list_columns, many=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


class NameOrFile(Word):
    """Files are completed by the shell, and only where no name is: it cannot list both."""

    least = 0
    """Characters before names are completed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = super().shell_complete(ctx, param, incomplete)
        has_begun = len(incomplete) >= self.least
        return found if found and has_begun else [CompletionItem(incomplete, type="file")]


class Results(NameOrFile):
    least = 3

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Path(value)


def list_given(context: click.Context) -> dict[str, str]:
    """What stands on the command line: options as they are written, by field."""
    return {
        parameter.name: parameter.opts[-1]
        if isinstance(parameter, click.Option)
        else parameter.human_readable_name
        for parameter in context.command.params
        if parameter.name
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }


def refuse_gate_contradictions(context: click.Context) -> None:
    given = set(list_given(context))
    if given >= {"fail_if_slower", "threshold"}:
        raise click.UsageError(
            "--fail-if-slower sets the threshold; leave --threshold out", context
        )
    if "allow_unclear" in given and "fail_if_slower" not in given:
        raise click.UsageError(
            "--allow-unclear says what --fail-if-slower may pass, and has no effect without it; "
            "add --fail-if-slower 3%, or leave --allow-unclear out",
            context,
        )


def refuse_two_lengths(context: click.Context) -> None:
    """-v, -q and tables of one's own say how much is printed: one of them does."""
    lengths = ("verbose", "quiet", "columns", "pivot", "layout", "as_json", "form", "warmup")
    given = {field: option for field, option in list_given(context).items() if field in lengths}
    for field in ("quiet", "verbose"):
        others = [option for other, option in given.items() if other != field]
        if field in given and others:
            raise click.UsageError(
                f"{given[field]} and {others[0]} ask for different things; take one", context
            )


def refuse_idle(context: click.Context, reason: str, *used: str) -> None:
    """Whatever has no effect, for that reason: all that is given but the fields that are used."""
    idle = [option for field, option in list_given(context).items() if field not in used]
    if idle:
        raise click.UsageError(f"{reason}; leave {idle[0]} out", context)


RESULTS = Results(list_known=list_publications)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
verbose = click.option("-v", "--verbose", is_flag=True,
                       help="Print all tables, with all columns and remarks.")  # fmt: skip
quiet = click.option("-q", "--quiet", is_flag=True, help="Print the answer only, without a table.")
columns = click.option("--columns", metavar="A,B,C", type=ColumnNames(),
                       help="Print one table with these columns; `flopwatch show RESULTS --columns "
                            "help` lists them.")  # fmt: skip
skip_corrupt = click.option("--skip-corrupt", is_flag=True, help="Skip unreadable lines.")
where = click.option("--where", metavar="CONDITION",
                     help="Only cases that match an SQL condition over the columns that `flopwatch "
                          "show RESULTS --columns help` lists.")  # fmt: skip
threads = click.option("--threads", type=click.IntRange(min=1), metavar="N",
                       help="Number of threads.  [default: usable cores]")  # fmt: skip
filters = click.option("--filter", "filters", multiple=True, metavar="AXIS=VALUE[,VALUE]",
                       help="Measure only these values; may be repeated. `variant` is an axis too; "
                            "the baseline is always kept.")  # fmt: skip
chosen = click.option("--set", "chosen", multiple=True, metavar="AXIS=VALUE[,VALUE]",
                      help="Use these values instead of the suite's own, where it accepts others; "
                           "may be repeated. With `run` also written --AXIS VALUE[,VALUE], after "
                           "the suite.")  # fmt: skip
threshold = click.option("--threshold", type=Word(read_percentage), metavar="PERCENT",
                         help="Call a difference of at least this much faster or slower.  "
                              "[default: 2%]")  # fmt: skip
fail_if_slower = click.option("--fail-if-slower", type=Word(read_percentage), metavar="PERCENT",
                              help="Set --threshold, and exit with 1 if a case is slower, or fails "
                                   "now; with 4 if one may be, and it is unclear.")  # fmt: skip
allow_unclear = click.option("--allow-unclear", is_flag=True,
                             help="With --fail-if-slower: exit with 0, not 4, where a case is "
                                  "unclear.")  # fmt: skip
results = click.argument("results", nargs=-1, required=True, type=RESULTS, metavar="RESULTS...")
any_results = click.argument("results", nargs=-1, type=RESULTS, metavar="[RESULTS]...")


# Options that every command has its own details of; the first sentence is the same.


def device(detail: str = "[default: the accelerator, if there is one]") -> Decorator:
    help_text = f"The device to use: cpu, cuda, cuda:1, xpu, mps or another of torch's.  {detail}"
    kind = Word(list_known=list_device_kinds)
    return click.option("--device", type=kind, metavar="NAME", help=help_text)


def out(detail: str, *, or_stdout: bool = False, **more: Any) -> Decorator:
    kind = click.Path(path_type=Path, dir_okay=False, allow_dash=or_stdout)
    return click.option("-o", "--out", type=kind, metavar="FILE",
                        help=f"File to write. {detail}", **more)  # fmt: skip


def case_budget(detail: str) -> Decorator:
    return click.option("--case-budget", "case_budget_s", type=Word(read_duration), metavar="TIME",
                        help=f"Time for each case, warm-up included.  {detail}")  # fmt: skip


def memory_limit(detail: str) -> Decorator:
    return click.option("--memory-limit", "memory_limit_bytes", type=Word(read_size),
                        metavar="SIZE",
                        help=f"The memory limit, such as 8G. {detail}")  # fmt: skip


def quick(detail: str) -> Decorator:
    return click.option("--quick", is_flag=True, help=f"Faster, less exact: {detail}")


def only_list(what: str) -> Decorator:
    return click.option("--list", "only_list", is_flag=True, help=f"List and exit: {what}")


def most(what: str) -> Decorator:
    return click.option("--most", type=click.IntRange(min=1), default=12, show_default=True,
                        metavar="N", help=f"Show at most N: {what}")  # fmt: skip


def format_option(choices: Sequence[str], detail: str, **more: Any) -> Decorator:
    help_text = f"The format. {detail}"
    return click.option("--format", "form", type=click.Choice(choices), help=help_text, **more)


def read_records(files: Sequence[Path], skip_corrupt: bool = False) -> list[Record]:
    from flopwatch.records.joined_runs import join_ranks
    from flopwatch.records.store import read

    contents = [read(file, skip_corrupt=skip_corrupt) for file in files]
    for warning in (warning for one in contents for warning in one.warnings):
        print_remark(f"flopwatch: {warning}")
    return join_ranks([record for one in contents for record in one.records])


def print_found(
    as_json: bool,
    content: Any,
    sheets: Sequence[Sheet],
    answer: Sequence[str] = (),
    *,
    quiet: bool = False,
) -> None:
    """As JSON, or as an answer in sentences and its tables; quiet: without those."""
    from flopwatch.output.console import print_sentences, print_sheets

    if as_json:
        print_json(content)
        return
    print_sentences(answer)
    if not quiet:
        print_sentences([""] if answer else [])
        print_sheets(sheets)


def print_json(content: Any, indent: int | None = None) -> None:
    click.echo(json.dumps(content, allow_nan=False, indent=indent))


def print_lines(text: str) -> None:
    """An answer, in lines, to stdout, without escapes that a record may hold. JSON and CSV are
    safe by themselves."""
    from flopwatch.output.units import printable_lines

    click.echo(printable_lines(text))


def say(sentence: str) -> None:
    """What a command has to say while it works, where it is not our answer."""
    print_remark(f"flopwatch: {sentence}")


def print_remark(sentence: str) -> None:
    """A remark, to stderr."""
    from flopwatch.output.units import printable

    click.echo(printable(sentence), err=True)
