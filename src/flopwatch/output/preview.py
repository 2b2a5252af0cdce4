"""What a run would do, told before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwatch.runner.schedule import format_filters

if TYPE_CHECKING:
    from flopwatch.runner.session import Preview


def list_groups(preview: Preview) -> list[str]:
    lines = []
    for group in preview.groups:
        lines.append(f"{group.label}: {', '.join(group.variants)}")
        alike: dict[str, list[str]] = {}
        for variant, skip in preview.misfits.get(group.id, {}).items():
            alike.setdefault(skip.reason, []).append(variant)
        lines += [f"  {', '.join(who)}: skipped, {reason}" for reason, who in alike.items()]
    return lines


def list_remarks(preview: Preview) -> list[str]:
    """How long it would take, and what else there is to measure."""
    remarks = [f"{preview.estimate}; less what the results file already answers"]
    if preview.on_request:
        remarks.append(f"on request: {format_filters(preview.on_request)}")
    if preview.presets:
        remarks.append(f"other grids: --grid {', '.join(preview.presets)}")
    return remarks


def as_dict(preview: Preview) -> dict[str, Any]:
    """For ``--json``: plain numbers with units in their names."""
    return {
        "cases": [
            {
                "params": group.params,
                "variant": variant,
                "memory_bytes": group.memory.get(variant, {}),
                "misfit": None if skip is None else skip.reason,
            }
            for group in preview.groups
            for variant in group.variants
            for skip in [preview.misfits.get(group.id, {}).get(variant)]
        ],
        "shortest_s": preview.estimate.shortest_s,
        "longest_s": preview.estimate.longest_s,
        "flops_per_s": preview.estimate.rates,
        "on_request": preview.on_request,
        "grids": preview.presets,
    }
