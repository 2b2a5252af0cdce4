"""Monitored runs with noise and stalls of known causes, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flopwatch.records.joined_runs import complete
from flopwatch.records.monitored import (
    CountedFlops,
    MeterReading,
    Monitored,
    MonitoredEvent,
    RankSteps,
)
from flopwatch.records.record import Record
from flopwatch.records.store import read

from .conftest import make_record
from .noise import make_noise

MS = 1e6
PARTS_MS = {
    "data": 1.0, "forward": 6.0, "loss": 1.0, "backward": 11.0, "communication": 2.0,
    "optimizer": 3.0,
}  # fmt: skip
OTHER_MS = 1.0
TOKENS = 4096
BEGAN_S = 1_700_000_000.0
FLOPS = CountedFlops(
    model=6e6, hardware=6e6, dtype="bfloat16", source="job", convention="exact", unit="token"
)
H100 = {"torch": {"gpu": {"name": "NVIDIA H100 80GB HBM3"}, "version": "2.9.0"}}


EXAMPLE = Path(__file__).parent / "data" / "examples" / "run.jsonl"
"""A real run of two ranks."""


@cache
def _read_noise() -> NDArray[np.float64]:
    """Of its steps, those that stalls were made in left out: around 1."""
    found = []
    for record in read(EXAMPLE).records:
        assert record.monitored is not None
        times = np.array(record.monitored.ranks[0].parts_ns["backward"][5:], dtype=float)
        found.append(times / np.median(times))
    ratios = np.concatenate(found)
    return ratios[ratios < 4]


def replay_noise(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Recorded, in blocks of neighbours, which move together."""
    ratios, length = _read_noise(), 20
    starts = rng.integers(0, len(ratios) - length, size=count // length + 1)
    return np.concatenate([ratios[start : start + length] for start in starts])[:count]


@dataclass
class Loop:
    """A training loop that is written down step by step; all times are changed in place."""

    steps: int
    seed: int = 0
    ranks: int = 1
    first_step: int = 0
    began_s: float = BEGAN_S
    parts_ns: list[dict[str, NDArray[np.float64]]] = field(default_factory=list)
    """By rank and part, without communication."""
    other_ns: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    events: list[tuple[int, str, str, float]] = field(default_factory=list)
    """Place, kind, name and nanoseconds; pauses come before the step."""
    sigma: float = 0.05
    is_recorded: bool = False
    """Whether noise is that of a real loop on a busy machine, in place of a simulated one."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def scatter(mean_ms: float) -> NDArray[np.float64]:
            if self.is_recorded:
                return mean_ms * MS * replay_noise(rng, self.steps)
            noise = make_noise(rng, self.steps, sigma=self.sigma, outlier_share=0.0)
            return mean_ms * MS * noise

        own = {name: time for name, time in PARTS_MS.items() if name != "communication"}
        self.parts_ns = [{n: scatter(t) for n, t in own.items()} for _ in range(self.ranks)]
        self.other_ns = scatter(OTHER_MS)
        self.transfer_ns = scatter(PARTS_MS["communication"])
        for parts in self.parts_ns:
            parts["forward"][0] += 900 * MS  # compilation
            parts["backward"][0] += 600 * MS

    def stall(self, place: int, cause: str, time_ns: float, rank: int = 0) -> None:
        """Of the lowest rank's step: by its own data, by another rank, ..."""
        if cause == "data":
            self.parts_ns[rank]["data"][place] += time_ns
        elif cause == "garbage collection":
            self.parts_ns[rank]["backward"][place] += time_ns
            self.events.append((place, "gc", "2", time_ns))
        elif cause == "other ranks":
            self.parts_ns[rank or 1]["forward"][place] += time_ns
        elif cause == "communication":
            self.transfer_ns[place] += time_ns
        elif cause == "pause":
            self.events.append((place, "pause", "checkpoint", 10 * time_ns))
            self.parts_ns[rank]["forward"][place] += time_ns
        elif cause in ("allocator retries", "throttling"):
            kind = {"allocator retries": "allocator-retry", "throttling": "throttled"}[cause]
            self.parts_ns[rank]["backward"][place] += time_ns
            self.events.append((place, kind, "", time_ns))
        else:
            self.parts_ns[rank]["optimizer"][place] += time_ns

    def pause(self, place: int, name: str, time_ns: float) -> None:
        self.events.append((place, "pause", name, time_ns))

    def record(self, **changes: Any) -> Record:
        """As a reader of the results file gets it."""
        monitored = {k: changes.pop(k) for k in list(changes) if k in Monitored.__slots__}
        own_ns = np.array([sum(parts.values()) for parts in self.parts_ns])
        last_ns = own_ns.max(axis=0)
        transfer_ns = self.transfer_ns if self.ranks > 1 else 0.0 * self.transfer_ns
        step_ns = last_ns + transfer_ns + self.other_ns
        paused_ns = np.zeros(self.steps)
        for place, kind, _, time_ns in self.events:
            paused_ns[place] += time_ns if kind == "pause" else 0.0
        begin_ns = 2e9 + np.concatenate([[0.0], np.cumsum(step_ns + paused_ns)[:-1]])
        ranks = [
            self._make_rank(rank, step_ns, begin_ns, last_ns - own_ns[rank] + transfer_ns)
            for rank in range(self.ranks)
        ]
        content: dict[str, Any] = {
            "rank": 0, "world_size": self.ranks, "data_parallel": self.ranks,
            "started_unix_s": self.began_s, "clock": "monotonic", "tokens_per_step": TOKENS,
            "first_steps": 5, "flops": FLOPS, "end": "closed", "ranks": ranks, **monitored,
        }  # fmt: skip
        fields: dict[str, Any] = {
            "suite": "monitor", "variant": "run", "baseline": "run", "params": {}, "case_id": "m",
            "run_id": f"r{self.began_s:.0f}", "samples_ns": {}, "rounds": [],
            "calls_per_sample": [], "stop_reason": None, "steady": None,
        }  # fmt: skip
        return complete(make_record(**{**fields, **changes}), Monitored(**content))

    def _make_rank(
        self,
        rank: int,
        step_ns: NDArray[np.float64],
        begin_ns: NDArray[np.float64],
        communication_ns: NDArray[np.float64],
    ) -> RankSteps:
        parts: dict[Any, list[float | None]] = {
            name: values.tolist() for name, values in self.parts_ns[rank].items()
        }
        if self.ranks > 1:
            parts["communication"] = communication_ns.tolist()
        count = self.steps
        last_ns = float(begin_ns[-1] + step_ns[-1])
        return RankSteps(
            rank=rank,
            zero_unix_s=self.began_s,
            seen_ns=last_ns,
            steps=list(range(self.first_step, self.first_step + count)),
            begin_ns=begin_ns.tolist(),
            time_ns=step_ns.tolist(),
            parts_ns=parts,
            arrived_ns=[None] * count,
            micro_batches=[1] * count,
            tokens=[None] * count,
            padded_tokens=[None] * count,
            events=[
                MonitoredEvent(
                    kind=kind,  # type: ignore[arg-type]
                    name=name,
                    begin_ns=float(begin_ns[place]),
                    duration_ns=time_ns,
                )
                for place, kind, name, time_ns in self.events
            ]
            if rank == 0
            else [],
            readings=[
                MeterReading(at_ns=float(begin_ns[0]), energy_j=100.0, memory_bytes=2**30,
                             peak_memory_bytes=2**31),
                MeterReading(at_ns=last_ns, energy_j=100.0 + 300 * (last_ns - 2e9) / 1e9,
                             memory_bytes=2**30, peak_memory_bytes=2**32,
                             phase_memory_bytes={"forward": 3 * 2**30}),
            ],
        )  # fmt: skip


def restart(loops: Sequence[Loop], **changes: Any) -> list[Record]:
    """Of one run: all but the last were killed."""
    *killed, last = loops
    return [*(loop.record(end=None, **changes) for loop in killed), last.record(**changes)]


STALLS = {50: "data", 90: "garbage collection", 120: "other ranks", 150: "pause", 170: "unknown"}


def make_stalled_run(**changes: Any) -> list[Record]:
    """Four ranks, of which rank 2 is slow; stalls of all kinds, pauses, and a restart that repeats
    20 steps."""
    first = Loop(200, seed=1, ranks=4)
    for place, cause in STALLS.items():
        first.stall(place, cause, 60 * MS, rank=3 if cause == "other ranks" else 0)
    first.pause(100, "evaluation", 2e9)
    second = Loop(300, seed=2, ranks=4, first_step=180, began_s=BEGAN_S + 20)
    for loop in (first, second):
        loop.parts_ns[2]["forward"] += 3 * MS
    return restart([first, second], **changes)
