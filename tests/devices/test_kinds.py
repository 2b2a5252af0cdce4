"""What is known of kinds of devices, and that nobody else knows it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

import pytest

import flopwatch
from flopwatch.devices.kinds import HOST, KINDS, Devices, find_kind, is_host

PACKAGE = Path(flopwatch.__file__).parent
KNOWING = ("devices/", "layers/kernels/")
"""Where code may know one kind of device from another."""


def find_named(source: str) -> list[int]:
    """Lines of code that name a kind of device, in a text of its own or as a part of torch."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if is_name(node)]


def is_name(node: ast.AST) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.partition(":")[0] in KINDS
    if not isinstance(node, ast.Attribute):
        return False
    is_of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
    return is_of_torch and node.attr in KINDS or node.attr in {f"is_{name}" for name in KINDS}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('y = device == "cuda"\n', True),
        ("x.to('cpu')\n", True),
        ('torch.ones(3, device="cuda:0")\n', True),
        ("y = x.is_cuda\n", True),
        ("torch.cuda.synchronize()\n", True),
        ('"""On cuda and cpu."""\n', False),
        ("device = HOST  # torch.cuda\n", False),
        ('help = "cpu, cuda, xpu"\n', False),
    ],
)
def test_the_guard_sees_names_of_devices(source: str, named: bool) -> None:
    assert bool(find_named(source)) == named


def test_no_code_outside_of_devices_and_kernels_names_one() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.relative_to(PACKAGE).as_posix().startswith(KNOWING)
        if (lines := find_named(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_an_accelerator_that_nobody_has_heard_of_is_like_the_others() -> None:
    known, unknown = find_kind("cuda"), find_kind("abacus")
    assert unknown.name == "abacus"
    assert not unknown.is_host
    assert not unknown.can_fork
    assert (unknown.usual_dtype, unknown.usual_precision) == (
        known.usual_dtype,
        known.usual_precision,
    )
    assert not unknown.has_tf32
    assert is_host(HOST)
    assert [name for name in KINDS if is_host(name)] == [HOST]


def test_devices_are_a_host_unless_they_are_said_to_be_others() -> None:
    assert Devices().are_host
    assert not Devices(kind=find_kind("mps"), count=1).are_host
