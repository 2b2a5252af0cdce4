"""One linear layer by itself, forward and backward: what the smallest cases of a suite measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import require_count
from flopwatch.jobs.precision import DTYPE_BYTES
from flopwatch.jobs.training_job import LARGEST


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearLayer:
    tokens: int
    inputs: int
    outputs: int
    dtype: str
    linear: str = "dense"
    """What kind of layer: a spec of `layers.registry`."""

    def __post_init__(self) -> None:
        for name in ("tokens", "inputs", "outputs"):
            require_count(name, getattr(self, name), LARGEST)
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(
                f"dtype is {str(self.dtype)[:40]!r}; choose one of {', '.join(DTYPE_BYTES)}"
            )

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_layer(content: Mapping[str, Any]) -> LinearLayer | None:
    """The reverse of `to_dict`; None where it is another thing."""
    if set(content) != {field.name for field in fields(LinearLayer)}:
        return None
    return LinearLayer(**content)
