"""What a monitor sees, at an address that Prometheus reads: ``http://HOST:PORT/metrics``.

Counters, since whoever reads them now and then misses nothing: ``rate(flopwatch_tokens_total[5m])``
are tokens per second. Next to them rates of the latest steps, for a look by hand, and the time of
the last step, by which a training that hangs is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.monitor.base import RunFacts, StepFacts
from flopwatch.monitor.step_metrics import Means, Read, list_parts
from flopwatch.records.monitored import End

HOST, PORT = "127.0.0.1", 9400

COUNTERS: Mapping[str, tuple[str, Read]] = {
    "steps": ("Optimizer steps", lambda step: 1),
    "step_seconds": ("Time in steps, without pauses", lambda step: step.time_s),
    "tokens": ("Useful tokens, of all ranks", lambda step: step.tokens),
    "padded_tokens": ("Tokens with padding, of all ranks", lambda step: step.padded_tokens),
    "energy_joules": ("Energy of the device of rank 0", lambda step: step.energy_j),
}
RATES: Mapping[str, tuple[str, str]] = {
    "tokens_per_second": ("tokens_per_s", "Of all ranks, over the latest steps"),
    "mfu_ratio": ("mfu", "Model FLOPs utilisation of the latest steps"),
    "hfu_ratio": ("hfu", "Hardware FLOPs utilisation of the latest steps"),
}
LATEST: Mapping[str, tuple[str, Read]] = {
    "step": ("Number of the last step", lambda step: step.number),
    "last_step_timestamp_seconds": ("When it ended", lambda step: step.ended_unix_s),
    "memory_bytes": ("Held by tensors", lambda step: step.memory_bytes),
    "peak_memory_bytes": ("The most so far", lambda step: step.peak_memory_bytes),
}


class Prometheus:
    """For programs on this machine, unless told otherwise: ``"0.0.0.0:9400"`` is for all."""

    def __init__(self, address: str | int = PORT) -> None:
        """
        Args:
            address: PORT, or HOST:PORT; port 0 is any that is free.
        """
        require("prometheus_client")
        host, _, port = str(address).rpartition(":")
        if not port.isdigit():
            raise UsageError(f"{address!r} is no address for Prometheus: write PORT or HOST:PORT")
        self._host, self.port = host or HOST, int(port)
        self._server: Any = None
        self._registry: Any = None
        self._metrics: dict[str, Any] = {}

    def start(self, run: RunFacts) -> None:
        from prometheus_client import CollectorRegistry, Info, start_http_server

        self._registry = CollectorRegistry()  # not the one that all of the process share
        facts = {"run_id": run.run_id, "name": run.name, "device": run.device_name or run.device}
        Info("flopwatch_run", "What is trained", registry=self._registry).info(facts)
        try:
            self._server, _ = start_http_server(self.port, self._host, self._registry)
        except OSError as error:
            raise UsageError(
                f"nothing can be served at {self._host}:{self.port} ({error.strerror}): "
                "choose another port for Prometheus"
            ) from error
        self.port = self._server.server_port

    def steps(self, steps: Sequence[StepFacts]) -> None:
        for step in steps:
            for name, (meaning, read) in COUNTERS.items():
                self._count(name, meaning, read(step))
            for part, time_s in list_parts(step).items():
                self._count("part_seconds", "Time in steps by part", time_s, part=part)
            for event in step.events:
                if event.kind == "pause":
                    time_s = event.duration_ns / 1e9
                    self._count("pause_seconds", "Time in pauses", time_s, name=event.name)
        means = Means(steps)
        for name, (rate, meaning) in RATES.items():
            self._set(name, meaning, means.find(rate))
        for name, (meaning, read) in LATEST.items():
            self._set(name, meaning, read(steps[-1]))

    def close(self, end: End) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _count(self, name: str, meaning: str, value: float | None, /, **labels: str) -> None:
        from prometheus_client import Counter

        if value is not None:
            counter = self._find(Counter, name, meaning, tuple(labels))
            (counter.labels(**labels) if labels else counter).inc(value)

    def _set(self, name: str, meaning: str, value: float | None) -> None:
        from prometheus_client import Gauge

        if value is not None:
            self._find(Gauge, name, meaning).set(value)

    def _find(self, kind: Any, name: str, meaning: str, labels: Sequence[str] = ()) -> Any:
        """Made with its first value: one that nobody has set would read 0."""
        if name not in self._metrics:
            full_name = f"flopwatch_{name}"
            self._metrics[name] = kind(full_name, meaning, labels, registry=self._registry)
        return self._metrics[name]
