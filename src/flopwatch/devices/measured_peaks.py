"""What this machine can do at best, as `flopwatch peaks` has measured it, and where that is kept.

The file has one JSON object a line, a line a measurement, and is only ever appended to, as results
are. A line that cannot be read is passed over: it can be measured again in a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from flopwatch import env
from flopwatch.devices.environment import look_up
from flopwatch.devices.kinds import is_host
from flopwatch.errors import CorruptFile, NewerSchema, StoreError
from flopwatch.jobs.precision import Peak
from flopwatch.records.file_safety import Kind
from flopwatch.records.record import Header
from flopwatch.records.store import LineFile, Say, reading
from flopwatch.settings import Device, Settings

SCHEMA = 1
MOST_BYTES = 256 * 2**20
"""That are read of a file: far more than anybody has measured."""
BEYOND_CACHES = 4
"""So many times all last-level caches, and a loop over an array finds nothing of it in them."""

Kernel = Literal["read", "copy", "triad"]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-receive"]
Entry = TypeVar("Entry")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What must be the same for a peak to be this machine's: None where it is not known, or where
    it does not matter."""

    device: Device
    threads: int | None
    machine_id: str | None
    cpu_model: str | None
    cpu_capability: str | None
    onednn_max_cpu_isa: str | None
    gpu_name: str | None
    torch_version: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """A matrix of `rows` x `inner` times one of `inner` x `columns`."""

    rows: int
    inner: int
    columns: int
    flops_per_s: float
    """The best of all blocks."""
    blocks: int
    repeats: int
    """Blocks that came close to the best, itself included."""

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.inner}x{self.columns}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Matmuls in one dtype, the smallest first."""

    dtype: str
    measured_at: str
    points: Sequence[Matmul]
    reason: str | None = None
    """Why there are no points."""
    sustained_flops_per_s: float | None = None
    """What the best one keeps up for seconds, once power and heat limit its clock; None on a CPU,
    and where it was not measured."""

    @property
    def best(self) -> Matmul | None:
        return max(self.points, key=lambda point: point.flops_per_s, default=None)

    @property
    def reach(self) -> float:
        """FLOP/s that work can have for as long as it takes; 0 where nothing was measured."""
        burst = 0.0 if self.best is None else self.best.flops_per_s
        return burst if self.sustained_flops_per_s is None else self.sustained_flops_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """A pass over arrays that together have `size_bytes`; each of those is counted once."""

    kernel: Kernel
    size_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """What ranks send each other. The size is that of the whole array: what a rank puts into an
    all-reduce, a reduce-scatter or an all-to-all, and gets out of an all-gather; and what each rank
    sends to the next one while it receives as much from the one before."""

    operation: Operation
    ranks: int
    backend: str
    size_bytes: int
    time_ns: float

    @property
    def algorithm_bytes_per_s(self) -> float:
        return self.size_bytes / self.time_ns * 1e9

    @property
    def bus_bytes_per_s(self) -> float:
        """What each rank's link must carry for it, at the least."""
        is_whole = self.operation == "send-receive"
        share = 1.0 if is_whole else (self.ranks - 1) / self.ranks
        return BUS_PASSES[self.operation] * share * self.algorithm_bytes_per_s


BUS_PASSES: Mapping[Operation, int] = {
    "all-reduce": 2,
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-to-all": 1,
    "send-receive": 1,
}
"""How often (ranks - 1) / ranks of the array passes each link: sums must be made and handed out.
What is sent to one rank passes one link as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    setup: Setup
    measured_at: str
    quick: bool
    matmuls: Sequence[Curve]
    streams: Sequence[Stream]
    cache_bytes: int
    """Of all last-level caches together."""
    background_share: float | None = None
    """Of the time of all cores, what background load took."""
    exchanges: Sequence[Exchange] = ()
    schema: int = SCHEMA

    def find_peak(self, dtype: str) -> Peak | None:
        """The most FLOP/s that a matmul in that dtype keeps up; None: not known."""
        curve, burst = self._find_curve(dtype), self.find_burst(dtype)
        if curve is None or burst is None or curve.sustained_flops_per_s is None:
            return burst
        return Peak(flops_per_s=curve.reach, source=f"{burst.source}, sustained for seconds")

    def find_burst(self, dtype: str) -> Peak | None:
        """The most FLOP/s that a matmul in that dtype has reached, for however short a time; None:
        not known."""
        curve = self._find_curve(dtype)
        if curve is None or curve.best is None:
            return None
        day = curve.measured_at.partition("T")[0]
        return Peak(
            flops_per_s=curve.best.flops_per_s,
            source=f"measured here on {day}: a {dtype} matmul of {curve.best.shape}",
        )

    def _find_curve(self, dtype: str) -> Curve | None:
        return next((curve for curve in self.matmuls if curve.dtype == dtype), None)

    def find_bandwidth(self, kernel: Kernel) -> Stream | None:
        """The best beyond all caches; None where no array was large enough."""
        far = [
            stream
            for stream in self.streams
            if stream.kernel == kernel and stream.size_bytes >= BEYOND_CACHES * self.cache_bytes
        ]
        return max(far, key=lambda stream: stream.bytes_per_s, default=None)

    def find_exchange(self, operation: Operation, ranks: int | None = None) -> Exchange | None:
        """The fastest by its bytes, at whatever size: among so many ranks, or else the fewest."""
        found = self._list_exchanges(operation, ranks)
        return max(found, key=lambda exchange: exchange.bus_bytes_per_s, default=None)

    def find_latency(self, operation: Operation, ranks: int | None = None) -> Exchange | None:
        """The shortest, which is of next to nothing; likewise."""
        found = self._list_exchanges(operation, ranks)
        return min(found, key=lambda exchange: exchange.time_ns, default=None)

    def list_group_sizes(self) -> list[int]:
        """Numbers of ranks among which something was measured, ascending."""
        return sorted({exchange.ranks for exchange in self.exchanges})

    def _list_exchanges(self, operation: Operation, ranks: int | None) -> list[Exchange]:
        alike = [exchange for exchange in self.exchanges if exchange.operation == operation]
        chosen = min((e.ranks for e in alike), default=None) if ranks is None else ranks
        return [exchange for exchange in alike if exchange.ranks == chosen]


def read_setup(environment: Mapping[str, Any], settings: Settings) -> Setup:
    """From a record's environment and settings."""
    on_gpu = not is_host(settings.device)
    return Setup(
        device=settings.device,
        threads=None if on_gpu else settings.threads,
        machine_id=look_up(environment, "machine.machine_id"),
        cpu_model=look_up(environment, "machine.cpu_model"),
        cpu_capability=look_up(environment, "torch.cpu_capability"),
        onednn_max_cpu_isa=look_up(environment, "isa.onednn_max_cpu_isa"),
        gpu_name=look_up(environment, "torch.gpu.name") if on_gpu else None,
        torch_version=look_up(environment, "torch.version"),
    )


def find_peaks(
    environment: Mapping[str, Any], settings: Settings, path: Path | None = None
) -> Peaks | None:
    """The best that was ever measured under the same conditions, of everything: other work, and
    sizes that were not tried, can only make a measurement too low."""
    setup = read_setup(environment, settings)
    alike = [peaks for peaks in read(path or find_file()) if peaks.setup == setup]
    return unite(alike) if alike else None


def unite(measured: Sequence[Peaks]) -> Peaks:
    """The best of everything, of several that were measured under the same conditions."""
    curves: dict[str, Curve] = {}
    for curve in (curve for peaks in measured for curve in peaks.matmuls):
        known = curves.get(curve.dtype)
        if known is None or _rank(curve) > _rank(known):
            curves[curve.dtype] = curve
    return replace(
        measured[-1],
        matmuls=list(curves.values()),
        streams=[stream for peaks in measured for stream in peaks.streams],
        exchanges=[exchange for peaks in measured for exchange in peaks.exchanges],
    )


def _rank(curve: Curve) -> tuple[bool, float]:
    """What is known to last counts more than any burst."""
    return curve.sustained_flops_per_s is not None, curve.reach


def shorten(peaks: Peaks) -> dict[str, Any]:
    """For a record's environment, as plain data: the best of everything, without the curves."""
    bests = [(curve, curve.best) for curve in peaks.matmuls]
    streams = [peaks.find_bandwidth(kernel) for kernel in ("read", "copy", "triad")]
    exchanges = [
        exchange
        for ranks in peaks.list_group_sizes()
        for operation in BUS_PASSES
        for exchange in (
            peaks.find_latency(operation, ranks),
            peaks.find_exchange(operation, ranks),
        )
        if exchange is not None
    ]
    short = replace(
        peaks,
        matmuls=[replace(curve, points=[best]) for curve, best in bests if best is not None],
        streams=[stream for stream in streams if stream is not None],
        exchanges=list(dict.fromkeys(exchanges)),
    )
    content: dict[str, Any] = msgspec.to_builtins(short)
    return content


def from_environment(environment: Mapping[str, Any]) -> Peaks | None:
    """What `shorten` has put there; None where there is nothing, or nothing that can be read."""
    try:
        peaks = msgspec.convert(environment.get("peaks"), Peaks)
    except msgspec.ValidationError:
        return None
    return peaks if peaks.schema == SCHEMA else None


def find_file(environ: env.Environ = None) -> Path:
    asked = env.read(env.PEAKS, environ)
    return Path(asked) if asked else env.find_cache_folder(environ) / "peaks.jsonl"


def make_kind(entry: type[Any], name: str, variable: str) -> Kind:
    """Of a file with such entries, which `variable` may name."""

    def decode(line: bytes) -> object:
        try:
            if msgspec.json.decode(line, type=Header).schema > SCHEMA:
                raise NewerSchema("it is from a newer flopwatch")
            return msgspec.json.decode(line, type=entry)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptFile(f"it is not an entry of one ({error})") from None

    return Kind(
        name=name,
        keys=(b'{"setup":{"device":', b'"threads":', b'"machine_id":'),
        decode=decode,
        advice=f"choose another with --out or {variable}",
    )


FILE_KIND = make_kind(Peaks, "a file of peaks", env.PEAKS)


def append(
    path: Path,
    entries: Sequence[Any],
    kind: Kind = FILE_KIND,
    *,
    say: Say = lambda sentence: None,
) -> None:
    """Add lines to the file, which is made where there is none, even for no lines at all. `say` is
    called where it has to be waited for."""
    with LineFile.open(path, kind, say=say) as file:
        for entry in entries:
            file.append_line(msgspec.json.encode(entry) + b"\n")


def read(path: Path) -> list[Peaks]:
    """Oldest first; none where there is no file."""
    return [peaks for peaks in read_entries(path, Peaks, env.PEAKS) if peaks.schema == SCHEMA]


def read_entries(path: Path, kind: type[Entry], variable: str) -> list[Entry]:
    """Of the lines those that are of this kind, oldest first; none where there is no file."""
    if not path.exists():
        return []
    try:
        with reading(path) as file:
            lines = file.read(MOST_BYTES).splitlines()
    except StoreError as error:
        wrong = str(error).partition(";")[0]
        raise StoreError(f"{wrong}; choose another with {variable}") from None
    found = []
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(msgspec.json.decode(line, type=kind))
    return found
