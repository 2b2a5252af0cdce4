"""Numbers as people read and write them: a unit, and as many figures as their interval supports, or
three where that is not known.

And texts as a terminal may see them: a record may come from anybody, and what would move a
terminal's cursor, change its colours or turn the order of what stands around it is no part of a
name.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from textwrap import wrap

from flopwatch.analysis.statistics import Estimate
from flopwatch.errors import UsageError

TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
FIGURES = ((0.001, 4), (0.1, 3))
"""How many significant figures a half width below the first number supports."""
FEWEST_FIGURES = 2
TOO_NOISY = 1.0
"""A half width beyond this says no more than that the value is not known."""
NOISY_RANGE = 4.0
"""And a ratio whose interval holds 1, and reaches over this factor, says nothing either."""
NO_WIDTH = 1e-6
"""A narrower interval is one of equal samples, and says nothing of how exact they are."""


def count_figures(estimate: Estimate) -> int | None:
    """How many significant figures its interval supports; None where that is not known.

    >>> def of(half_width):
    ...     return Estimate(value=1.0, low=1 - half_width, high=1 + half_width, samples=50)
    >>> [count_figures(of(half_width)) for half_width in (0.0005, 0.03, 0.2, 0.9, 0)]
    [4, 3, 2, 2, None]
    >>> count_figures(Estimate(value=1.0, low=None, high=None, samples=3))
    """
    width = estimate.half_width
    if width is None or width < NO_WIDTH:
        return None
    return next((figures for below, figures in FIGURES if width < below), FEWEST_FIGURES)


def format_figures(value: float, figures: int | None = None) -> str:
    """
    >>> [format_figures(1.7234, figures) for figures in (2, 3, 4, None)]
    ['1.7', '1.72', '1.723', '1.72']
    >>> [format_figures(value, 2) for value in (0.0, 0.0456, 0.997, 9.96, 543, 1234)]
    ['0.0', '0.046', '1.0', '10', '540', '1200']

    Zeros at the front count, down to two figures: ratios below 1 are no finer than those above.

    >>> [format_figures(value, 3) for value in (0.0456, 0.3412, 0.997, 9.996, 1234)]
    ['0.046', '0.34', '1.00', '10.0', '1230']
    """
    if figures is None:
        return three_figures(value)
    # In this notation a number is rounded before its magnitude is read: 9.96 is 1.0e+01.
    exponent = int(f"{value:.{figures - 1}e}".partition("e")[2])
    decimals = max(FEWEST_FIGURES - 1 - exponent, figures - 1 - max(exponent, 0))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


def format_time(time_ns: float, figures: int | None = None) -> str:
    """
    >>> [format_time(t) for t in (0.42, 1500, 2.5e6, 61.2e9)]
    ['0.42 ns', '1.50 µs', '2.50 ms', '61.2 s']
    >>> format_time(996e3, 2)
    '1.0 ms'
    """
    rounded_ns = time_ns if figures is None else float(f"{time_ns:.{figures - 1}e}")
    scale, unit = next((u for u in TIME_UNITS if rounded_ns >= u[0]), TIME_UNITS[-1])
    return f"{format_figures(time_ns / scale, figures)} {unit}"


def format_measured_time(estimate_ns: Estimate | None) -> str:
    """
    >>> format_measured_time(Estimate(value=1.7234e6, low=1.7e6, high=1.77e6, samples=50))
    '1.72 ms'
    >>> format_measured_time(Estimate(value=1.7234e6, low=1.4e6, high=2e6, samples=50))
    '1.7 ms'
    >>> format_measured_time(Estimate(value=1.7234e6, low=1.7226e6, high=1.7242e6, samples=50))
    '1.723 ms'
    """
    return "" if estimate_ns is None else format_time(estimate_ns.value, count_figures(estimate_ns))


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


def format_interval(estimate: Estimate, *, is_cell: bool = False) -> str:
    """How far the interval reaches, relative to the value; words where no number would help, which
    are fewer in the cell of a table.

    >>> format_interval(Estimate(value=100.0, low=99.0, high=102.0, samples=50))
    '±2.0 %'
    >>> few = Estimate(value=100.0, low=None, high=None, samples=3)
    >>> format_interval(few), format_interval(few, is_cell=True)
    ('too few samples', 'few samples')
    """
    known, missing = format_half_width(estimate.half_width), name_no_interval(estimate)
    return known or (missing if is_cell else missing.replace("few", "too few"))


def format_half_width(half_width: float | None) -> str:
    """Empty where it is not known.

    >>> [format_half_width(width) for width in (0.02, 1552.6, None)]
    ['±2.0 %', 'too noisy', '']
    """
    if half_width is None:
        return ""
    return "too noisy" if half_width > TOO_NOISY else f"±{100 * half_width:.1f} %"


def name_no_interval(estimate: Estimate) -> str:
    """Why it has none that is relative to its value: of zero, which only a clock that is too coarse
    gives, nothing is.

    >>> [name_no_interval(Estimate(value=0.0, low=low, high=low, samples=samples))
    ...  for low, samples in ((None, 1), (None, 5), (0.0, 50))]
    ['single value', 'few samples', 'too short']
    """
    if estimate.low is not None:
        return "too short"
    return "single value" if estimate.samples == 1 else "few samples"


def is_too_noisy(ratio: Estimate) -> bool:
    """Whether a ratio may be as well half as double.

    >>> [is_too_noisy(Estimate(value=1.1, low=low, high=high, samples=9))
    ...  for low, high in ((0.2, 17.0), (0.9, 1.3), (2.0, 9.0))]
    [True, False, False]
    """
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low < 1 < ratio.high and ratio.high > NOISY_RANGE * ratio.low


def format_speedup(estimate: Estimate) -> str:
    """The ends of the interval have three figures at least: they say on which side of 1 it lies.

    >>> format_speedup(Estimate(value=1.723, low=1.69, high=1.75, samples=50))
    '1.72x [1.69, 1.75]'
    >>> format_speedup(Estimate(value=1.13, low=0.96, high=1.3, samples=50))
    '1.1x [0.96, 1.30]'
    >>> format_speedup(Estimate(value=1.91, low=None, high=None, samples=3))
    '1.91x [few samples]'
    >>> format_speedup(Estimate(value=1.1, low=0.056, high=17.0, samples=9))
    '1.1x [too noisy]'
    """
    if estimate.low is None or estimate.high is None:
        return f"{format_measured_ratio(estimate)} [{name_no_interval(estimate)}]"
    if is_too_noisy(estimate):
        return f"{format_measured_ratio(estimate)} [too noisy]"
    of_ends = 4 if count_figures(estimate) == 4 else None
    ends = (format_figures(end, of_ends) for end in (estimate.low, estimate.high))
    return f"{format_measured_ratio(estimate)} [{', '.join(ends)}]"


def format_measured_ratio(estimate: Estimate) -> str:
    """
    >>> format_measured_ratio(Estimate(value=1.723, low=1.5, high=2.0, samples=50))
    '1.7x'
    """
    return f"{format_figures(estimate.value, count_figures(estimate))}x"


def format_change(ratio: Estimate) -> str:
    """How much more than 1, in percent.

    >>> format_change(Estimate(value=1.004, low=0.998, high=1.011, samples=50))
    '+0.4 % [−0.2, 1.1]'
    >>> format_change(Estimate(value=0.98, low=None, high=None, samples=3))
    '−2.0 % [few samples]'
    >>> format_change(Estimate(value=1.116, low=0.073, high=17.1, samples=9))
    '+11.6 % [too noisy]'
    """
    ends = "too noisy" if is_too_noisy(ratio) else name_no_interval(ratio)
    if ratio.low is not None and ratio.high is not None and not is_too_noisy(ratio):
        ends = ", ".join(format_signed(100 * (e - 1), 1, "-") for e in (ratio.low, ratio.high))
    return f"{format_signed(100 * (ratio.value - 1))} % [{ends}]"


def format_slight_change(speedup: Estimate, threshold: float) -> str:
    """Of a "slightly faster" or "slightly slower" one: its size, which is below the threshold.

    >>> format_slight_change(Estimate(value=1.024, low=1.008, high=1.041, samples=50), 0.03)
    '2.4 % faster (0.8 to 4.1 %), below the threshold of 3 %'
    """
    word, more = ("faster", speedup) if speedup.value > 1 else ("slower", speedup.inverse())
    low, high = (f"{100 * ((end or more.value) - 1):.1f}" for end in (more.low, more.high))
    size = f"{100 * (more.value - 1):.1f} % {word} ({low} to {high} %)"
    return f"{size}, below the threshold of {100 * threshold:g} %"


def format_signed(value: float, decimals: int = 1, sign: str = "+") -> str:
    """With a typographic minus; with `sign="-"`, without a plus.

    >>> [format_signed(v) for v in (0.42, -0.42, -0.001)], format_signed(3, 0, "-")
    (['+0.4', '−0.4', '+0.0'], '3')
    """
    # Adding 0 makes a rounded -0.0 a plain zero.
    return f"{round(value, decimals) + 0:{sign}.{decimals}f}".replace("-", "−")


def format_signed_share(share: float | None, decimals: int = 1, sign: str = "+") -> str:
    """
    >>> format_signed_share(-0.123), format_signed_share(0.64, 0, "-"), format_signed_share(None)
    ('−12.3 %', '64 %', '')
    """
    return "" if share is None else f"{format_signed(100 * share, decimals, sign)} %"


ROUNDING_NS = 1e-3
"""Less is what sums of times are rounded by."""


def format_signed_time(time_ns: float | None, plus: str = "") -> str:
    """
    >>> [format_signed_time(time_ns) for time_ns in (2.5e6, -2.5e6, -1e-9, None)]
    ['2.50 ms', '−2.50 ms', '0', '']
    """
    if time_ns is None:
        return ""
    if abs(time_ns) < ROUNDING_NS:
        return "0"
    return f"{'−' if time_ns < 0 else plus}{format_time(abs(time_ns))}"


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


def format_share(share: float | None) -> str:
    """
    >>> format_share(0.0415), format_share(None)
    ('4.2 %', '')
    """
    return "" if share is None else f"{100 * share:.1f} %"


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "case"), plural(3, "case")
    ('1 case', '3 cases')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Controls of the direction of writing: a name with one of them shows as another."""

CONTROLS = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{TURNS}]")
CONTROLS_OF_LINES = re.compile(rf"(?!\n|\t){CONTROLS.pattern}")
INDENT = "  "


def printable(text: str) -> str:
    """Without what would move a terminal's cursor, turn its text, or end a line of a table.

    >>> printable("a\\x1b[2Jb\\nc\\u202ed")
    'a [2Jb c d'
    """
    return CONTROLS.sub(" ", text)


def printable_lines(text: str) -> str:
    """The same of a text that has lines, and perhaps tabs.

    >>> printable_lines("a\\x1b[2J\\nb\\r")
    'a [2J\\nb '
    """
    return CONTROLS_OF_LINES.sub(" ", text)


def escape_html(text: str) -> str:
    """For a page: no markup, and nothing that turns the words around it.

    >>> escape_html("<b>\\u202e")
    '&lt;b&gt; '
    """
    return html.escape(printable_lines(text))


def wrap_remarks(remarks: Sequence[str], width: int | None) -> list[str]:
    """Sentences below a table, indented; None: each on one line, however long.

    >>> wrap_remarks(["a remark of some words"], 20)
    ['  a remark of some', '  words']
    """
    if width is None:
        return [f"{INDENT}{printable(remark)}" for remark in remarks]
    return [line for remark in remarks for line in _wrap(printable(remark), width)]


def _wrap(text: str, width: int) -> list[str]:
    # A name or a command that is broken in two is of no use to anybody.
    return wrap(
        text,
        max(width, 20),
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


UNITS_S = {"ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600}
LARGEST_BYTES = 2**60
UNITS_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``1.5m``, ``500ms``, ``2h``.

    >>> parse_duration("1.5m")
    90.0
    """
    seconds = _parse_amount(text, r"([a-z]*)", UNITS_S, "s")
    if seconds is None:
        raise UsageError(f"{text!r} is not a duration; write for example 90s, 10m or 2h")
    if not 0 < seconds < math.inf:
        raise UsageError(f"a duration must be longer than nothing; {text!r} is not")
    return seconds


def _parse_amount(text: str, unit: str, units: Mapping[str, float], usual: str) -> float | None:
    """None where it is no number with one of the units; `unit` is their pattern."""
    match = re.fullmatch(rf"\s*([0-9.]+)\s*{unit}\s*", text.lower())
    try:
        return float(match[1]) * units[match[2] or usual] if match else None
    except (ValueError, KeyError):
        return None


def parse_percentage(text: str) -> float:
    """The share that ``2%`` or ``2`` stands for.

    >>> parse_percentage("2%")
    0.02
    """
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(f"{text!r} is not a percentage between 0 and 100; write for example 2%")
    return share


def parse_bytes(text: str) -> int:
    """Bytes of ``8G``, ``8GiB``, ``512M``.

    >>> parse_bytes("8G") == 8 * 2**30
    True
    """
    size = _parse_amount(text, r"([bkmgt]?)(?:i?b)?", UNITS_BYTES, "b")
    if size is None:
        raise UsageError(f"{text!r} is not a size; write for example 8G or 512M")
    if not 1 <= size <= LARGEST_BYTES:
        raise UsageError(
            f"a size must be more than nothing and at most {LARGEST_BYTES / 2**40:g}T; "
            f"{text!r:.60} is not"
        )
    return int(size)


def format_duration(seconds: float) -> str:
    """
    >>> [format_duration(s) for s in (0.5, 42, 90, 5400)]
    ['0.5s', '42s', '1m30s', '1h30m']
    """
    if seconds < 10:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    hours, rest = divmod(whole // 60, 60)
    return f"{hours}h{rest}m" if rest else f"{hours}h"


ROUGH_STEPS_S = ((3 * 3600, 1800), (3600, 600), (600, 60), (120, 10), (30, 5), (0, 1))
"""From so many seconds on, an estimate is rounded to these."""


def format_range(low_s: float, high_s: float) -> str:
    """An estimate, rounded to what it can mean.

    >>> format_range(5.4, 20.2), format_range(4800, 10805), format_range(9.8, 10.2)
    ('about 5 to 20 s', 'about 1h20m to 3h', 'about 10 s')
    >>> format_range(187, 187), format_range(97, 187), format_range(40, 97)
    ('about 3m10s', 'about 1m35s to 3m10s', 'about 40s to 1m35s')
    """
    low_s, high_s = (round_duration(max(end_s, 1.0)) for end_s in (low_s, high_s))
    if high_s < 60:
        return f"about {high_s} s" if low_s == high_s else f"about {low_s} to {high_s} s"
    low, high = format_duration(low_s), format_duration(high_s)
    return f"about {high}" if low == high else f"about {low} to {high}"


def round_duration(seconds: float) -> int:
    step_s = next(step_s for from_s, step_s in ROUGH_STEPS_S if seconds >= from_s)
    return step_s * round(seconds / step_s)
