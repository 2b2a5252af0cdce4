"""Models on the device of another package, where torch makes new parameters when it moves one."""

from __future__ import annotations

from typing import Any

import pytest

from flopwatch.models.builder import put_on
from tests.accelerator.conftest import OnDevice

pytestmark = pytest.mark.xdist_group("accelerator")


def move_tied_model() -> dict[str, Any]:
    from torch import nn

    model = nn.ModuleDict(
        {"in": nn.Embedding(4, 3), "block": nn.Linear(3, 3), "out": nn.Linear(3, 4)}
    )
    model["out"].weight = model["in"].weight
    model["block"].register_buffer("table", model["in"].weight.detach().clone())
    model["out"].bias.requires_grad_(False)
    put_on("flop", model, left=[model["block"]])
    left = str(model["block"].weight.device)
    put_on("flop", model)
    return {
        "left": left,
        "devices": sorted({str(t.device) for t in [*model.parameters(), *model.buffers()]}),
        "tied": model["out"].weight is model["in"].weight,
        "frozen": not model["out"].bias.requires_grad,
    }


def test_parameters_that_modules_share_stay_shared(on_device: OnDevice) -> None:
    found = on_device(move_tied_model)
    assert found == {"left": "cpu", "devices": ["flop:0"], "tied": True, "frozen": True}
