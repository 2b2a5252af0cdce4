"""The hardware of a table's row: devices as people write them, nodes and networks as they were."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from flopwatch.devices.device_names import describe_unknown, find_devices
from flopwatch.errors import UsageError
from flopwatch.prediction.hardware import (
    GIGABIT,
    Machine,
    describe_device,
    limit_power,
    split_power,
)


def find_row_machine(cells: Mapping[str, str], network_gbit: float | None = None) -> Machine:
    """`network_gbit` counts where the row does not say."""
    own = _read_number(cells, "network_gbit")
    return _find_machine(
        cells.get("gpu_type", ""), _read_number(cells, "gpus_per_node"), own or network_gbit
    )


@lru_cache(maxsize=256)
def _find_machine(text: str, per_node: float | None, network_gbit: float | None) -> Machine:
    name, power_w = split_power(text)
    for candidate in _list_names(name):
        devices = [each for each in find_devices(candidate) if each.bandwidth_gb_per_s]
        if devices:
            break
    else:
        raise UsageError(describe_unknown(name))
    # Where a name is that of several, the largest: all jobs of a table fitted.
    first = devices[0]
    alike = [each for each in devices if each.rates == first.rates and each.link == first.link]
    device = max(alike, key=lambda each: each.memory_gb.value if each.memory_gb else 0.0)
    machine = describe_device(device)
    if power_w is not None:
        machine = limit_power(machine, power_w)
    if per_node is not None:
        machine = replace(machine, per_node=max(1, int(per_node)))
    if network_gbit is not None:
        machine = replace(machine, network_bytes_per_s=network_gbit * GIGABIT)
    return machine


def _list_names(name: str) -> Iterator[str]:
    """As written, and with fewer and fewer words: h100_sxm5_80gb_hbm3 is an H100-SXM5.

    >>> list(_list_names("gb200_nvl72"))
    ['gb200_nvl72', 'gb200']
    """
    words = [word for word in re.split(r"[\s_-]+", name) if word.lower() != "nvidia"]
    yield name
    for count in range(len(words) - 1, 0, -1):
        yield "-".join(words[:count])


def _read_number(cells: Mapping[str, str], column: str) -> float | None:
    try:
        number = float(cells.get(column) or "nan")
    except ValueError:
        return None
    return number if 0 < number < 1e9 else None
