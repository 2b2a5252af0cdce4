"""How ``--help`` is laid out: what a command does, examples that run, and options in sections."""

from __future__ import annotations

import inspect

import click

SECTIONS = {
    "Training job": (
        "--model", "--seq-len", "--micro-batch", "--grad-accum", "--global-batch",
        "--global-batch-tokens", "--precision", "--optimizer", "--sharding", "--recompute",
        "--attention", "--compile", "--tp", "--pp", "--cp", "--ep", "--hardware",
    ),
    "What to measure": (
        "--filter", "--set", "--baseline", "--grid", "--quick", "--dry-run", "--rerun", "--force",
        "--suite", "--build", "--path", "--dtype", "--ranks", "--steps",
    ),
    "Time and precision": (
        "--budget", "--case-budget", "--target-interval", "--timeout", "--seed",
    ),
    "Machine": ("--device", "--threads", "--cache", "--allocator", "--memory-limit"),
    "Cluster": (
        "--launcher", "--nodes", "--ranks-per-node", "--partition", "--account", "--time", "--qos",
        "--constraint", "--slurm-arg", "--max-jobs", "--groups-per-job", "--queue-limit",
    ),
    "Verdicts": (
        "--threshold", "--fail-if-slower", "--allow-unclear", "--despite", "--relative",
        "--absolute",
    ),
    "Output": (
        "--verbose", "--quiet", "--columns", "--where", "--sort", "--pivot", "--layout", "--format",
        "--most", "--top", "--json", "--out", "--folder", "--trace", "--skip-corrupt",
    ),
}  # fmt: skip
"""Of options that several commands have, or that belong together; the others come first."""
REST = "Options"
FEW = 9
"""Options that need no sections."""


class Command(click.Command):
    """With examples and sections in its help."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_help_text(self.help or "", formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        by_section: dict[str, list[tuple[str, str]]] = {title: [] for title in (REST, *SECTIONS)}
        for option in options:
            line = option.get_help_record(ctx)
            if line is not None:
                by_section[REST if len(options) <= FEW else find_section(option)].append(line)
        for title, lines in by_section.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def find_section(option: click.Option) -> str:
    name = option.opts[-1]
    return next((title for title, names in SECTIONS.items() if name in names), REST)


def write_help_text(text: str, formatter: click.HelpFormatter) -> None:
    """What it does, and then the lines behind the mark, which are examples."""
    meaning, _, examples = inspect.cleandoc(text).partition("\b\n")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(meaning.rstrip())
    if examples:
        with formatter.section("Examples"):
            for line in examples.rstrip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
