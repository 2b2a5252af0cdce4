"""The events of a trace as columns of numbers: names, threads and shapes are numbered once.

Times are whole nanoseconds. Three tables hold what is needed of a trace: what ran on the host
(operators, annotations, modules), which calls launched something, and what ran on devices.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwatch.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
else:
    np = LazyModule("numpy")

NONE = -1
"""In columns: not known."""
KERNEL, COPY = 0, 1
"""Classes of work on a device: a kernel, or a copy or fill by the driver."""
OPERATOR, ANNOTATION, MODULE = 0, 1, 2
"""Classes of events on the host."""


class Numbering:
    """Things by number, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def find(self, thing: Any) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))

    def list(self) -> list[Any]:
        return list(self.numbers)


class Columns:
    """Rows of integers, appended one by one, then numpy's."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.values = array("q")

    def finish(self) -> dict[str, Integers]:
        table = np.frombuffer(self.values, dtype=np.int64).reshape(-1, len(self.names))
        # A column that is contiguous is read several times as fast.
        return {name: np.ascontiguousarray(table[:, at]) for at, name in enumerate(self.names)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    start: Integers
    end: Integers
    name: Integers
    thread: Integers
    place: Integers
    """OPERATOR, ANNOTATION or MODULE."""
    external: Integers
    sequence: Integers
    shape: Integers

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launches:
    """Calls of the runtime or the driver; what they start has the same correlation."""

    start: Integers
    end: Integers
    thread: Integers
    correlation: Integers


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceWork:
    start: Integers
    end: Integers
    name: Integers
    work: Integers
    """KERNEL or COPY."""
    device: Integers
    stream: Integers
    correlation: Integers
    external: Integers
    group: Integers
    """Of a collective, the ranks of its process group, as a name."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What was recorded of an operator's inputs, as JSON."""

    dims: bytes
    types: bytes
    values: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One process, which is one rank of a job."""

    file: str
    names: Sequence[str]
    host: Host
    launches: Launches
    work: DeviceWork
    shapes: Sequence[Shape]
    device_names: Mapping[int, str]
    """As drivers report them, by the device's number."""
    rank: int | None
    world_size: int | None
    is_recorded_with_shapes: bool
    remarks: Sequence[str]
    """What could not be read."""

    @property
    def is_of_device(self) -> bool:
        return len(self.work) > 0


class TraceBuilder:
    """Takes events one by one."""

    def __init__(self) -> None:
        self.names, self.threads, self.shapes = Numbering(), Numbering(), Numbering()
        self.host = Columns(
            "start", "end", "name", "thread", "place", "external", "sequence", "shape"
        )
        self.launches = Columns("start", "end", "thread", "correlation")
        self.work = Columns(
            "start", "end", "name", "work", "device", "stream", "correlation", "external", "group"
        )

    def finish(self) -> tuple[Host, Launches, DeviceWork]:
        return (
            Host(**self.host.finish()),
            Launches(**self.launches.finish()),
            DeviceWork(**self.work.finish()),
        )

    def list_shapes(self) -> Iterator[Shape]:
        for dims, types, values in self.shapes.list():
            yield Shape(dims=dims, types=types, values=values)
