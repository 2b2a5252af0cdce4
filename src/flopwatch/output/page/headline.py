"""The headline of a suite: the answer in a sentence, and the few numbers that it rests on, each
with its verdict and its uncertainty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.statistics import Verdict
from flopwatch.analysis.summary import Row, is_foreign
from flopwatch.output.answers import answer_suite
from flopwatch.output.columns import NOT_COMPARABLE
from flopwatch.output.headlines import find_speedup, has_interval, rank_variants
from flopwatch.output.units import (
    escape_html,
    format_count,
    format_interval,
    format_ratio,
    format_share,
    format_speedup,
    format_time,
    plural,
)

MOST_TILES = 4
UNKNOWN = "unknown"
"""The tone of what has no interval."""
TONES: dict[Verdict | None, str] = {
    "faster": "faster",
    "slightly faster": "faster",
    "slower": "slower",
    "slightly slower": "slower",
    "same": "same",
    "unclear": "unclear",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One number, large."""

    label: str
    value: str
    detail: str
    """Its uncertainty."""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Rival:
    """A variant with all its cases over one baseline."""

    rows: Sequence[Row]

    @property
    def name(self) -> str:
        return self.rows[0].record.variant

    @property
    def baseline(self) -> str:
        return self.rows[0].record.baseline

    @property
    def judged(self) -> list[Row]:
        return [row for row in self.rows if has_interval(row)]

    @property
    def tone(self) -> str:
        """One word for all cases; unknown where there are no intervals, mixed where they differ."""
        known = {id(row) for row in self.judged}
        tones = {TONES.get(row.verdict, "") if id(row) in known else UNKNOWN for row in self.rows}
        if len(tones) == 1:
            return tones.pop()
        return "unclear" if tones == {"unclear", UNKNOWN} else "mixed"

    @property
    def span(self) -> str:
        low, high = min(map(find_speedup, self.rows)), max(map(find_speedup, self.rows))
        ends = list(dict.fromkeys([format_ratio(low), format_ratio(high)]))
        return ends[0] if len(ends) == 1 else f"{ends[0].removesuffix('x')}–{ends[1]}"

    def describe_verdicts(self) -> str:
        total = len(self.rows)
        if not self.judged:
            return f"{plural(total, 'case')}, no interval known"
        if total == 1:
            speedup = self.rows[0].speedup
            assert speedup is not None
            ends = format_speedup(speedup).partition(" ")[2]
            return f"{self.rows[0].verdict}, 99 % interval {ends}"
        counts = Counter(row.verdict for row in self.judged)
        counted = [f"{verdict} in {number}" for verdict, number in counts.most_common()]
        left = total - len(self.judged)
        counted += [f"no interval in {left}"] if left else []
        return f"{', '.join(counted)} of {plural(total, 'case')}"


def choose_own(rows: Sequence[Row]) -> Sequence[Row]:
    """Your own results where there are any, otherwise those of others."""
    return [row for row in rows if not is_foreign(row.record)] or rows


def list_tiles(rows: Sequence[Row]) -> list[Tile]:
    own = choose_own(rows)
    tiles = [
        Tile(
            label=f"{rival.name} over {rival.baseline}",
            value=rival.span,
            detail=rival.describe_verdicts()
            + (f"; {NOT_COMPARABLE}" if rival.rows[0].differences else ""),
            tone=rival.tone,
        )
        for rival in map(Rival, rank_variants(own))
    ]
    rates = _list_rates(own)
    tiles = [*tiles[: MOST_TILES - len(rates)], *rates]
    return tiles or _list_times(own)


def _list_rates(rows: Sequence[Row]) -> list[Tile]:
    """The highest throughput and MFU of training steps."""
    tiles = []
    known = [(row.tokens_per_s, row) for row in rows if row.tokens_per_s and not row.in_parts]
    if known:
        rate, row = max(known, key=lambda each: each[0])
        tiles.append(_make_rate("highest throughput", f"{format_count(rate)} tokens/s", row))
    used = [(row.utilisation.mfu, row) for row in rows if row.utilisation and row.utilisation.mfu]
    if used:
        mfu, row = max(used, key=lambda each: each[0])
        tiles.append(_make_rate("highest MFU", format_share(mfu), row))
    return tiles


def _make_rate(label: str, value: str, row: Row) -> Tile:
    interval = format_interval(row.total_ns) if row.total_ns else ""
    return Tile(label=label, value=value, detail=f"{interval}, by {row.record.variant}")


def _list_times(rows: Sequence[Row]) -> list[Tile]:
    timed = [(row.total_ns.value, row) for row in rows if row.total_ns is not None]
    if not timed:
        return []
    time_ns, row = min(timed, key=lambda each: each[0])
    return [_make_rate("shortest time", format_time(time_ns), row)]


def render_tiles(tiles: Sequence[Tile]) -> str:
    rendered = "".join(
        f'<li class="tile {tile.tone}"><span class="label">{escape_html(tile.label)}</span> '
        f'<span class="value">{escape_html(tile.value)}</span> '
        f'<span class="detail">{escape_html(tile.detail)}</span></li>'
        for tile in tiles
    )
    return f'<ul class="tiles">{rendered}</ul>' if rendered else ""


def render_headline(rows: Sequence[Row]) -> str:
    answer = f'<p class="answer">{escape_html(" ".join(answer_suite(choose_own(rows))))}</p>'
    return f"{answer}{render_tiles(list_tiles(rows))}"
