"""Tables in a terminal."""

from __future__ import annotations

from flopwatch.output.console import MOST_ROWS, shorten
from flopwatch.output.formats import make_value_sheet


def test_a_long_table_is_cut_with_a_word() -> None:
    short = shorten(make_value_sheet(["n"], [[n] for n in range(3000)]))
    assert sum(map(len, short.items)) == MOST_ROWS
    assert short.remarks == ["the first 1,000 of 3,000 rows; --format csv and --json have all"]
    assert shorten(short) is short
