"""Training jobs: model shapes, parameters, FLOPs, memory, MFU conventions. No torch.

A library of its own, which imports nothing else of the package but its errors.
"""

from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob

__all__ = ["Parallelism", "TrainingJob"]
