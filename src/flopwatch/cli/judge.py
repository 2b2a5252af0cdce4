"""Judge results: comparisons of variants and of runs, break-even points, warnings."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.options import print_json, print_lines, print_remark, read_records
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.analysis.monitored_changes import RunChange
    from flopwatch.analysis.verdicts import Basis, Comparison, Judgement
    from flopwatch.records.record import Record

REGRESSION, NOTHING, UNDECIDED = 1, 3, 4
"""Exit codes."""

OF_TWO = {"relative", "absolute"}
OF_GATE = {"despite", "allow_unclear"}


@click.command(cls=Command)
@options.results
@click.option("--with", "published", metavar="published:NAME",
              type=options.Word(list_known=options.list_publications),
              help="Compare with published results, as ratios; `flopwatch show published` lists "
                   "them.")  # fmt: skip
@options.threshold
@options.fail_if_slower
@options.allow_unclear
@click.option("--break-even", is_flag=True,
              help="Find where variants start to beat their baseline along an axis, such as "
                   "tokens.")  # fmt: skip
@click.option("--axis", metavar="AXIS",
              help="With --break-even: the axis, such as tokens or batch_size.  [default: the only "
                   "one that has several values]")  # fmt: skip
@click.option("--variant", "variants", multiple=True, metavar="NAME",
              help="With --break-even: only this variant; may be repeated.")  # fmt: skip
@click.option("--despite", multiple=True, metavar="FIELD",
              help="With --fail-if-slower: also count cases that differ in this field, such as "
                   "torch.version, or in `all`; may be repeated.")  # fmt: skip
@click.option("--relative", is_flag=True,
              help="With two files: compare each case's ratio to its baseline, which the machine's "
                   "speed does not change; cases without one are left out.  [default: where both "
                   "files have the baseline]")  # fmt: skip
@click.option("--absolute", is_flag=True,
              help="With two files: compare times, even where there is a baseline.")  # fmt: skip
@options.skip_corrupt
@options.as_json
@click.pass_context
def compare(
    context: click.Context,
    /,
    results: tuple[Path, ...],
    break_even: bool,
    skip_corrupt: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare variants with their baseline, or two files.

    One file: its variants with their baseline. Two files, OLD and NEW: every case of both.

    Verdicts: faster, slower, slightly faster or slower (surely, but by less than the threshold),
    same (the interval lies within the threshold), unclear. What makes a comparison unfair
    (precision, threads, versions, ...) is listed with it as not comparable.

    Two files are compared by ratios to the baseline that both have measured, and otherwise by
    times (--relative, --absolute).

    Exit codes: 0 fine, 1 something is slower (with --fail-if-slower), 2 usage, 3 nothing was
    comparable, 4 nothing is slower for certain, but a case is unclear (with --fail-if-slower).

    \b
    flopwatch compare results/dyad.jsonl
    flopwatch compare old.jsonl new.jsonl
    flopwatch compare old.jsonl new.jsonl --fail-if-slower 3%
    flopwatch compare results/switchback.jsonl --with published:switchback
    flopwatch compare published:dyad
    flopwatch compare results/switchback.jsonl --break-even --axis tokens
    """
    refuse_contradictions(context, results)
    if break_even:
        print_break_evens(read_records(results, skip_corrupt), given, as_json)
        return
    if given["published"] is not None:
        sys.exit(_compare_with_published(results, given["published"], skip_corrupt, as_json))
    from flopwatch.analysis.comparable import require_fields
    from flopwatch.analysis.statistics import THRESHOLD

    size = given["fail_if_slower"] or given["threshold"] or THRESHOLD
    sides = _read_sides(results, skip_corrupt)
    require_fields(given["despite"], (record for side in sides for record in side))
    judgement = _judge(sides, size, given)
    is_gate, is_between_runs = given["fail_if_slower"] is not None, len(sides) == 2
    changes = _find_changes(sides)
    _print(judgement, changes, is_between_runs=is_between_runs, as_json=as_json)
    # For a gate, what is no longer measured is a verdict, too.
    if not judgement.comparisons and not (is_gate and judgement.broken):
        from flopwatch.output.compare_tables import describe_nothing

        print_remark(f"flopwatch: {describe_nothing(judgement, is_between_runs=is_between_runs)}")
        sys.exit(NOTHING)
    sys.exit(
        decide_gate(judgement, given["despite"], allow_unclear=given["allow_unclear"])
        if is_gate
        else 0
    )


def _read_sides(results: Sequence[Path], skip_corrupt: bool) -> list[Sequence[Record]]:
    sides: list[Sequence[Record]] = [read_records([file], skip_corrupt) for file in results]
    if len(sides) < 2 or not _are_monitored(sides):
        return sides
    from flopwatch.analysis.monitored_changes import name_alike

    return list(name_alike(*sides))


def _are_monitored(sides: Sequence[Sequence[Record]]) -> bool:
    return all(any(record.monitored is not None for record in side) for side in sides)


def _find_changes(sides: Sequence[Sequence[Record]]) -> list[RunChange]:
    """Of monitored runs that both sides have."""
    if len(sides) < 2 or not _are_monitored(sides):
        return []
    from flopwatch.analysis.monitored_changes import find_run_changes

    return find_run_changes(*sides)


def refuse_contradictions(context: click.Context, results: Sequence[Path]) -> None:
    from flopwatch.records.store import is_published

    given = set(options.list_given(context))
    is_along_axis, is_gate = "break_even" in given, "fail_if_slower" in given
    has_published = "published" in given
    of_runs = not is_along_axis and not has_published
    for is_wrong, sentence in (
        (
            is_along_axis
            and given & {"published", "threshold", "fail_if_slower", *OF_TWO, *OF_GATE},
            "--break-even compares variants along an axis; leave --with, --threshold, "
            "--fail-if-slower and what belongs to them out",
        ),
        (
            not is_along_axis and given & {"axis", "variants"},
            "--axis and --variant say where --break-even looks; add --break-even",
        ),
        (
            of_runs and len(results) > 2,
            f"compare takes one file or two, an old and a new one, and got {len(results)}",
        ),
        (
            of_runs and len(results) == 2 and any(map(is_published, results)),
            "published times are from other hardware, and compared as ratios: flopwatch compare "
            "RESULTS --with published:NAME",
        ),
        (
            given >= OF_TWO,
            "--relative and --absolute exclude each other; leave one of them out",
        ),
        (
            given & OF_TWO and (len(results) != 2 or has_published),
            "--relative and --absolute are for an old and a new file; inside one, all is relative "
            "to the baseline",
        ),
        (
            has_published and given & {"fail_if_slower", "threshold"},
            "--with compares with other machines, where there is no threshold; leave it out",
        ),
        (
            "despite" in given and not is_gate,
            "--despite says what --fail-if-slower may count, and has no effect without it; add "
            "--fail-if-slower 3%, or leave --despite out",
        ),
    ):
        if is_wrong:
            raise click.UsageError(sentence, context)
    options.refuse_gate_contradictions(context)


def _judge(sides: Sequence[Sequence[Record]], size: float, given: Mapping[str, Any]) -> Judgement:
    from flopwatch.analysis.summary import summarize
    from flopwatch.analysis.verdicts import compare_runs, compare_variants

    if len(sides) == 1:
        return compare_variants(summarize(sides[0]), size)
    basis: Basis | None = None
    if given["relative"] or given["absolute"]:
        basis = "relative" if given["relative"] else "absolute"
    return compare_runs(sides[0], sides[1], threshold=size, basis=basis)


def _print(
    judgement: Judgement, changes: Sequence[RunChange], *, is_between_runs: bool, as_json: bool
) -> None:
    from flopwatch.output.compare_json import as_dict
    from flopwatch.output.compare_tables import (
        describe_basis,
        describe_judgement,
        make_compare_sheets,
    )
    from flopwatch.output.console import print_remarks, print_sentences, print_sheets
    from flopwatch.output.monitor_compare import describe_change, make_change_sheets
    from flopwatch.output.revision_comment import state_answer
    from flopwatch.output.run_warnings import warn_of_runs

    if as_json:
        print_json({**as_dict(judgement), "monitored": [one.to_dict() for one in changes]})
        return
    remarks = describe_judgement(judgement, is_between_runs=is_between_runs)
    if is_between_runs and judgement.comparisons:
        # A warning that concerns all of the answer comes before it.
        print_remarks(warn_of_runs(judgement))
        print_sentences([f"{state_answer(judgement)}."])
        print_sentences([sentence for one in changes for sentence in describe_change(one)])
        print_remarks(describe_basis(judgement))
        print_sentences([""])
    elif judgement.comparisons:
        counts, *remarks = remarks
        print_sentences([f"{counts}.", ""])
    print_sheets(
        [
            *make_compare_sheets(judgement, is_between_runs=is_between_runs),
            *make_change_sheets(changes),
        ]
    )
    print_remarks(remarks)


def decide_gate(
    judgement: Judgement, despite: Sequence[str] = (), *, allow_unclear: bool = False
) -> int:
    """The gate's exit code; its reason is printed."""
    from flopwatch.analysis.verdicts import excuse

    counted = excuse(judgement, despite)
    if not counted and not judgement.broken:
        print_remark(
            "flopwatch: nothing was comparable; measure both sides in the same way, or name "
            "what may differ by --despite FIELD"
        )
        return NOTHING
    slower = [one.new for one in counted if one.verdict == "slower"]
    regressed = [*slower, *judgement.broken]
    if regressed:
        print_remark(f"flopwatch: slower, or no longer measured: {_name_some(regressed)}")
        return REGRESSION
    unclear = [one for one in counted if may_be_slower(one, judgement.threshold)]
    undecided = [*(one.new for one in unclear), *judgement.too_few]
    if not undecided:
        return 0
    if any(one.is_shifted for one in unclear):
        advice = "compare ratios to a baseline, which the machine's speed does not change"
    elif judgement.basis == "turns":
        advice = "give it more time (--case-budget)"
    else:
        advice = "take more samples (--case-budget), or run both sides again into the same files"
    print_remark(
        f"flopwatch: unclear whether slower: {_name_some(undecided)}; {advice}"
        + ("" if allow_unclear else ", or pass --allow-unclear")
    )
    return 0 if allow_unclear else UNDECIDED


def may_be_slower(one: Comparison, threshold: float) -> bool:
    """Whether it is unclear, and a slowdown of the threshold is in its interval. What is faster or
    the same, one cannot say which, concerns no gate."""
    low = one.speedup.low
    return one.verdict == "unclear" and (one.is_shifted or low is None or low < 1 / (1 + threshold))


def _name_some(records: Sequence[Record]) -> str:
    from flopwatch.output.compare_tables import name_case

    more = f" and {len(records) - 3} more" if len(records) > 3 else ""
    return ", ".join(name_case(record) for record in records[:3]) + more


def _compare_with_published(
    results: Sequence[Path], source: str, skip_corrupt: bool, as_json: bool
) -> int:
    """The exit code."""
    from flopwatch.analysis.summary import summarize
    from flopwatch.analysis.vs_published import as_dict, compare_with_published
    from flopwatch.output.console import print_remarks, print_sheets
    from flopwatch.output.vs_published_tables import (
        describe_published_comparison,
        make_published_comparison_sheets,
        suggest_case,
    )
    from flopwatch.records.store import PUBLISHED

    if not source.startswith(PUBLISHED):
        raise click.UsageError(
            f"--with takes {PUBLISHED}NAME, such as {PUBLISHED}switchback, and got {source!r}"
        )
    published = summarize(read_records([Path(source)]))
    found = compare_with_published(summarize(read_records(results, skip_corrupt)), published)
    if as_json:
        print_json([as_dict(one) for one in found])
    else:
        print_sheets(make_published_comparison_sheets(found))
        print_remarks(describe_published_comparison(found))
    if all(one.missing is not None for one in found):
        advice = suggest_case(found, source.removeprefix(PUBLISHED))
        print_remark(f"flopwatch: nothing was comparable; {advice}")
        return NOTHING
    return 0


def print_break_evens(records: Sequence[Record], given: Mapping[str, Any], as_json: bool) -> None:
    from flopwatch.analysis.break_even import (
        choose_axis,
        choose_compared,
        find_break_evens,
        series_as_dict,
    )
    from flopwatch.analysis.summary import summarize
    from flopwatch.output.case_tables import make_break_even_sheets

    rows = choose_compared(summarize(records), given["variants"])
    axis = choose_axis(rows, given["axis"])
    options.print_found(
        as_json,
        [series_as_dict(one) for one in find_break_evens(rows, axis)],
        make_break_even_sheets(rows, axis),
    )


MOST_WIDTH = 110
"""Longer lines of prose are hard to read."""


@click.command(cls=Command)
@options.any_results
@options.only_list("all kinds of warnings, and how each is found.")
@click.option("--ignore", multiple=True, metavar="KIND",
              help="Leave out warnings of this kind; may be repeated.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 on any warning.")
@options.skip_corrupt
@options.as_json
def check(
    results: tuple[Path, ...],
    only_list: bool,
    ignore: tuple[str, ...],
    strict: bool,
    skip_corrupt: bool,
    as_json: bool,
) -> None:
    """List warnings about RESULTS, and what to do about them.

    Exit codes: 0 fine, 1 a warning spoils a number, 2 usage.

    \b
    flopwatch check results/*.jsonl
    flopwatch check published:dyad
    flopwatch check results/dyad.jsonl --ignore loaded-machine --strict
    flopwatch check results/dyad.jsonl --json | jq '.[].kind'
    flopwatch check --list
    """
    from flopwatch.analysis.warnings import KINDS, as_dict, find_warnings, kind_as_dict
    from flopwatch.output.console import open_stdout
    from flopwatch.output.remarks import count_warnings, write_kinds, write_warnings

    width = min(open_stdout().width, MOST_WIDTH)
    if only_list and as_json:
        print_json([kind_as_dict(name) for name in KINDS])
        return
    if only_list:
        print_lines("\n".join(write_kinds(width)))
        return
    unknown = [kind for kind in ignore if kind not in KINDS]
    if unknown:
        raise UsageError(
            f"there is no kind of warning {unknown[0]!r}; `flopwatch check --list` has them"
        )
    if not results:
        raise click.UsageError("name a results file, or ask for --list")
    records = read_records(results, skip_corrupt)
    warnings = [warning for warning in find_warnings(records) if warning.kind not in ignore]
    if as_json:
        print_json([as_dict(warning) for warning in warnings])
    else:
        for line in write_warnings(warnings, width):
            print_lines(line)
        print_remark(count_warnings(warnings, len(records)))
    if any(strict or warning.severity == "spoils" for warning in warnings):
        sys.exit(1)
