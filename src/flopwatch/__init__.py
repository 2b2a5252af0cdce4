"""flopwatch: a stopwatch for training FLOPs.

Declare a suite with `Suite` and `Workload` and run it with ``flopwatch run my_suite.py``, or time
functions where they stand with `measure` and `compare`. Put a `Monitor` into your own training loop
to see what MFU it gets and what it loses. Describe a training job with `TrainingJob`
and ask for its speed, its memory and its FLOPs with `predict`, `plan`, `memory`, `mfu`, `flops`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwatch.lazy import load_lazily

__version__ = "0.2.0"

if TYPE_CHECKING:
    from flopwatch.api import compare_plans, flops, memory, mfu, plan, plan_deadlines, predict
    from flopwatch.errors import FlopwatchError, Unsupported, UsageError
    from flopwatch.jobs.parallelism import Parallelism
    from flopwatch.jobs.training_job import TrainingJob
    from flopwatch.monitor.training_monitor import Monitor
    from flopwatch.records.record import Record
    from flopwatch.records.store import read
    from flopwatch.settings import Settings
    from flopwatch.suites.case import Case
    from flopwatch.suites.suite import Suite
    from flopwatch.suites.workload import Stopwatch, Workload
    from flopwatch.worker.agreement import WrongResult
    from flopwatch.worker.comparison import Comparison, Measurement
    from flopwatch.worker.inline import compare, measure

__all__ = [
    "Case",
    "Comparison",
    "FlopwatchError",
    "Measurement",
    "Monitor",
    "Parallelism",
    "Record",
    "Settings",
    "Stopwatch",
    "Suite",
    "TrainingJob",
    "Unsupported",
    "UsageError",
    "Workload",
    "WrongResult",
    "__version__",
    "compare",
    "compare_plans",
    "flops",
    "measure",
    "memory",
    "mfu",
    "plan",
    "plan_deadlines",
    "predict",
    "read",
]

_HOMES = {
    "Case": "suites.case",
    "Comparison": "worker.comparison",
    "FlopwatchError": "errors",
    "Measurement": "worker.comparison",
    "Monitor": "monitor.training_monitor",
    "Parallelism": "jobs.parallelism",
    "Record": "records.record",
    "Settings": "settings",
    "Stopwatch": "suites.workload",
    "Suite": "suites.suite",
    "TrainingJob": "jobs.training_job",
    "Unsupported": "errors",
    "UsageError": "errors",
    "Workload": "suites.workload",
    "WrongResult": "worker.agreement",
    "compare": "worker.inline",
    "compare_plans": "api",
    "flops": "api",
    "measure": "worker.inline",
    "memory": "api",
    "mfu": "api",
    "plan": "api",
    "plan_deadlines": "api",
    "predict": "api",
    "read": "records.store",
}


__getattr__ = load_lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
