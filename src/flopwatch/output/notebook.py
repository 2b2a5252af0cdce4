"""How results look in a notebook: the answer in bold, a table, what it rests on.

Colours are those of the notebook, which may be dark; only bars have one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from flopwatch.output.units import format_bytes, format_share, format_time

if TYPE_CHECKING:
    from flopwatch.prediction.plans import Plan
    from flopwatch.prediction.predictions import Prediction

BAR = "#4c78a8"


def render(
    answer: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str] = (),
    shares: Sequence[float] = (),
) -> str:
    """HTML. Cells whose heading begins with ``<`` are text, to the left; the others are numbers, to
    the right. `shares` draws a bar at the end of each row.

    >>> render("It is <fast>", ["<name", "time"], [["a", "1 s"]]).count("&lt;fast&gt;")
    1
    """
    styles = [
        f'style="text-align:{"left" if heading.startswith("<") else "right"}"'
        for heading in headings
    ]
    head = "".join(
        f"<th {style}>{escape(heading.removeprefix('<'))}</th>"
        for style, heading in zip(styles, headings, strict=True)
    )
    bars = [_draw_bar(share) for share in shares] or [""] * len(rows)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td {style}>{escape(cell)}</td>" for style, cell in zip(styles, row, strict=True)
        )
        + f"{bar}</tr>"
        for row, bar in zip(rows, bars, strict=True)
    )
    filler = "<th></th>" if shares else ""
    said = "<br>".join(escape(remark) for remark in remarks)
    return (
        f"<p><b>{escape(answer)}</b></p><table><thead><tr>{head}{filler}</tr></thead>"
        f"<tbody>{body}</tbody></table><p><small>{said}</small></p>"
    )


def render_prediction(prediction: Prediction) -> str:
    answer, job = str(prediction).splitlines()[:2]
    parts, step_s = prediction.list_parts(), prediction.cost.step_s
    gains = [max(0.0, part.time_s - part.ideal_s) / step_s for part in parts]
    return render(
        answer,
        ["<part of the step", "time", "share", "could gain", "<bound by"],
        [
            [
                part.name,
                format_time(1e9 * part.time_s),
                format_share(part.time_s / step_s),
                format_share(gain),
                part.bound,
            ]
            for part, gain in zip(parts, gains, strict=True)
        ],
        [job, *(f"warning: {warning}" for warning in prediction.warnings)],
        [part.time_s / step_s for part in parts],
    )


def render_plan(plan: Plan) -> str:
    from flopwatch.prediction.plans import describe_choice, format_days

    best = plan.best[0]
    days = format_days(plan.find_time_s(best))
    answer = (
        f"{plan.job.name} on {plan.job.ranks} x {plan.machine.name}: {describe_choice(best.job)}: "
        f"{best.tokens_per_s:,.0f} tokens/s, {days} days"
    )
    headings = ["<configuration", "grad-accum", "tokens/s", "90 % interval"]
    headings += ["MFU", "memory", "days", "GPU-hours", *(["cost"] if plan.price else [])]
    others = [f"not {each.axis} {each.value}: {each.reason}" for each in plan.losers]
    return render(
        answer,
        headings,
        [_list_cells(plan, each) for each in plan.best],
        [
            f"seq_len {plan.job.seq_len:,}, {plan.train_tokens:,.0f} tokens in all; {plan.fitting} "
            f"of {plan.tried} configurations fit",
            *([plan.remark] if plan.remark else []),
            *others,
        ],
    )


def _list_cells(plan: Plan, prediction: Prediction) -> list[str]:
    from flopwatch.prediction.plans import describe_choice, format_days

    job, cost = prediction.job, plan.find_cost(prediction)
    return [
        describe_choice(job),
        str(job.grad_accum),
        f"{prediction.tokens_per_s:,.0f}",
        f"{prediction.low:,.0f} to {prediction.high:,.0f}",
        format_share(prediction.utilisation.mfu),
        format_bytes(prediction.memory.total_bytes),
        format_days(plan.find_time_s(prediction)),
        f"{plan.find_device_hours(prediction):,.0f}",
        *([] if cost is None else [f"{cost:,.0f}"]),
    ]


def _draw_bar(share: float) -> str:
    width = round(100 * min(max(share, 0.0), 1.0), 1)
    return (
        '<td style="width:8em"><div role="presentation" '
        f'style="width:{width}%;min-width:1px;height:0.7em;background:{BAR}"></div></td>'
    )
