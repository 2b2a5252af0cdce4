"""Findings in sentences, and that no verdict is left without its words."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import pytest

from flopwatch.analysis.statistics import THRESHOLD, Verdict
from flopwatch.analysis.summary import summarize
from flopwatch.output import case_tables, compare_tables, headlines, tables
from tests.cli.test_judge import make_slight


@pytest.mark.parametrize(
    "known",
    [
        case_tables.TAKES,
        [*case_tables.BELOW, "faster"],
        compare_tables.ORDER,
        headlines.VERDICTS,
        tables.VERDICT_STYLES,
    ],
)
def test_every_verdict_has_its_words(known: Collection[str]) -> None:
    assert set(known) == set(get_args(Verdict))


def test_a_slight_difference_is_said_to_be_below_the_threshold() -> None:
    slight = make_slight(1 + 0.7 * THRESHOLD, 0.5 * THRESHOLD)
    found = headlines.describe_suite(summarize(slight))
    words = f"below the threshold of {100 * THRESHOLD:g} %"
    assert [s for s in found if s.startswith("other is slightly slower than dense") and words in s]
