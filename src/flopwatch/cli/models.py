"""The models that have names."""

from __future__ import annotations

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.errors import UsageError


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@options.as_json
def models(words: tuple[str, ...], as_json: bool) -> None:
    """List the models that --model knows by name.

    WORDs choose those that have them in their name or family. --model takes many spellings of a
    name, the path of a config.json of Hugging Face, and architectures with their dimensions, too.

    \b
    flopwatch models
    flopwatch models llama 3
    flopwatch models deepseek --json
    flopwatch mfu --model meta-llama/Meta-Llama-3-8B --seq-len 8192 --tokens-per-s 9000
    flopwatch mfu --model my/config.json --seq-len 8192 --tokens-per-s 9000
    flopwatch mfu --model llama-3-8b:layers=16:window=4096 --seq-len 8192 --tokens-per-s 9000
    """
    from flopwatch.output.model_tables import list_model_sheets, list_models, models_as_dict

    found = list_models(words)
    if not found:
        raise UsageError(
            f"no model has {' '.join(words)!r} in its name; `flopwatch models` lists all of them"
        )
    options.print_found(as_json, models_as_dict(found), list_model_sheets(found))
