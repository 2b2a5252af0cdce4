"""The layers that can be asked for by a short spec, ``kind:argument:argument``, in one table.

    dense              nn.Linear
    dyad:it:4          DYAD, variant it, 4 blocks
    dyad:ot:8:cat      variant ot, 8 blocks, computed in the form "cat"

The command line, the suites and the library all read specs here. A layer of one's own is one line:

    register("low-rank", lambda i, o, rank, **rest: LowRank(i, o, rank, **rest))

makes ``low-rank:64`` work in the same process: register it in the suite file that measures it. This
module does not import torch; makers do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwatch.errors import LayerError

if TYPE_CHECKING:
    from torch import nn

Argument = int | str
Maker = Callable[..., "nn.Module"]
"""Called with in_features, out_features and the spec's arguments, whole numbers as int, and with
bias, device and dtype by name."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A row of the table."""

    make: Maker
    density: Callable[..., float] | None
    """From the spec's arguments: how many of a dense layer's FLOPs it needs. None: unknown."""
    syntax: str


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A spec taken apart."""

    kind: str
    arguments: tuple[Argument, ...]

    def __str__(self) -> str:
        return ":".join(map(str, [self.kind, *self.arguments]))


KINDS: dict[str, Kind] = {}


def register(name: str, make: Maker, *, density: Callable[..., float] | None = None) -> None:
    """Give a layer a name to be asked for. A name that is taken is replaced."""
    if not name or ":" in name or "," in name:
        raise LayerError(f"{name!r} is no name for a layer; take one without ':' and ','")
    KINDS[name] = Kind(make=make, density=density, syntax=_describe_syntax(name, make))


def parse(text: str) -> Spec:
    """Take a spec apart, and see that it can be made."""
    name, *words = text.split(":")
    if name not in KINDS:
        raise LayerError(f"no layer is called {name!r}; there are {', '.join(KINDS)}")
    spec = Spec(kind=name, arguments=tuple(int(w) if w.isdigit() else w for w in words))
    kind = KINDS[name]
    try:
        _signature(kind.make).bind(*spec.arguments)
    except TypeError:
        raise LayerError(f"{text!r} is not of the form {kind.syntax}") from None
    find_density(spec)  # it knows which arguments make sense
    return spec


def make(
    spec: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = True,
    device: Any = None,
    dtype: Any = None,
) -> nn.Module:
    """The layer that a spec asks for, with fresh random weights."""
    parsed = parse(spec)
    return KINDS[parsed.kind].make(
        in_features, out_features, *parsed.arguments, bias=bias, device=device, dtype=dtype
    )


def count_flops(spec: str, tokens: int, in_features: int, out_features: int) -> float | None:
    """Of one forward pass, biases left out; None where the layer does not say."""
    density = find_density(parse(spec))
    return None if density is None else 2.0 * tokens * in_features * out_features * density


def find_density(spec: Spec) -> float | None:
    """How many of a dense layer's FLOPs it needs; None where the layer does not say."""
    density = KINDS[spec.kind].density
    return None if density is None else density(*spec.arguments)


def _signature(make: Maker) -> inspect.Signature:
    """Of the spec's arguments alone."""
    _, _, *rest = inspect.signature(make).parameters.values()
    return inspect.Signature(
        [
            parameter
            for parameter in rest
            if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
            and parameter.name not in ("bias", "device", "dtype")
        ]
    )


def _describe_syntax(name: str, make: Maker) -> str:
    """
    >>> _describe_syntax("dyad", _make_dyad)
    'dyad:VARIANT:BLOCKS[:FORM]'
    """
    parameters = _signature(make).parameters.values()
    required = "".join(f":{p.name.upper()}" for p in parameters if p.default is p.empty)
    optional = "".join(f"[:{p.name.upper()}]" for p in parameters if p.default is not p.empty)
    return name + required + optional


def _make_dense(in_features: int, out_features: int, **options: Any) -> nn.Module:
    from torch import nn

    return nn.Linear(in_features, out_features, **options)


def _make_dyad(
    in_features: int,
    out_features: int,
    variant: str,
    blocks: int,
    form: str = "fast",
    **options: Any,
) -> nn.Module:
    from flopwatch.layers.dyad import Dyad

    return Dyad(in_features, out_features, blocks, variant, form=form, **options)


DYAD_WORDS = {
    "variant": ("it", "ot", "dt", "auto"),
    "form": ("fast", "split", "cat", "published", "published-cat"),
}


def _count_dyad_density(variant: str, blocks: int, form: str = "fast") -> float:
    for name, word in (("variant", variant), ("form", form)):
        if word not in DYAD_WORDS[name]:
            raise LayerError(
                f"{word!r} is no {name} of DYAD; take one of {', '.join(DYAD_WORDS[name])}"
            )
    if not isinstance(blocks, int) or blocks < 1:
        raise LayerError(f"{blocks!r} is no number of blocks; DYAD takes a whole one, such as 4")
    return 2 / blocks


register("dense", _make_dense, density=lambda: 1.0)
register("dyad", _make_dyad, density=_count_dyad_density)
