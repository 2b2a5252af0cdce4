"""Kinds of devices by torch's names for them (`torch.device(...).type`), and what everybody who
does not import torch must know of each.

Code outside `devices/` asks here what a kind is like, and never compares a name: an accelerator
that this file has not heard of, such as one that a package brings, is treated like the others.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    name: str
    label: str
    """As people write it."""
    unit: str
    """What a rank has one of, or several: they share the cores of a host."""
    can_fork: bool
    """Whether a process that has used it may fork; else workers are started afresh."""
    usual_dtype: str
    """What people train in on it."""
    usual_precision: str

    @property
    def is_host(self) -> bool:
        """Whether work is done when its call returns, in the memory of the process."""
        return self.name == HOST


def _accelerator(name: str, label: str, unit: str = "GPU") -> Kind:
    return Kind(
        name=name,
        label=label,
        unit=unit,
        can_fork=False,
        usual_dtype="bfloat16",
        usual_precision="bf16-mixed",
    )


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name=HOST,
            label="CPU",
            unit="core",
            can_fork=True,
            usual_dtype="float32",
            usual_precision="fp32",
        ),
        _accelerator("cuda", "CUDA"),
        _accelerator("xpu", "XPU"),
        _accelerator("mps", "MPS"),
    )
}


def find_kind(name: str) -> Kind:
    """
    >>> find_kind("cpu").is_host, find_kind("cuda").label, find_kind("npu").unit
    (True, 'CUDA', 'device')
    """
    return KINDS.get(name) or _accelerator(name, name.upper(), "device")


def is_host(name: str) -> bool:
    return find_kind(name).is_host
