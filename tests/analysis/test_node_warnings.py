"""Which node of a cluster is slower than the others."""

from __future__ import annotations

from dataclasses import replace

from flopwatch.analysis.summary import summarize
from flopwatch.analysis.warnings import find_warnings
from flopwatch.records.record import Rank, Record
from tests.analysis.test_warnings import FAILED, make_timed
from tests.conftest import make_record


def make_on(node: str, rate: float, number: int) -> Record:
    slurm = {"node": node, "nodes": [node], "job_id": f"1_{number}", "matmul_flops_per_s": rate}
    return make_timed(
        case_id=str(number), params={"n": number}, run_id=str(number), environment={"slurm": slurm}
    )


def list_slow(records: list[Record]) -> list[str]:
    return [w.fact for w in find_warnings(records) if w.kind == "slow-node"]


def test_by_the_matmul_of_each_job() -> None:
    rates = {"n1": 100.0, "n2": 99.0, "n3": 70.0, "n4": 101.0}
    records = [make_on(node, rate, n) for n, (node, rate) in enumerate(rates.items())]
    assert list_slow(records) == ["a matmul on node n3 is 30 % slower than on the other nodes"]
    assert list_slow([record for record in records if "n3" not in str(record.environment)]) == []
    assert list_slow(records[2:3]) == []


def test_by_whom_others_wait_for() -> None:
    record = make_timed(environment={"slurm": {"nodes": ["n1", "n2"], "job_id": "1"}})
    step_ns = record.samples_ns["call"]

    def wait(share: float) -> Rank:
        waiting_ns = [share * time_ns for time_ns in step_ns]
        return Rank(samples_ns={"call": step_ns}, waiting_ns=waiting_ns, transfer_ns=waiting_ns)

    # A rank of n1 waits for the other one there, too: what its node waits is the least of them.
    ranks = [wait(0.4), wait(0.3), wait(0.01), wait(0.05)]
    assert list_slow([replace(record, ranks=ranks)]) == [
        "the ranks of the other nodes wait 29 % of the step for node n2"
    ]
    assert list_slow([replace(record, ranks=[wait(0.05)] * 4)]) == []


def test_a_job_that_never_came_to_a_node_is_forgotten_once_another_has_measured() -> None:
    failed = {"status": "skipped", "cause": "never-started", **FAILED}
    lost = make_record(case_id="c", environment={"slurm": {"job_id": "1"}}, **failed)
    placed = {"machine": {"machine_id": "m"}, "slurm": {"job_id": "2"}}
    measured = make_timed(case_id="c", environment=placed)
    assert [row.record.status for row in summarize([lost])] == ["skipped"]
    assert [row.record.status for row in summarize([lost, measured])] == ["ok"]
