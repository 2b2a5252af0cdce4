"""Kinds of devices by torch's names for them (`torch.device(...).type`), and what everybody who
does not import torch must know of each.

Code outside `devices/` asks here what a kind is like, and never compares a name: an accelerator
that this file has not heard of, such as one that a package brings, is treated like the others.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = "cpu"
USUAL_ACCELERATOR = "cuda"
"""Of published results, and of hardware that is only known by its data sheet."""


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
    has_tf32: bool = False
    """Whether it can round the operands of float32 matmuls to 10 bits, for speed."""
    has_nvtx: bool = False
    """Whether torch can mark ranges for the profilers of its vendor."""

    @property
    def is_host(self) -> bool:
        """Whether work is done when its call returns, in the memory of the process."""
        return self.name == HOST


def _accelerator(name: str, label: str, unit: str = "GPU", **more: bool) -> Kind:
    return Kind(
        name=name,
        label=label,
        unit=unit,
        can_fork=False,
        usual_dtype="bfloat16",
        usual_precision="bf16-mixed",
        **more,
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
        _accelerator(USUAL_ACCELERATOR, "CUDA", has_tf32=True, has_nvtx=True),
        _accelerator("xpu", "XPU", has_tf32=True),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """What a run has to measure on: what the grids of a suite may depend on."""

    kind: Kind = KINDS[HOST]
    count: int = 1
    """Of this node, one for each rank; a host counts as one, however many ranks share it."""
    name: str | None = None
    """What its driver calls the first one; None: a host, or not known."""
    index: int | None = None
    """Of the only one that is wanted, as in cuda:1."""

    @property
    def are_host(self) -> bool:
        return self.kind.is_host

    def compute_in(self, dtype: str) -> bool:
        """Whether their data sheet has a peak for it; of devices without one that is not known.

        >>> [Devices(name=f"NVIDIA {name}").compute_in("float8") for name in ("H100 PCIe", "A40")]
        [True, False]
        """
        from flopwatch.devices.device_names import find_device

        device = None if self.name is None else find_device(self.name)
        return device is not None and device.find_peak(dtype) is not None
