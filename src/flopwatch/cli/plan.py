"""Plan: the fastest way to train a model, on which hardware, and on how much of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flopwatch.cli import options
from flopwatch.cli.job_options import (
    PARALLELISM,
    SPLIT,
    JobCommand,
    job_options,
    require,
)
from flopwatch.cli.options import Word, print_found, print_json, read_amount
from flopwatch.cli.out_files import check_out, write_out
from flopwatch.cli.predict import (
    AMOUNT,
    HERE,
    find_batch_tokens,
    network,
    refuse_network_here,
    refuse_two_batches,
    stack,
)
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.jobs.training_job import TrainingJob
    from flopwatch.prediction.plan_hardware import Price
    from flopwatch.prediction.plans import Plan

USUAL_BATCH_TOKENS = 4e6
FOOTER = "Predictions, with the intervals that jobs which the cost model had not seen justify."


def read_tokens(option: str, word: str) -> dict[str, float]:
    """A number of tokens, or as in 20x how many for each parameter."""
    if word[-1:].lower() == "x":
        return {"tokens_per_parameter": read_amount(option, word[:-1])}
    return {"train_tokens": read_amount(option, word)}


class NamedPrice(NamedTuple):
    device: str
    """Empty: of any."""
    price: float


def read_price(option: str, word: str) -> NamedPrice:
    device, _, price = word.rpartition("=")
    return NamedPrice(device.strip(), read_amount(option, price))


def list_frameworks() -> list[str]:
    from flopwatch.output.frameworks import FRAMEWORKS

    return list(FRAMEWORKS)


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--hardware", "--global-batch", "--global-batch-tokens", "--precision",
    "--optimizer", *PARALLELISM, many=["--model", "--hardware"],
    precision="bf16-mixed", optimizer="adamw",
)  # fmt: skip
@stack
@network
@click.option("--tokens", "budget", type=Word(read_tokens), metavar="N",
              help="Tokens to train on, as in 300B, or for each parameter, as in 20x.  "
                   "[default: 20x]")  # fmt: skip
@click.option("--days", type=AMOUNT, metavar="N",
              help="Find how many devices train that in so many days; a number in --hardware is "
                   "then the most that there are.")  # fmt: skip
@click.option("--price", "prices", type=Word(read_price, many=True), metavar="P[,...]",
              help="Price of a device per hour, to compute the cost of the training; of several "
                   "kinds as in h100=2.1,b200=3.9.")  # fmt: skip
@click.option("--show", "shown", type=click.IntRange(1, 100), default=5, show_default=True,
              help="Number of configurations to show.")  # fmt: skip
@click.option("--emit", "framework", metavar="[megatron|torchtitan|nanotron]",
              type=Word(list_known=list_frameworks),
              help="Print the best configuration that a framework can run, for that framework, and "
                   "nothing else.")  # fmt: skip
@options.out("Of several plans: a page (.html) or a plot of days over cost (.png, .svg, .pdf, "
             ".json).")  # fmt: skip
@options.quiet
@options.as_json
@click.pass_context
def plan(context: click.Context, /, **given: Any) -> None:
    """Find the fastest way to train a model, and the hardware for it.

    Searches tensor, pipeline, context, expert and data parallelism, sharding, recomputation and
    micro-batch among what fits into memory; --tp, --pp, --cp and --ep keep that as given.
    The global batch is 4M tokens if neither --global-batch nor --global-batch-tokens is given.
    It may differ by 5 % from that, so that more micro-batches divide it: 4M becomes 2**22 where
    4,000,000 is no whole number of sequences on each device.

    Several models, or several kinds of hardware, are compared: which is fastest, which is cheapest,
    and which are neither. With --days, the fewest devices that are in time are found.

    \b
    flopwatch plan --model 13b --hardware 64xA100-80GB --seq-len 4096 --global-batch-tokens 4M
    flopwatch plan --model 7b --hardware 8xH100-SXM --seq-len 2048 --tokens 140B --price 2.5
    flopwatch plan --model llama-3-70b --hardware 512xH100-SXM,256xB200,512xMI300X \\
        --seq-len 8192 --price h100=2.1,b200=3.9,mi300x=1.9 -o pareto.png
    flopwatch plan --model llama-3-70b --hardware H100-SXM,B200 --seq-len 8192 --days 30
    flopwatch plan --model llama-3-70b --hardware 512xH100-SXM --seq-len 8192 --emit torchtitan
    """
    require(given, "--model", "--seq-len", "--hardware")
    refuse_two_batches(context)
    refuse_network_here(given)
    options.refuse_two_lengths(context)
    count = len(given["model"]) * len(given["hardware"])
    _refuse_idle(context, given, count)
    asked: dict[str, Any] = {
        "global_batch_tokens": find_batch_tokens(given) or USUAL_BATCH_TOKENS,
        "price": _join_prices(given["prices"]),
        "stack": given["stack"],
        "network_gbit": given["network_gbit"],
        **(given["budget"] or {}),
    }
    if given["out"] is not None:
        check_out(given["out"])
    if given["days"] is not None:
        _plan_deadlines(given, asked)
    elif count > 1:
        _compare(given, asked)
    else:
        _plan_one(given, asked)


def _refuse_idle(context: click.Context, given: dict[str, Any], count: int) -> None:
    if given["framework"] and count > 1:
        raise click.UsageError("--emit is for one model on one kind of hardware", context)
    if given["framework"] and (given["quiet"] or given["out"]):
        raise click.UsageError("--emit prints a configuration alone; leave -q and -o out")
    if given["out"] and len(given["hardware"]) == 1 and given["days"] is None:
        raise click.UsageError(
            "-o draws days over cost of several plans; give several --hardware, or --days", context
        )
    if given["days"] and HERE in given["hardware"]:
        raise click.UsageError(
            f"--days counts devices of a kind, and --hardware {HERE} is one machine", context
        )
    if (count > 1 or given["days"]) and "shown" in options.list_given(context):
        raise click.UsageError("--show is for one model on one hardware; leave it out", context)


def _join_prices(prices: list[NamedPrice] | None) -> Price:
    named = {each.device: each.price for each in prices or []}
    if "" in named and len(prices or []) > 1:
        raise click.UsageError("--price is one number, or has a device for each, as in h100=2.1")
    return named.get("") or named or None


def _list_jobs(given: dict[str, Any]) -> list[TrainingJob]:
    from flopwatch.jobs.training_job import TrainingJob

    fields = ("seq_len", "precision", "optimizer")
    return [
        TrainingJob(model, **{name: given[name] for name in fields}) for model in given["model"]
    ]


def _divide(given: dict[str, Any], job: TrainingJob) -> TrainingJob:
    """As told, on no more ranks than that takes."""
    from flopwatch.prediction.plan_limits import divide_job

    split = {field: given[name] or 1 for name, field in SPLIT.items()}
    together = split["tensor"] * split["pipeline"] * split["context"] * split["expert"]
    return divide_job(job, together, **split)


def _plan_one(given: dict[str, Any], asked: dict[str, Any]) -> None:
    from flopwatch import api
    from flopwatch.output.job_answers import answer_plan
    from flopwatch.output.plan_tables import list_plan_sheets

    (job,), (hardware,) = _list_jobs(given), given["hardware"]
    found = api.plan(_divide(given, job), hardware, shown=given["shown"], **asked)
    if given["framework"]:
        _emit(found, given["framework"], given["as_json"])
        return
    print_found(
        given["as_json"],
        found.to_dict() if given["as_json"] else None,
        [] if given["as_json"] or given["quiet"] else list_plan_sheets(found),
        answer_plan(found),
        quiet=given["quiet"],
    )


def _emit(plan: Plan, framework: str, as_json: bool) -> None:
    """The configuration to stdout; what is to be known of it to stderr."""
    from flopwatch.output.frameworks import find_emitted

    emitted = find_emitted(plan, framework)
    if as_json:
        print_json({**plan.to_dict(), "emitted": emitted.to_dict()})
        return
    click.echo(emitted.text, nl=False)
    for remark in emitted.remarks:
        options.say(remark)


def _compare(given: dict[str, Any], asked: dict[str, Any]) -> None:
    from flopwatch import api
    from flopwatch.output.job_answers import answer_plan_comparison
    from flopwatch.output.plan_tables import list_comparison_sheets
    from flopwatch.output.plots.plan_plot import make_comparison_plots

    jobs = [_divide(given, job) for job in _list_jobs(given)]
    found = api.compare_plans(jobs, given["hardware"], **asked)
    answer, sheets = answer_plan_comparison(found), list_comparison_sheets(found)
    print_found(given["as_json"], found.to_dict(), sheets, answer, quiet=given["quiet"])
    if given["out"] is not None:
        plots = make_comparison_plots(found)
        write_out(given["out"], "flopwatch plan", answer, sheets, plots, FOOTER)


def _plan_deadlines(given: dict[str, Any], asked: dict[str, Any]) -> None:
    from flopwatch import api
    from flopwatch.output.job_answers import answer_deadlines
    from flopwatch.output.plan_tables import list_deadline_sheets
    from flopwatch.output.plots.plan_plot import make_deadline_plots

    jobs = [_divide(given, job) for job in _list_jobs(given)]
    found = api.plan_deadlines(jobs, given["hardware"], days=given["days"], **asked)
    if given["framework"]:
        (deadline,) = found.found
        if deadline.reason:
            raise UsageError(deadline.reason)
        _emit(deadline.closest, given["framework"], given["as_json"])
        return
    answer, sheets = answer_deadlines(found), list_deadline_sheets(found)
    print_found(given["as_json"], found.to_dict(), sheets, answer, quiet=given["quiet"])
    if given["out"] is not None:
        plots = make_deadline_plots(found)
        write_out(given["out"], "flopwatch plan", answer, sheets, plots, FOOTER)
