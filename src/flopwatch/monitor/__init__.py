"""A monitor for any training loop: `flopwatch.Monitor`. Here is what connects it with others: loops
of other libraries (`TrainerCallback`, `LightningCallback`, `AccelerateMonitor`), and trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwatch.lazy import load_lazily, require

if TYPE_CHECKING:
    from flopwatch.monitor.accelerate_monitor import AccelerateMonitor
    from flopwatch.monitor.base import RunFacts, StepFacts, Tracker
    from flopwatch.monitor.lightning_callback import LightningCallback
    from flopwatch.monitor.prometheus_endpoint import Prometheus
    from flopwatch.monitor.trackers import MLflow, TensorBoard, Trackio, WandB
    from flopwatch.monitor.trainer_callback import TrainerCallback

__all__ = [
    "AccelerateMonitor",
    "LightningCallback",
    "MLflow",
    "Prometheus",
    "RunFacts",
    "StepFacts",
    "TensorBoard",
    "Tracker",
    "Trackio",
    "TrainerCallback",
    "WandB",
]

_HOMES = {
    "AccelerateMonitor": "accelerate_monitor",
    "LightningCallback": "lightning_callback",
    "MLflow": "trackers",
    "Prometheus": "prometheus_endpoint",
    "RunFacts": "base",
    "StepFacts": "base",
    "TensorBoard": "trackers",
    "Tracker": "base",
    "Trackio": "trackers",
    "TrainerCallback": "trainer_callback",
    "WandB": "trackers",
}
_NEEDS = {"AccelerateMonitor": "accelerate", "TrainerCallback": "transformers"}
_load = load_lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _NEEDS:
        require(_NEEDS[name])
    return _load(name)


def __dir__() -> list[str]:
    return __all__
