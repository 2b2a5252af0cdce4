"""Judge two revisions of a project: measured in turns, on the spot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.judge import NOTHING, decide_gate
from flopwatch.cli.options import print_json, print_lines, print_remark

if TYPE_CHECKING:
    from flopwatch.runner.revision_session import Options, Report

FOLDER = Path("results/ab")


@click.command(cls=Command)
@click.argument("base")
@click.argument("head", required=False)
@click.option("--suite", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              required=True,
              help="The suite file of the project to measure, such as benchmarks/suite.py."
              )  # fmt: skip
@click.option("--build", metavar="COMMAND",
              help="Run this shell command in the folder of each revision first, to compile."
              )  # fmt: skip
@click.option("--path", "paths", multiple=True, metavar="FOLDER",
              help="Import from this folder of the revision; may be repeated.  [default: src, if "
                   "there is one, and the revision's own folder]")  # fmt: skip
@options.filters
@options.chosen
@options.quick("fewer cases.")
@options.threshold
@options.fail_if_slower
@options.allow_unclear
@options.case_budget("[default: 30s, and at least 4 pairs of processes]")
@options.out("A Markdown comment for a pull request; an earlier one is replaced.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Where base.jsonl and head.jsonl go.  [default: results/ab/RUN]")  # fmt: skip
@options.device()
@options.threads
@options.memory_limit("For each worker.  [default: 45 % of what is free]")
@options.as_json
@click.pass_context
def ab(context: click.Context, /, out: Path | None, as_json: bool, **given: Any) -> None:
    """Compare two git revisions, measured in turns.

    Both revisions are checked out into temporary folders and measured by the suite's file: round by
    round in turns, in pairs of processes, until every verdict is clear. Load of the machine hits
    both alike. Without HEAD, the work tree is compared with BASE, with what is not committed yet.

    Exit codes: 0 fine, 1 something is slower (with --fail-if-slower), 2 usage, 3 nothing was
    comparable, 4 nothing is slower for certain, but a case is unclear (with --fail-if-slower).

    \b
    flopwatch ab main --suite benchmarks/suite.py
    flopwatch ab v1.2 v1.3 --suite benchmarks/suite.py --quick
    flopwatch ab origin/main HEAD --suite benchmarks/suite.py --fail-if-slower 2%
    flopwatch ab main --suite bench.py --build "python setup.py build_ext --inplace"
    """
    from flopwatch.output.console import open_stderr
    from flopwatch.output.progress import make_watcher
    from flopwatch.output.revision_comment import is_comment, write_comment
    from flopwatch.records.file_safety import replace_file, require_replaceable
    from flopwatch.runner import revision_session

    options.refuse_gate_contradictions(context)
    if out is not None:
        require_replaceable(out, is_comment, "a comment of flopwatch")
    allow_unclear, is_gate = given.pop("allow_unclear"), given["fail_if_slower"] is not None
    with make_watcher(open_stderr()) as watcher:
        report = revision_session.run(_make_options(**given), watcher)
    _print(report, as_json)
    if out is not None:
        replace_file(out, write_comment(report).encode())
    print_remark(f"records: {report.folder}/base.jsonl and head.jsonl")
    if report.interrupted:
        sys.exit(130)
    if not report.judgement.comparisons and not report.judgement.broken:
        print_remark("flopwatch: nothing was comparable: no case was measured on both sides")
        sys.exit(NOTHING)
    sys.exit(decide_gate(report.judgement, allow_unclear=allow_unclear) if is_gate else 0)


def _make_options(
    *,
    folder: Path | None,
    threshold: float | None,
    fail_if_slower: float | None,
    case_budget_s: float | None,
    **given: Any,
) -> Options:
    from flopwatch.analysis.statistics import THRESHOLD
    from flopwatch.runner.group_runner import new_run_id
    from flopwatch.runner.revision_session import CASE_BUDGET_S, Options
    from flopwatch.settings import Settings

    return Options(
        repository=Path.cwd(),
        settings=Settings(),
        out=folder or FOLDER / new_run_id(),
        threshold=fail_if_slower or threshold or THRESHOLD,
        case_budget_s=case_budget_s or CASE_BUDGET_S,
        **given,
    )


def _print(report: Report, as_json: bool) -> None:
    from flopwatch.output.compare_json import as_dict
    from flopwatch.output.compare_tables import describe_judgement, make_compare_sheets
    from flopwatch.output.console import print_remarks, print_sheets
    from flopwatch.output.revision_comment import state_answer, title_revisions

    judgement = report.judgement
    if as_json:
        revisions = {"base": report.base.commit, "head": report.head.commit}
        print_json({**revisions, "remarks": list(report.remarks), **as_dict(judgement)})
        return
    print_lines(f"{title_revisions(report)}: {state_answer(judgement)}")
    print_remarks(report.remarks)
    print_sheets(make_compare_sheets(judgement, is_between_runs=True))
    print_remarks(describe_judgement(judgement, is_between_runs=True))
