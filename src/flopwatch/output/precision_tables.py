"""Tables of what short numbers do, with what is to be learnt from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.worker.precision_study import ADDEND, RECIPES, TIMES, Cast, Observed, Sum

LESSONS = dict(
    zip(
        RECIPES,
        (
            "Even float32 rounds 0.01 and every partial sum; the errors stay in the sixth digit.",
            "All in float16, a sum above 8 moves in steps of 1/128, so that each 0.01 is added as "
            "less: the sum must be wider than the numbers.",
            "With a float32 sum no addition rounds any more; what is left is that 0.01 was rounded "
            "to float16 once, a thousand times the same error.",
            "Casting each number first changes no bit: torch does it anyway, and no cast brings "
            "back what rounding took.",
        ),
        strict=True,
    )
)


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]


def lay_out(observed: Observed) -> list[Table]:
    return [_lay_out_sums(observed.sums), _lay_out_casts(observed)]


def _lay_out_sums(sums: Sequence[Sum]) -> Table:
    return Table(
        title=f"{ADDEND} added {TIMES} times; without rounding, {TIMES * ADDEND:g}",
        columns=[
            *("", "sum", "number", "cast first"),
            *("as torch prints it", "exactly", "bits", "error"),
        ],
        rows=[
            [
                str(position),
                made.recipe.sum_dtype,
                made.recipe.number_dtype,
                "yes" if made.recipe.is_cast else "no",
                made.shown,
                made.exact,
                made.bits,
                f"{made.error:+.3g}",
            ]
            for position, made in enumerate(sums, start=1)
        ],
        remarks=[
            f"{position}. {LESSONS[made.recipe]}" for position, made in enumerate(sums, start=1)
        ],
    )


def _lay_out_casts(observed: Observed) -> Table:
    """Parts of the model down, autocast across."""
    casts = observed.casts
    return Table(
        title=f"linear, ReLU, layer norm, linear, cross-entropy on {observed.device}, by autocast",
        columns=["", *(cast.autocast for cast in casts)],
        rows=[[part, *(cast.dtypes[part] for cast in casts)] for part in casts[0].dtypes],
        remarks=[_tell_what_stays(casts), _tell_of_norm(observed)],
    )


def _tell_what_stays(casts: Sequence[Cast]) -> str:
    first = casts[0].dtypes
    same = [part for part in first if all(cast.dtypes[part] == first[part] for cast in casts)]
    return f"The same with and without autocast: {', '.join(same) or 'none of these'}."


def _tell_of_norm(observed: Observed) -> str:
    """The one layer that devices treat differently."""
    shown = {cast.dtypes["norm's output"] for cast in observed.casts if cast.autocast != "off"}
    if shown == {"float32"}:
        return f"On {observed.device}, autocast computes the layer norm in float32."
    return (
        f"On {observed.device}, autocast leaves the layer norm in the dtype that it is given. This "
        "depends on the device: run it where you train."
    )
