"""How fast is a query over many records?

Writes a file of 100,000 varied records with 50 samples each to a temporary folder and asks for
the median of every suite and variant, in a fresh process, as `flopwatch query` would. Two
thirds of the time go into validating and copying the records. The reach is 5 s and 2 GiB on a
machine with two cores; where it is missed, this exits with 1.

    python benchmarks/query.py
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from flopwatch.records.record import Check, Record, encode
from flopwatch.suites.case import Case

REACH_RECORDS = 100_000
REACH_S = 5.0
REACH_BYTES = 2 * 2**30
NUM_SAMPLES = 50
NUM_SERIES = 500

SQL = "SELECT suite, variant, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL"

# Linux counts ru_maxrss in KiB.
CHILD = """
import json, resource, sys, time
from pathlib import Path
begin_s = time.perf_counter()
from flopwatch.records.query import query
result = query([Path(sys.argv[1])], sys.argv[2])
seconds = time.perf_counter() - begin_s
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([seconds, peak_bytes, len(result.rows)]))
"""

ENVIRONMENT = {
    "host": "node-17",
    "machine": {"architecture": "x86_64"},
    "system": "Linux 6.8.0-45-generic",
    "cpu": {
        "model": "Intel(R) Xeon(R) Platinum 8480+",
        "cores": 112,
        "flags": ["avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8"],
        "caches_bytes": {"l1d": 49152, "l2": 2097152, "l3": 110100480},
        "governor": "performance",
    },
    "memory_bytes": 549755813888,
    "versions": {f"package-{i}": f"{i}.{i % 7}.{i % 3}" for i in range(25)},
    "variables": {f"FLOPWATCH_EXAMPLE_{i}": "1" for i in range(12)},
    "commit": "f1de5b1" * 5,
    "allocator": {"name": "glibc", "trim_threshold": -1, "mmap_threshold": 33554432},
    "load": {"average": [0.12, 0.25, 0.31]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a query over many records.")
    parser.add_argument("--records", type=int, default=REACH_RECORDS, help="how many records")
    num_records = parser.parse_args().records
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as folder:
        path = Path(folder) / "results.jsonl"
        write_records(path, num_records)
        size_bytes = path.stat().st_size
        seconds, peak_bytes, num_rows = time_query(path)
    print(f"{'':14}{'measured':>12}{'reach':>12}")
    print(f"{'seconds':14}{seconds:12.2f}{REACH_S:12.2f}")
    print(f"{'peak RSS, GiB':14}{peak_bytes / 2**30:12.2f}{REACH_BYTES / 2**30:12.2f}")
    print(
        f"{num_records:,} records, {num_records * NUM_SAMPLES:,} samples, "
        f"{size_bytes / 1e6:,.0f} MB, {num_rows} rows"
    )
    if seconds > REACH_S or peak_bytes > REACH_BYTES:
        sys.exit(1)


def write_records(path: Path, num_records: int) -> None:
    """Records that differ as real ones do; series of times are drawn from a pool, to be quick."""
    draw = random.Random(0)
    pool = [
        [round(draw.lognormvariate(13, 0.1), 1) for _ in range(NUM_SAMPLES)]
        for _ in range(NUM_SERIES)
    ]
    with path.open("wb") as file:
        for i in range(num_records):
            file.write(encode(make_record(i, pool[draw.randrange(NUM_SERIES)])) + b"\n")


def make_record(i: int, times_ns: list[float]) -> Record:
    case = Case(
        suite=("dyad", "switchback", "steps", "training")[i % 4],
        variant=("dense", "dyad-it-4", "switchback")[i % 3],
        params={"dtype": "float32", "shape": [768, 64 * (i % 97)], "batch": i},
    )
    return Record(
        case_id=case.id,
        group_id=case.group,
        run_id=f"run-{i // 1000}",
        suite=case.suite,
        variant=case.variant,
        baseline="dense",
        params=dict(case.params),
        status="ok",
        samples_ns={"forward": times_ns},
        rounds=list(range(NUM_SAMPLES)),
        calls_per_sample=[1 + i % 5] * NUM_SAMPLES,
        warmup_samples=i % 10,
        steady=True,
        stop_reason="precise",
        flops={"forward": {"float32": 1e9 + i}},
        bytes={"forward": 1e6 + i},
        peak_memory_bytes=2**30 + i,
        check=Check(reference="plain", errors={"output": 1e-6}, tolerance=1e-3),
        environment={**ENVIRONMENT, "pid": i},
        sources={"suites/builtin/dyad.py": case.id},
        measured_at="2026-01-01T00:00:00+00:00",
    )


def time_query(path: Path) -> tuple[float, int, int]:
    """Seconds, imports included; peak memory; and the number of rows."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), SQL], stdout=subprocess.PIPE, check=True
    )
    seconds, peak_bytes, num_rows = json.loads(child.stdout)
    return seconds, peak_bytes, num_rows


if __name__ == "__main__":
    main()
