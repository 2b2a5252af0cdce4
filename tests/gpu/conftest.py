"""The accelerator of this machine, and a folder for what is measured on it, which can be sent to
the authors."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwatch.devices.present_accelerators import Accelerators, find_here

RESULTS = Path(__file__).parents[2] / "results" / "gpu"


@pytest.fixture(scope="session")
def accelerators() -> Accelerators:
    found = find_here()
    if found.device is None:
        pytest.skip(f"no accelerator here: {found.problem or 'torch finds none'}")
    return found


@pytest.fixture
def device(accelerators: Accelerators) -> str:
    assert accelerators.device is not None
    return accelerators.device


@pytest.fixture
def results() -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    return RESULTS
