"""Options that commands share.

Texts that may hold something from a record, on their way to a terminal: without escapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from flopwatch.output.units import printable, printable_lines

Command = TypeVar("Command", bound=Callable[..., Any])


def read_duration(
    context: click.Context, option: click.Parameter, value: str | None
) -> float | None:
    from flopwatch.runner.schedule import parse_duration

    return None if value is None else parse_duration(value)


def read_size(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    from flopwatch.runner.schedule import parse_bytes

    return None if value is None else parse_bytes(value)


def read_percentage(
    context: click.Context, option: click.Parameter, value: str | None
) -> float | None:
    from flopwatch.runner.schedule import parse_percentage

    return None if value is None else parse_percentage(value)


as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")
skip_corrupt = click.option("--skip-corrupt", is_flag=True, help="Go on without unreadable lines.")
device = click.option("--device", type=click.Choice(["cpu", "cuda"]),
                      help="[default: cuda where torch finds one]")  # fmt: skip
threads = click.option("--threads", type=click.IntRange(min=1), metavar="N",
                       help="[default: usable cores]")  # fmt: skip

# Written out: to read them from `jobs.variants` would make every `--help` load the layers.
PRECISIONS = ["fp32", "bf16-mixed", "fp16-mixed", "bf16"]
OPTIMIZERS = ["adamw", "adamw-unfused", "sgd"]

STEP = [
    click.option("--batch", type=click.IntRange(min=1), default=4, show_default=True,
                 help="Texts in a step."),
    click.option("--context", type=click.IntRange(min=2), default=128, show_default=True,
                 help="Tokens of a text."),
    click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", show_default=True),
    click.option("--attention", type=click.Choice(["sdpa", "plain"]), default="sdpa",
                 show_default=True,
                 help="sdpa: torch's fused one. plain: products and softmax apart, with all scores "
                      "kept."),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True),
    click.option("--checkpointing", "checkpointed", is_flag=True,
                 help="Blocks are computed again in the backward pass."),
]  # fmt: skip


def step_options(command: Command) -> Command:
    """What a training step is computed with."""
    for option in reversed(STEP):
        command = option(command)
    return command


def say(text: str) -> None:
    """An answer, in lines, to stdout. JSON and CSV have ways of their own to be safe."""
    click.echo(printable_lines(text))


def tell(sentence: str) -> None:
    """What else there is to know, to stderr."""
    click.echo(printable(sentence), err=True)
