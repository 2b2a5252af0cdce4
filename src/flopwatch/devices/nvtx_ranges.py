"""Ranges with names on the timeline of NVIDIA's profilers, and AMD's under the same name."""

from __future__ import annotations

from contextlib import AbstractContextManager


def mark_range(name: str) -> AbstractContextManager[object]:
    import torch

    marked: AbstractContextManager[object] = torch.cuda.nvtx.range(name)
    return marked
