"""The command line. Its commands are in `commands`; they and `output.console` are all that prints.

Results go to stdout, everything else to stderr. Exit codes: 0 fine, 1 some cases failed, 2 usage,
130 interrupted. Imports happen inside the commands, so that `flopwatch --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from flopwatch import __version__
from flopwatch.cli import (
    accounting,
    explain,
    import_export,
    judge,
    machine,
    measure,
    predict,
    results,
    scores,
)
from flopwatch.errors import FlopwatchError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="flopwatch")
def cli() -> None:
    """A stopwatch for training FLOPs.

    \b
    flopwatch list                       the built-in suites
    flopwatch run activations --quick    measure one, table on stdout, records in results/
    flopwatch show results/activations.jsonl
    flopwatch plot results/activations.jsonl -o activations.png
    flopwatch compare OLD NEW            what became faster or slower, and which part of it
    flopwatch check results/*.jsonl      what to doubt about them
    flopwatch report FILES -o PAGE       all of it, as one HTML page
    flopwatch explain FILE               where the measured time goes
    flopwatch init my_suite.py           a suite of your own: a template that runs
    flopwatch run my_suite.py
    flopwatch profile small              where the time of a training step goes
    flopwatch memory small               what it needs, and what fits
    flopwatch run training --quick       a training job on two ranks, shared in three ways
    flopwatch mfu --formula              what MFU and HFU count, in eight conventions
    flopwatch peaks                      what this machine can do at best
    flopwatch predict --help             how fast a job will be, on hardware one does not have
    flopwatch plan --help                the fastest way to train a model on given hardware
    flopwatch import bench.json -o F     what pyperf or google-benchmark measured
    flopwatch published dyad             what others have published, as records
    flopwatch doctor                     is it fit for measuring?
    """


COMMANDS = (
    measure.list_suites, measure.init, measure.run,
    results.show, results.table, results.warmup, results.query, results.report,
    results.plot,
    judge.compare, explain.explain,
    judge.check, judge.break_even,
    accounting.profile, accounting.memory, accounting.precision,
    accounting.mfu,
    predict.predict, predict.plan, scores.calibrate, scores.scorecard, scores.validate,
    import_export.published,
    import_export.import_files, import_export.export,
    machine.doctor, machine.devices, machine.peaks,
)  # fmt: skip
for command in COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit code."""
    sys.exit(_run_command(lambda: cli.main(args=arguments, standalone_mode=False)))


def _run_command(command: Callable[[], Any]) -> int:
    try:
        command()
    except FlopwatchError as error:
        from flopwatch.cli.options import tell

        tell(f"flopwatch: {error}")  # it may repeat what a file says
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
