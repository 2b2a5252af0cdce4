"""Reasons to distrust results, by kind, with what to do about it.

A kind is an entry of KINDS: what it means, how it is found, what to do, and the function that finds
it. What several cases share is one warning, with the worst of them named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flopwatch.analysis import (
    comparison_warnings,
    measurement_warnings,
    monitored_warnings,
    node_warnings,
)
from flopwatch.analysis.summary import Row
from flopwatch.analysis.warning_findings import Case, Finding, gather
from flopwatch.records.record import Record, identify
from flopwatch.suites.case import label

Severity = Literal["spoils", "widens", "note"]
Scope = Literal["measured", "monitored", "all"]
"""Of which results: what `flopwatch run` has measured, or training loops with a monitor."""

SEVERITIES: dict[Severity, str] = {
    "spoils": "spoils a number",
    "widens": "makes a number less certain",
    "note": "worth knowing",
}
"""The most serious first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    severity: Severity
    meaning: str
    method: str
    """How it is found."""
    advice: str
    find: Callable[[Sequence[Case]], Iterable[Finding]]
    scope: Scope = "measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultWarning:
    kind: str
    severity: Severity
    cases: tuple[Record, ...]
    """That it concerns, the worst first."""
    sentence: str
    fact: str
    """The sentence without the names of cases: what is known of the worst of them."""
    advice: str


KINDS: dict[str, Kind] = {
    "over-peak": Kind(
        severity="spoils",
        meaning="more FLOPs a second than the hardware can do",
        method="declared FLOPs over the median time exceed the nominal peak, or the measured one "
        "by more than the 5 % to which that is known",
        advice="the time, the FLOPs or the peak is wrong: look at what the suite declares, and "
        "measure the peak again by `flopwatch peaks` on a quiet machine",
        find=comparison_warnings.find_over_peak,
    ),
    "impossible-mfu": Kind(
        severity="spoils",
        meaning="a monitored run has a higher MFU or HFU than the hardware allows",
        method="more than 105 % of the peak",
        advice="tokens_per_step, the FLOPs, the number of devices or the peak is wrong: "
        "`flopwatch show` says where each comes from",
        find=monitored_warnings.find_impossible,
        scope="monitored",
    ),
    "nothing-measured": Kind(
        severity="spoils",
        meaning="every case of a suite failed",
        method="no record of the suite that a table would show has a time",
        advice="`flopwatch show` has the messages in full; fix what failed, and measure again",
        find=comparison_warnings.find_unmeasured,
    ),
    "baseline-failed": Kind(
        severity="spoils",
        meaning="there is nothing to compare with",
        method="no measured baseline in the same run and group",
        advice="fix the baseline, or choose another by --baseline, and measure again",
        find=comparison_warnings.find_failed_baselines,
    ),
    "warm-up-never-ended": Kind(
        severity="spoils",
        meaning="times still fell after the warm-up was taken to be over",
        method="a falling trend, as for drift, that had settled by the second third of the samples "
        "or followed a warm-up without a steady state",
        advice="give it more time (--case-budget), and look at `flopwatch show --warmup`",
        find=measurement_warnings.find_unfinished_warmups,
    ),
    "drift": Kind(
        severity="spoils",
        meaning="the time itself changed while it was measured",
        method="Spearman's correlation of samples with their order, from 12 samples on, corrected "
        "for samples that move together and for the number of cases, at 0.1 %; and at least 5 % "
        "between the first and the last third",
        advice="measure again once the machine is quiet and warm; its speedup is still good, "
        "unless that drifts too",
        find=measurement_warnings.find_drifts,
    ),
    "speedup-drift": Kind(
        severity="spoils",
        meaning="a variant and its baseline changed by different amounts",
        method="as drift, of the ratios within rounds",
        advice="measure again, longer (--case-budget): one of the two was not in its steady state",
        find=measurement_warnings.find_speedup_drifts,
    ),
    "two-modes": Kind(
        severity="spoils",
        meaning="times lie around two levels, and the median is one of them or neither",
        method="the widest gap between the lower part's 90 % quantile and the upper part's 10 % "
        "quantile, over the distance of their medians, is wider than 0.2 + 3 / sqrt(samples), "
        "corrected for the number of cases, from 16 samples on; each part has a quarter of them, "
        "and they are 5 % apart",
        advice="find out what alternates (places in memory, clocks, huge pages, cores of two "
        "kinds, a neighbour): fix it or pin it, or report both levels",
        find=measurement_warnings.find_two_modes,
    ),
    "throttled": Kind(
        severity="spoils",
        meaning="the hardware ran slower than it can",
        method="the GPU said so, the CPU was at 90 °C or more, or its clock fell by 10 % over the "
        "groups of a run (from 12 groups on, by the test for drift)",
        advice="cool it, lower the power that it draws, or fix the clocks, and measure again",
        find=measurement_warnings.find_throttled,
        scope="all",
    ),
    "slow-node": Kind(
        severity="spoils",
        meaning="a node of the cluster is slower than the others",
        method="a matmul that every job times on its node takes 10 % longer than on the median of "
        "the others; or, in a job that spans nodes, the ranks of the others wait 10 % of the step "
        "for it",
        advice="compare its clocks, temperature and processes with another node's, and measure "
        "again without it: --rerun --slurm-arg exclude=NODE",
        find=node_warnings.find_slow_nodes,
    ),
    "unsteady": Kind(
        severity="widens",
        meaning="no steady state was found before measuring began",
        method="the record says so: warm-up took half of the budget",
        advice="give it more time (--case-budget)",
        find=measurement_warnings.find_unsteady,
    ),
    "few-samples": Kind(
        severity="widens",
        meaning="there is no interval, or it is wider than was asked for",
        method="the interval of the median time, or of the speedup, against --target-interval",
        advice="give it more time (--case-budget), or ask for less (--target-interval)",
        find=measurement_warnings.find_few_samples,
    ),
    "loaded-machine": Kind(
        severity="widens",
        meaning="other processes used the machine meanwhile",
        method="2 % or more of the cores' time was stolen, or other processes used 5 %; in older "
        "records, the load was higher by 1 (by a tenth, if that is more) than the run's threads",
        advice="end what else runs, or take another machine; speedups suffer less than times",
        find=measurement_warnings.find_loaded,
    ),
    "instruments-cost": Kind(
        severity="widens",
        meaning="measuring inside a case changed it",
        method="the interval of instrumented over plain runs lies above 1.05",
        advice="instrument fewer or larger regions",
        find=comparison_warnings.find_costly_instruments,
    ),
    "slow-steps": Kind(
        severity="note",
        meaning="some steps of a monitored run take much longer than their neighbours",
        method="5 median deviations and 20 % above the median of the neighbours; together 1 % of "
        "the steps' time or more",
        advice="`flopwatch show` lists them with their causes",
        find=monitored_warnings.find_slow,
        scope="monitored",
    ),
    "straggler": Kind(
        severity="note",
        meaning="ranks of a monitored run wait for the last of them",
        method="communication beyond that of the rank that came last: 2 % of the steps' time or "
        "more",
        advice="compare that rank's node with the others: clocks, temperature, other processes, "
        "its share of the data",
        find=monitored_warnings.find_straggling,
        scope="monitored",
    ),
    "data-bound": Kind(
        severity="note",
        meaning="a monitored run waits for its data",
        method="10 % of the mean step or more, after the first steps",
        advice=monitored_warnings.ADVICE["data"],
        find=monitored_warnings.find_data_bound,
        scope="monitored",
    ),
    "low-goodput": Kind(
        severity="note",
        meaning="much of the wall clock of a monitored run did not advance training",
        method="less than 90 %, of a run of 100 steps or more, over all its starts",
        advice="`flopwatch show` lists what it was lost to",
        find=monitored_warnings.find_low_goodput,
        scope="monitored",
    ),
    "padding": Kind(
        severity="note",
        meaning="a monitored run computes padding",
        method="10 % of the computed tokens or more",
        advice="pack sequences, or put those of similar length into one batch; MFU counts useful "
        "tokens only",
        find=monitored_warnings.find_padding,
        scope="monitored",
    ),
    "did-not-finish": Kind(
        severity="note",
        meaning="a start of a monitored run was killed, or ended by an exception",
        method="its last line does not say that it was closed, and another start followed; or it "
        "says what ended it",
        advice="save checkpoints more often where many steps were repeated",
        find=monitored_warnings.find_unfinished,
        scope="monitored",
    ),
    "launch-bound": Kind(
        severity="note",
        meaning="the time is that of Python and of launching kernels, not of the device",
        method="queueing the work took 90 % of the device's time or more, and the device was done "
        "within 2 ms of the last call",
        advice="give the device more work at a time (a larger micro-batch or model), or fewer "
        "launches: variants compiled, cuda-graph and reduce-overhead show what is left without",
        find=measurement_warnings.find_launch_bound,
    ),
    "unchecked": Kind(
        severity="note",
        meaning="the results of what was timed were not checked",
        method="`unchecked` of the record says why nothing was compared",
        advice="give the suite a reference, or fix the one that failed",
        find=comparison_warnings.find_unchecked,
    ),
    "not-comparable": Kind(
        severity="note",
        meaning="a variant and its baseline computed under different conditions",
        method="conditions that the workloads state differ",
        advice="state it with the speedup, or take a baseline under the same conditions",
        find=comparison_warnings.find_not_comparable,
    ),
    "flops-uncounted": Kind(
        severity="note",
        meaning="FLOP/s and shares of a peak are missing or too low",
        method="FLOPs for some phases and not for others, none where another variant has some, or "
        "of an unknown dtype",
        advice="declare them in the suite (@suite.flops)",
        find=comparison_warnings.find_uncounted,
    ),
    "tolerance-used": Kind(
        severity="note",
        meaning="results hardly passed their check",
        method="the largest error is 80 % of the tolerance or more",
        advice="look whether the error grows with the size of the case",
        find=comparison_warnings.find_used_tolerances,
    ),
    "memory-estimate": Kind(
        severity="note",
        meaning="what was predicted is not what was measured",
        method="10 % or more between them",
        advice="do not rely on `flopwatch memory` for this case",
        find=comparison_warnings.find_wrong_estimates,
    ),
    "environment-changed": Kind(
        severity="note",
        meaning="records of one table, or one run, were not made by the same machine and software",
        method="field by field, without what changes all the time",
        advice="speedups are within one run and hold; to compare times, measure all in one run "
        "(--rerun)",
        find=measurement_warnings.find_changes,
    ),
    "dirty-tree": Kind(
        severity="note",
        meaning="the code that was measured is in no commit",
        method="git, when the run began",
        advice="commit before measuring what you want to publish",
        find=measurement_warnings.find_dirty,
        scope="all",
    ),
    "noted": Kind(
        severity="note",
        meaning="remarks of the workload",
        method="notes of the records that no other kind covers",
        advice="state it with the number",
        find=comparison_warnings.find_noted,
        scope="all",
    ),
}
"""By name, in the order of printing among those that are equally serious."""


def find_warnings(
    records: Sequence[Record], rows: Sequence[Row] | None = None
) -> list[ResultWarning]:
    """About what tables of these records would show, the most serious first. With their rows, where
    those are known, monitored runs need not be summarized again."""
    cases = gather(records, rows)
    measured = [case for case in cases if case.monitored is None]
    monitored = [case for case in cases if case.monitored is not None]
    scopes: dict[Scope, list[Case]] = {"measured": measured, "monitored": monitored, "all": cases}
    warnings = []
    for name, kind in KINDS.items():
        by_cause: dict[str, list[Finding]] = {}
        for finding in kind.find(scopes[kind.scope]):
            by_cause.setdefault(finding.cause, []).append(finding)
        warnings += [_join(name, kind, findings) for findings in by_cause.values()]
    ranks = list(SEVERITIES)
    return sorted(warnings, key=lambda warning: ranks.index(warning.severity))


def _join(name: str, kind: Kind, findings: Sequence[Finding]) -> ResultWarning:
    ordered = sorted(findings, key=lambda finding: -finding.size)
    cases = tuple({id(finding.record): finding.record for finding in ordered}.values())
    worst = ordered[0]
    count = ""
    if len(cases) > 1:
        is_worse = worst.size > ordered[-1].size
        count = f"{len(cases):,} cases, {'the worst' if is_worse else 'such as'} "
    return ResultWarning(
        kind=name,
        severity=kind.severity,
        cases=cases,
        sentence=f"{count}{name_case(worst.record)}: {worst.fact}",
        fact=worst.fact,
        advice=worst.advice or kind.advice,
    )


def name_case(record: Record) -> str:
    return f"{record.suite} {record.variant} {label(record.params)}".rstrip()


def as_dict(warning: ResultWarning) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "kind": warning.kind,
        "severity": warning.severity,
        "sentence": warning.sentence,
        "advice": warning.advice,
        "cases": [identify(record) for record in warning.cases],
    }


def kind_as_dict(name: str) -> dict[str, str]:
    kind = KINDS[name]
    return {
        "kind": name,
        "severity": kind.severity,
        "meaning": kind.meaning,
        "method": kind.method,
        "advice": kind.advice,
    }
