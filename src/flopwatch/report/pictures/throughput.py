"""Tokens a second, and the share of the peak that they are, over size and context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.report.pictures.axes import SHARE, rate
from flopwatch.report.pictures.curves import Quantity, make_curves
from flopwatch.report.pictures.picture import Picture
from flopwatch.report.units import format_rate

THROUGHPUT = "throughput"
MFU = "mfu"
EXACT = "MFU"
PEAKS = {"nominal": "Share of the peak", "measured": "Share of the measured peak"}


def find_throughput(row: Row) -> Estimate | None:
    """With the interval of the time that it comes from."""
    return None if row.tokens_per_s is None else _scale(row, row.tokens_per_s)


def make_throughput(rows: Sequence[Row]) -> Iterator[Picture]:
    yield from make_curves(
        rows,
        Quantity(
            name=THROUGHPUT,
            title="Throughput",
            label="throughput",
            unit=rate("tokens/s"),
            caption="Tokens of a step, of all ranks, over its median time.",
            find=find_throughput,
            show=lambda value: format_rate(value, "tokens/s"),
        ),
    )


def make_mfu(rows: Sequence[Row]) -> Iterator[Picture]:
    """MFU where there are training jobs; for others, what part of the peak their FLOPs reach."""
    name = _choose_share(rows)
    if name is None:
        return
    caption = {
        EXACT: "Model FLOPs over the peak, by the convention exact.",
        PEAKS["nominal"]: "FLOPs as the suite declares them, over the device's nominal peak.",
        PEAKS["measured"]: "FLOPs as the suite declares them, over the peak measured here.",
    }[name]
    yield from make_curves(
        rows,
        Quantity(
            name=MFU,
            title=name,
            label=name[0].lower() + name[1:] if name != EXACT else name,
            unit=SHARE,
            caption=caption,
            find=lambda row: _find_share(row, name),
            show=lambda value: f"{100 * value:.1f} %",
        ),
    )


def _choose_share(rows: Sequence[Row]) -> str | None:
    """The first that any row has."""
    names = (EXACT, *PEAKS.values())
    return next((n for n in names if any(_find_share(row, n) is not None for row in rows)), None)


def _find_share(row: Row, name: str) -> Estimate | None:
    if name == EXACT:
        share = None if row.utilisation is None else row.utilisation.mfu
    else:
        found = [share for standard, share in row.of_peak.items() if PEAKS[standard] == name]
        share = found[0].share if found else None
    return None if share is None else _scale(row, share)


def _scale(row: Row, value: float) -> Estimate:
    """A rate, with the interval of the time that it comes from."""
    total_ns = row.total_ns
    assert total_ns is not None
    low, high = total_ns.high, total_ns.low
    return Estimate(
        value=value,
        low=value * total_ns.value / low if low else None,
        high=value * total_ns.value / high if high else None,
        samples=total_ns.samples,
    )
