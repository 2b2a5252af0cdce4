"""A case: one variant at one point of a suite's axes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flopwatch.devices.kinds import HOST
from flopwatch.errors import SuiteError
from flopwatch.settings import Device


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a suite's functions are given. An axis is read as an attribute: ``case.dtype``."""

    suite: str
    variant: str
    params: Mapping[str, Any]
    device: Device = HOST

    def __getattr__(self, axis: str) -> Any:
        # Only called where no field has that name. Looking up `params` itself here would
        # recurse for ever while an instance is being unpickled.
        if axis.startswith("_") or axis == "params":
            raise AttributeError(axis)
        try:
            return self.params[axis]
        except KeyError:
            raise AttributeError(
                f"suite {self.suite!r} has no axis {axis!r}; it has {', '.join(self.params)}"
            ) from None

    @property
    def id(self) -> str:
        return case_id(self.suite, self.variant, self.params)

    @property
    def group(self) -> str:
        return group_id(self.suite, self.params)


def case_id(suite: str, variant: str, params: Mapping[str, Any]) -> str:
    """The same case has the same id in every run, on every machine."""
    return digest([suite, variant, params])


def group_id(suite: str, params: Mapping[str, Any]) -> str:
    """Cases that differ only by variant share it."""
    return digest([suite, params])


def digest(content: Any) -> str:
    """A short hash of JSON content that does not depend on the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def label(params: Mapping[str, Any]) -> str:
    """Parameters as people write them, and as ``--filter`` takes them.

    >>> label({"shape": (768, 3072), "dtype": "float32"})
    'shape=768x3072 dtype=float32'
    """
    return " ".join(f"{axis}={format_value(value)}" for axis, value in params.items())


LONGEST_NAME = 1000


def require_storable(name: object) -> None:
    """Refuse a name that no record can hold, or that no table could show."""
    text = str(name)
    if len(text) > LONGEST_NAME:
        raise SuiteError(f"{text[:40]!r}... has {len(text)} characters; {LONGEST_NAME} are enough")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SuiteError(f"{text!r} is not valid Unicode; choose another name") from None


def format_value(value: Any) -> str:
    """An axis value as text: lists are joined by ``x``, switches are ``true`` and ``false``."""
    if isinstance(value, list | tuple):
        return "x".join(format_value(part) for part in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
