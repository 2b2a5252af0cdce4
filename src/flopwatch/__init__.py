"""flopwatch: a stopwatch for training FLOPs.

Declare a suite with `Suite` and `Workload` and run it with ``flopwatch run my_suite.py``, or time
functions where they stand with `measure` and `compare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwatch.lazy import load_lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flopwatch.case import Case
    from flopwatch.engine.agreement import WrongResult
    from flopwatch.errors import FlopwatchError, Unsupported, UsageError
    from flopwatch.inline import Comparison, Measurement, compare, measure
    from flopwatch.records.record import Record
    from flopwatch.records.store import read
    from flopwatch.settings import Settings
    from flopwatch.suite import Stopwatch, Suite, Workload

__all__ = [
    "Case",
    "Comparison",
    "FlopwatchError",
    "Measurement",
    "Record",
    "Settings",
    "Stopwatch",
    "Suite",
    "Unsupported",
    "UsageError",
    "Workload",
    "WrongResult",
    "__version__",
    "compare",
    "measure",
    "read",
]

_HOMES = {
    "Case": "case",
    "Comparison": "inline",
    "FlopwatchError": "errors",
    "Measurement": "inline",
    "Record": "records.record",
    "Settings": "settings",
    "Stopwatch": "suite",
    "Suite": "suite",
    "Unsupported": "errors",
    "UsageError": "errors",
    "Workload": "suite",
    "WrongResult": "engine.agreement",
    "compare": "inline",
    "measure": "inline",
    "read": "records.store",
}


__getattr__ = load_lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
