"""The comparison of two revisions: its answer in a sentence, and as a Markdown comment."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.verdicts import Comparison, Judgement
from flopwatch.output.compare_tables import (
    count_verdicts,
    describe_judgement,
    make_compare_sheets,
    name_case,
)
from flopwatch.output.formats import escape_markdown, write_markdown
from flopwatch.output.units import format_change, plural
from flopwatch.runner.revision_session import Report

MARKER = "<!-- flopwatch ab -->"
"""By which the comment of an earlier run is found, to be replaced."""
MOST_NAMED = 3


def state_answer(judgement: Judgement) -> str:
    """The answer in one sentence: what is slower, else what is faster, else that nothing is."""
    comparisons = judgement.comparisons
    failed = [f"{plural(len(judgement.broken), 'case')} no longer run"] if judgement.broken else []
    for verdict in ("slower", "faster"):
        found = [one for one in comparisons if one.verdict == verdict]
        if found:
            found.sort(key=lambda one: one.speedup.value, reverse=verdict == "faster")
            cases = plural(len(comparisons), "case")
            what = f"{len(found)} of {cases} {verdict}: {_name_some(found)}"
            return "; ".join([*failed, what])
    unclear = [one for one in comparisons if one.verdict == "unclear"]
    if unclear:
        count = plural(len(comparisons), "case")
        return "; ".join([*failed, f"unclear in {len(unclear)} of {count}: {_name_some(unclear)}"])
    threshold = f"{100 * judgement.threshold:g} %"
    same = f"no difference of {threshold} or more ({count_verdicts(comparisons)})"
    return "; ".join([*failed, same]) if comparisons or not failed else failed[0]


def _name_some(found: Sequence[Comparison]) -> str:
    named = [
        f"{name_case(one.new)} {format_change(one.speedup.inverse())}" for one in found[:MOST_NAMED]
    ]
    more = [f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return ", ".join([*named, *more])


def is_comment(content: bytes) -> bool:
    return content.startswith(MARKER.encode())


def title_revisions(report: Report) -> str:
    return f"{report.head.label} against {report.base.label}"


def write_comment(report: Report) -> str:
    """Markdown for a pull request: the answer, the table, and folded below what explains it."""
    judgement = report.judgement
    details = [
        f"- {escape_markdown(line)}"
        for line in [
            *describe_judgement(judgement, is_between_runs=True),
            f"both revisions were measured in turns, in {_count_visits(report)}",
        ]
    ]
    remarks = [f"> {escape_markdown(remark)}\n" for remark in report.remarks]
    return "\n".join(
        [
            MARKER,
            f"### flopwatch: {escape_markdown(state_answer(judgement))}",
            "",
            escape_markdown(title_revisions(report)),
            "",
            *remarks,
            write_markdown(make_compare_sheets(judgement, is_between_runs=True)),
            "<details><summary>How it was measured</summary>",
            "",
            *details,
            "",
            "</details>",
            "",
        ]
    )


def _count_visits(report: Report) -> str:
    visits = sorted(report.visits.values())
    if not visits:
        return "no visit"
    least, most = visits[0], visits[-1]
    number = plural(most, "pair") if least == most else f"{least} to {most} pairs"
    return f"{number} of processes for each group of cases"
