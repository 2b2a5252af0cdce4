"""Models: where their time goes, what they need, and in what precision they compute."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from flopwatch.commands import options

if TYPE_CHECKING:
    from flopwatch.settings import Device


@click.command()
@click.argument("model")
@options.step_options
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True,
              help="With the profiler, and as many without.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many of the slowest operations to list.")  # fmt: skip
@click.option("--trace", metavar="FILE",
              help="Write the timeline of the last step, for ui.perfetto.dev.")  # fmt: skip
@click.option("--nvtx", is_flag=True,
              help="Mark NVTX ranges for another profiler instead; implied by nsys.")  # fmt: skip
@options.device
@options.threads
@options.as_json
def profile(device: Device | None, threads: int | None, as_json: bool, **given: Any) -> None:
    """Say where the time of a training step of MODEL goes, by region and by kind of operation.

    \b
    flopwatch profile small
    flopwatch profile small --attention plain --context 512 --trace small.json
    flopwatch profile opt-125m --checkpointing --top 20
    flopwatch profile qwen2:hidden_size=256:layers=4 --json
    """
    from dataclasses import asdict

    import msgspec

    from flopwatch.explain.request import Profile, make_request
    from flopwatch.report.console import print_sheets
    from flopwatch.report.profile import as_dict, list_sentences, list_sheets
    from flopwatch.session import call

    request = make_request(**given)
    click.echo(f"{request.steps} steps of {request.model} with the profiler, in turns with as many "
               "without", err=True)  # fmt: skip
    content = call("flopwatch.explain.profile:profile", {"request": asdict(request)},
                   device=device, threads=threads)  # fmt: skip
    found = msgspec.convert(content, Profile)
    if as_json:
        click.echo(json.dumps(as_dict(found)))
    else:
        print_sheets(list_sheets(found))
        click.echo("\n".join(["", *list_sentences(found)]))
    if request.trace:
        click.echo(f"wrote {request.trace}; open it in https://ui.perfetto.dev", err=True)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.step_options
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Where it would run; it need not be here.")  # fmt: skip
@click.option("--fit", callback=options.read_size, metavar="SIZE",
              help="The memory that it must fit into, e.g. 24G.  [default: 90 % of what is free]"
              )  # fmt: skip
@click.option("--largest", type=click.Choice(["batch", "context"]),
              help="Print only the largest that fits; 0: none does.")  # fmt: skip
@options.as_json
def memory(
    models: tuple[str, ...], fit: int | None, largest: Any, as_json: bool, **given: Any
) -> None:
    """Foretell what training a MODEL needs in memory, and what would fit. Nothing is run.

    \b
    flopwatch memory small
    flopwatch memory large --context 1024 --attention plain --fit 24G
    flopwatch memory small medium large xl 2.7B
    flopwatch memory xl --checkpointing --device cuda --fit 80G --largest batch
    flopwatch memory qwen2:hidden_size=896:layers=24:heads=14 --precision bf16-autocast
    """
    from flopwatch.explain.capacity import ask, find_room_bytes
    from flopwatch.models.footprint import Plan
    from flopwatch.report.console import print_sheets
    from flopwatch.report.memory import as_dict, list_largest, list_sentences, list_sheets

    if as_json and largest is not None:
        raise click.UsageError("--largest prints a number by itself, and --json has both; take one")
    plan = Plan(**given)
    answers = ask(models, plan, find_room_bytes(fit, plan))
    if as_json:
        click.echo(json.dumps([as_dict(answer) for answer in answers]))
    elif largest is not None:
        click.echo("\n".join(list_largest(answers, largest)))
    else:
        print_sheets(list_sheets(answers))
        for sentence in list_sentences(answers):
            click.echo(sentence)


@click.command()
@options.device
@options.as_json
def precision(device: Device | None, as_json: bool) -> None:
    """Show what short numbers do to a sum, and what autocast makes of a small model.

    \b
    flopwatch precision
    flopwatch precision --device cpu --json
    """
    import msgspec

    from flopwatch.explain.precision import Observed
    from flopwatch.report.console import print_table
    from flopwatch.report.precision import lay_out
    from flopwatch.session import call

    content = call("flopwatch.explain.precision:observe", {}, device=device)
    if as_json:
        click.echo(json.dumps(content))
        return
    for table in lay_out(msgspec.convert(content, Observed)):
        click.echo(table.title)
        print_table(table.columns, table.rows)
        for remark in table.remarks:
            click.echo(remark)
