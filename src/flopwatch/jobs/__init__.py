"""Training jobs: parameters, FLOPs, memory and MFU, computed from dimensions. No torch.

A library of its own, which imports nothing else of the package but its errors:

    >>> from flopwatch.jobs import TrainingJob, count_flops_by_part, estimate_rank_memory
    >>> job = TrainingJob("7b", 2048, micro_batch=4)
    >>> job.parameters
    6658404352
    >>> parts = count_flops_by_part(job)
    >>> f"{sum(part.total for part in parts.values()) / job.micro_batch_tokens:.3g} FLOPs a token"
    '4.31e+10 FLOPs a token'
    >>> f"{sum(estimate_rank_memory(job).values()) / 2**30:.0f} GiB"
    '128 GiB'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwatch.jobs.activation_memory import estimate_step
    from flopwatch.jobs.conventions import CONVENTIONS
    from flopwatch.jobs.flops import count_bytes_by_part, count_flops_by_part
    from flopwatch.jobs.model_shapes import Shape, find_shape
    from flopwatch.jobs.parallelism import Parallelism
    from flopwatch.jobs.parameters import count_parameters
    from flopwatch.jobs.precision import PRECISIONS, Peak
    from flopwatch.jobs.rank_memory import estimate_rank_memory
    from flopwatch.jobs.training_job import TrainingJob
    from flopwatch.jobs.utilisation import find_utilisation

__all__ = [
    "CONVENTIONS",
    "PRECISIONS",
    "Parallelism",
    "Peak",
    "Shape",
    "TrainingJob",
    "count_bytes_by_part",
    "count_flops_by_part",
    "count_parameters",
    "estimate_rank_memory",
    "estimate_step",
    "find_shape",
    "find_utilisation",
]

_HOMES = {
    "CONVENTIONS": "conventions",
    "PRECISIONS": "precision",
    "Parallelism": "parallelism",
    "Peak": "precision",
    "Shape": "model_shapes",
    "TrainingJob": "training_job",
    "count_bytes_by_part": "flops",
    "count_flops_by_part": "flops",
    "count_parameters": "parameters",
    "estimate_rank_memory": "rank_memory",
    "estimate_step": "activation_memory",
    "find_shape": "model_shapes",
    "find_utilisation": "utilisation",
}


def __getattr__(name: str) -> Any:
    """Load a module when one of its names is asked for: most commands need few of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
