"""Numbers as people read them: three significant figures and a unit."""

from __future__ import annotations

from flopwatch.analysis.statistics import Estimate

TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_time(time_ns: float) -> str:
    """
    >>> [format_time(t) for t in (0.42, 1500, 2.5e6, 61.2e9)]
    ['0.42 ns', '1.50 µs', '2.50 ms', '61.2 s']
    """
    scale, unit = next((u for u in TIME_UNITS if time_ns >= u[0]), TIME_UNITS[-1])
    return f"{three_figures(time_ns / scale)} {unit}"


def format_rate(per_second: float | None, unit: str) -> str:
    """
    >>> format_rate(3.14e9, "B/s")
    '3.14 GB/s'
    """
    if per_second is None:
        return ""
    scale, prefix = next((p for p in PREFIXES if per_second >= p[0]), PREFIXES[-1])
    return f"{three_figures(per_second / scale)} {prefix}{unit}"


def format_count(count: float) -> str:
    """
    >>> [format_count(n) for n in (125_200_000, 1024, 12, 0.25)]
    ['125M', '1.02k', '12', '0.25']
    """
    if abs(count) < 1000:
        return f"{count:g}" if count == int(count) else three_figures(count)
    scale, prefix = next(p for p in PREFIXES if abs(count) >= p[0])
    return f"{three_figures(count / scale)}{prefix}"


def format_bytes(size_bytes: float) -> str:
    """
    >>> format_bytes(24 * 2**30)
    '24.0 GiB'
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 2**power:
            return f"{three_figures(size_bytes / 2**power)} {unit}"
    return f"{size_bytes:.0f} B"


def format_interval(estimate: Estimate) -> str:
    """How far the interval reaches, relative to the value.

    >>> format_interval(Estimate(value=100.0, low=99.0, high=102.0, samples=50))
    '±2.0 %'
    """
    width = estimate.half_width
    return "±?" if width is None else f"±{100 * width:.1f} %"


def format_speedup(estimate: Estimate) -> str:
    """
    >>> format_speedup(Estimate(value=1.723, low=1.69, high=1.75, samples=50))
    '1.72x [1.69, 1.75]'
    """
    if estimate.low is None or estimate.high is None:
        return f"{three_figures(estimate.value)}x [?]"
    low, high = three_figures(estimate.low), three_figures(estimate.high)
    return f"{three_figures(estimate.value)}x [{low}, {high}]"


def format_change(ratio: Estimate) -> str:
    """How much more than 1, in percent.

    >>> format_change(Estimate(value=1.004, low=0.998, high=1.011, samples=50))
    '+0.4 % [−0.2, 1.1]'
    >>> format_change(Estimate(value=0.98, low=None, high=None, samples=3))
    '−2.0 % [?]'
    """

    def percent(value: float, sign: str = "-") -> str:
        # Adding 0 makes a rounded -0.0 a plain zero.
        return f"{round(100 * (value - 1), 1) + 0:{sign}.1f}".replace("-", "−")

    if ratio.low is None or ratio.high is None:
        return f"{percent(ratio.value, '+')} % [?]"
    return f"{percent(ratio.value, '+')} % [{percent(ratio.low)}, {percent(ratio.high)}]"


def format_ratio(ratio: float | None) -> str:
    """
    >>> format_ratio(2)
    '2.00x'
    """
    return "" if ratio is None else f"{three_figures(ratio)}x"


def three_figures(value: float) -> str:
    """
    >>> [three_figures(v) for v in (0.01234, 0.1234, 1.234, 12.34, 123.4, 1234.0)]
    ['0.012', '0.12', '1.23', '12.3', '123', '1234']
    """
    magnitude = abs(value)
    decimals = (
        3 if 0 < magnitude < 0.0995 else 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    )
    return f"{value:.{decimals}f}"


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "case"), plural(3, "case")
    ('1 case', '3 cases')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
