"""Nodes of a cluster that are slower than the others.

Every job of `flopwatch run --launcher slurm` times the same matmul on its node; and in a job that
spans nodes, a slow one's ranks wait least, since all others wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flopwatch.analysis.statistics import median
from flopwatch.analysis.warning_findings import Case, Finding, group_cases
from flopwatch.devices.environment import look_up
from flopwatch.records.record import Record

SLOWER = 0.1
"""From here on; matmuls on equal nodes differ by some percent."""


def find_slow_nodes(cases: Sequence[Case]) -> Iterator[Finding]:
    yield from _find_slow_matmuls(cases)
    for case in cases:
        yield from _find_awaited_node(case)


def _find_slow_matmuls(cases: Sequence[Case]) -> Iterator[Finding]:
    for alike in group_cases(cases, lambda case: case.table[3]):  # on the same kind of node
        rates: dict[str, dict[str, float]] = {}
        for case in alike:
            slurm = case.record.environment.get("slurm", {})
            node, rate = slurm.get("node"), slurm.get("matmul_flops_per_s")
            if isinstance(node, str) and isinstance(rate, float | int):
                rates.setdefault(node, {})[str(slurm.get("job_id"))] = float(rate)
        slow = _compare({node: median(list(by_job.values())) for node, by_job in rates.items()})
        for case in alike:
            node = str(look_up(case.record.environment, "slurm.node"))
            if node in slow:
                fact = (
                    f"a matmul on node {node} is {100 * slow[node]:.0f} % slower than on the other "
                    f"{'nodes' if len(rates) > 2 else 'node'}"
                )
                yield case.found(fact, size=slow[node], cause=f"matmul {node}")


def _compare(rates: Mapping[str, float]) -> dict[str, float]:
    """By node, how much slower it is than the median of the others, where that is much.

    >>> _compare({"n1": 100.0, "n2": 75.0, "n3": 100.0})
    {'n2': 0.25}
    """
    slow: dict[str, float] = {}
    for node, rate in rates.items():
        others = [other for name, other in rates.items() if name != node]
        if others and rate < (1 - SLOWER) * median(others):
            slow[node] = 1 - rate / median(others)
    return slow


def _find_awaited_node(case: Case) -> Iterator[Finding]:
    shares = _list_waiting_shares(case.record)
    if len(shares) < 2:
        return
    last, second = sorted(shares, key=shares.__getitem__)[:2]
    ahead = shares[second] - shares[last]
    if ahead > SLOWER:
        fact = f"the ranks of the other nodes wait {100 * ahead:.0f} % of the step for node {last}"
        yield case.found(fact, size=ahead, cause=f"ranks {last}")


def _list_waiting_shares(record: Record) -> dict[str, float]:
    """By node, the share of the step that its ranks wait for others."""
    nodes = look_up(record.environment, "slurm.nodes") or []
    if len(nodes) < 2 or len(record.ranks) % len(nodes):
        return {}
    per_node, first = len(record.ranks) // len(nodes), record.warmup_samples
    total_ns = sum(sum(times[first:]) for times in record.samples_ns.values())
    shares: dict[str, float] = {}
    for number, node in enumerate(nodes if total_ns else []):
        ranks = record.ranks[number * per_node : (number + 1) * per_node]
        waited_ns = [sum(ns or 0.0 for ns in rank.waiting_ns[first:]) for rank in ranks]
        shares[node] = min(waited_ns, default=0.0) / total_ns
    return shares
