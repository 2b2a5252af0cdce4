"""What `flopwatch.measure` and `flopwatch.compare` return: the answer first, then a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flopwatch.analysis.statistics import THRESHOLD, Estimate, Verdict, is_contradicted, judge
from flopwatch.output.background_load import describe_load
from flopwatch.output.notebook import render
from flopwatch.output.units import (
    NOISY_RANGE,
    format_interval,
    format_measured_ratio,
    format_measured_time,
    format_speedup,
    format_time,
    plural,
)
from flopwatch.records.record import Queue, Stop
from flopwatch.settings import Settings

if TYPE_CHECKING:
    from flopwatch.worker.function_agreement import Agreement

NOISY = 1.0
"""An interval that reaches farther than that, relative to its value, says nothing."""
LARGE = 1.5
"""From this ratio on a difference is written as a ratio, not in percent."""
TOO_FEW, TOO_NOISY = "too few samples", "too noisy"
STALLED = "stalled"


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSamples:
    """All that was sampled, as a record keeps it; lists are parallel."""

    samples_ns: dict[str, list[float]]
    """By phase."""
    rounds: list[int]
    calls_per_sample: list[int]
    queue: Queue | None
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One function's times. `time_ns` is the median of one call, with its interval."""

    name: str
    time_ns: Estimate
    samples_ns: list[float]
    """One call each, in order, warm-up first."""
    warmup_samples: int
    steady: bool
    stop_reason: Stop
    calls_per_sample: int
    """How many calls the last samples are the mean of."""
    phases_ns: dict[str, Estimate] = field(default_factory=dict)
    """The median of each phase, where there are several: forward and backward."""
    background_share: float | None = None
    """Of all cores' time, what other processes took; None: not known, or in the comparison."""
    raw: RawSamples | None = None

    @property
    def samples(self) -> int:
        """Samples after warm-up."""
        return len(self.samples_ns) - self.warmup_samples

    def __repr__(self) -> str:
        calls = "" if self.calls_per_sample == 1 else f" of {self.calls_per_sample} calls"
        warnings = [
            *([] if self.steady else ["it never became steady"]),
            *describe_load(self.background_share),
        ]
        phases = ", ".join(f"{name} {format_time(t.value)}" for name, t in self.phases_ns.items())
        return (
            f"{self.name}: {format_time(self.time_ns.value)} "
            f"{f'({phases}) ' if phases else ''}{describe_interval(self.time_ns)}, "
            f"{plural(self.samples, 'sample')}{calls} after {self.warmup_samples} of warm-up"
            + "".join(f"; {warning}" for warning in warnings)
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Functions measured side by side; the first is the baseline."""

    measurements: dict[str, Measurement]
    speedups: dict[str, Estimate]
    """Over the baseline, from ratios within rounds; more than 1 is faster."""
    baseline: str
    agreement: Agreement | None = None
    """How far results agree with the baseline's; None where they were not compared."""
    background_share: float | None = None
    """Of all cores' time, what other processes took meanwhile; None: not known."""
    threshold: float = THRESHOLD
    """The smallest difference that is called faster or slower."""

    @property
    def checked(self) -> bool:
        """Whether the results were compared with the baseline's."""
        return self.agreement is not None

    def verdict(self, name: str) -> Verdict:
        return judge(self.speedups[name], self.threshold)

    def answer(self) -> str:
        """The comparison in one sentence."""
        others = list(self.speedups)
        if len(others) == 1:
            return self._describe(others[0])
        best = max(others, key=lambda name: self.speedups[name].value)
        if self.verdict(best) in ("faster", "slightly faster"):
            return f"{self._describe(best)}; of {len(others)}, it has the highest speedup"
        faster = [name for name in others if self.verdict(name) == "unclear"]
        if faster:
            return f"{self._describe(faster[0])}; none of {len(others)} is clearly faster"
        return f"none of {', '.join(others)} is faster than {self.baseline}"

    def _describe(self, name: str) -> str:
        speedup, verdict = self.speedups[name], self.verdict(name)
        if speedup.low is None or speedup.high is None:
            rounds = plural(speedup.samples, "round")
            return f"unclear: {TOO_FEW} of {name} and {self.baseline} ({rounds}); raise budget_s"
        if verdict == "same":
            reach = max(speedup.high - 1, 1 / speedup.low - 1)
            within = math.ceil(1000 * reach) / 10  # up: the interval is wholly within it
            return f"{self.baseline} and {name} are the same within {within:g} %"
        if verdict == "unclear":
            return self._describe_unclear(name, speedup.low, speedup.high)
        is_faster = speedup.value > 1
        ratio = speedup if is_faster else speedup.inverse()
        word = "faster" if is_faster else "slower"
        if verdict in ("faster", "slower"):
            size = f"{format_measured_ratio(ratio)} {word} than {self.baseline}"
        else:
            size = f"slightly {word} than {self.baseline}, by {_percent(ratio.value - 1)} %"
        return f"{name} is {size} ({_describe_ends(ratio)})"

    def _describe_unclear(self, name: str, low: float, high: float) -> str:
        one = self.measurements[name]
        advice = "raise budget_s"
        if one.stop_reason == STALLED:
            advice = "more rounds do not help while this machine is so noisy"
        if high / low - 1 > NOISY:
            return f"unclear: the times of {name} and {self.baseline} are {TOO_NOISY}; {advice}"
        ends = [
            f"{_percent(end - 1)} % faster" if end > 1 else f"{_percent(1 / end - 1)} % slower"
            for end in (low, high)
        ]
        return f"unclear: {name} is between {ends[0]} and {ends[1]} than {self.baseline}; {advice}"

    @property
    def phases(self) -> list[str]:
        """Those that all functions have, where there are several."""
        first, *others = (list(one.phases_ns) for one in self.measurements.values())
        return [phase for phase in first if all(phase in other for other in others)]

    def headings(self) -> list[str]:
        return ["function", *self.phases, "time", "±", "speedup", "verdict"]

    def rows(self) -> list[list[str]]:
        """Name, times of phases, time, its interval, speedup, verdict: as text."""
        return [
            [
                name,
                *(format_measured_time(one.phases_ns[phase]) for phase in self.phases),
                format_measured_time(one.time_ns),
                describe_interval(one.time_ns).removeprefix("±"),
                *self._judge_cells(name),
            ]
            for name, one in self.measurements.items()
        ]

    def _judge_cells(self, name: str) -> tuple[str, str]:
        if name not in self.speedups:
            return "1.00x", "baseline"
        speedup, verdict = self.speedups[name], self.verdict(name)
        why = describe_interval(speedup)
        if why in (TOO_FEW, TOO_NOISY):
            return f"{format_measured_ratio(speedup)}", f"{verdict}: {why}"
        return format_speedup(speedup), verdict

    def footer(self) -> str:
        rounds = min(one.samples for one in self.measurements.values())
        results = "results not compared: pass tolerance="
        if self.agreement is not None:
            results = self.agreement.describe()
        return f"{plural(rounds, 'round')}, 99 % intervals; {results}"

    def remarks(self) -> list[str]:
        """What a reader of the times should know."""
        old_ns = self.measurements[self.baseline].time_ns.value
        drifted = [
            name
            for name, speedup in self.speedups.items()
            if is_contradicted(speedup, old_ns, self.measurements[name].time_ns.value)
        ]
        drift = (
            f"the speedup of {', '.join(drifted)} is not the ratio of the times above, which "
            "drifted between rounds: it is the median of the ratios within rounds, which drift "
            "does not change"
        )
        return [*([drift] if drifted else []), *describe_load(self.background_share)]

    def __repr__(self) -> str:
        table = _align([self.headings(), *self.rows()])
        return "\n".join([self.answer(), *table, self.footer(), *self.remarks()])

    def _repr_html_(self) -> str:
        name, *numbers, verdict = self.headings()
        headings = [f"<{name}", *numbers, f"<{verdict}"]
        below = [self.footer(), *self.remarks()]
        return render(self.answer(), headings, self.rows(), below)


def describe_interval(estimate: Estimate) -> str:
    """
    >>> describe_interval(Estimate(value=100.0, low=99.0, high=102.0, samples=50))
    '±2.0 %'
    >>> describe_interval(Estimate(value=100.0, low=None, high=None, samples=3))
    'too few samples'
    >>> describe_interval(Estimate(value=100.0, low=90.0, high=1200.0, samples=8))
    'too noisy'
    """
    width = estimate.half_width
    if width is None:
        return TOO_FEW
    return TOO_NOISY if width > NOISY else format_interval(estimate)


def _describe_ends(ratio: Estimate) -> str:
    """
    >>> _describe_ends(Estimate(value=1.05, low=1.041, high=1.058, samples=40))
    '4 to 6 %'
    >>> _describe_ends(Estimate(value=2.0, low=1.95, high=2.05, samples=40))
    '1.95x to 2.05x'
    >>> _describe_ends(Estimate(value=2.3, low=1.47, high=434.0, samples=20))
    'at least 1.47x'
    """
    assert ratio.low is not None
    assert ratio.high is not None
    if ratio.high > NOISY_RANGE * ratio.low:
        return f"at least {ratio.low:.2f}x"
    if ratio.value >= LARGE:
        return f"{ratio.low:.2f}x to {ratio.high:.2f}x"
    low, high = (_percent(end - 1) for end in (ratio.low, ratio.high))
    return f"{low} to {high} %"


def _percent(share: float) -> str:
    """Whole from 3 % on.

    >>> _percent(0.0061), _percent(0.0416)
    ('0.6', '4')
    """
    return f"{100 * share:.0f}" if abs(share) >= 0.0295 else f"{100 * share:.1f}"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            # Numbers end where their column does.
            cell.rjust(width) if 0 < place < last - 1 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
