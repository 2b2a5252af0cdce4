"""How results show themselves at a prompt and in a notebook."""

from __future__ import annotations

from html import escape


class Printed:
    """A result whose text is its `__str__`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
