"""How far layers, and models with them, may be off, relative to the reference's largest value."""

from __future__ import annotations

from flopwatch.layers import registry

INT8 = {"layer": 3e-2, "model": 5e-1}
"""Int8 keeps 7 bits, which makes 1 % of the largest value. In a model that is enough to turn a ReLU
here and there, each of which takes its token's part of a gradient with it: up to a quarter of the
largest value was seen in OPT, and 4 % in Pythia, which has none. A layer in the wrong place, or a
gradient that is missing, gives 1 or more."""
FLOATS = {
    "float32": {"layer": 1e-4, "model": 3e-3, "parts": 1e-4},
    "bfloat16": {"layer": 3e-2, "model": 2e-1, "parts": 1e-2},
    "float16": {"layer": 5e-3, "model": 2e-1, "parts": 2e-3},
}
"""Of everything else, by the dtype that it computes in. In a model rounding adds up, and the ReLU
of a value next to 0 may go either way. Parts are compared with the same arithmetic in plain torch,
so that only the rounding of their results is left."""


def find_tolerance(spec: str, level: str, dtype: str) -> float:
    """Of the layer with that spec, alone ("layer") or in a model ("model")."""
    is_int8 = registry.KINDS[registry.parse(spec).kind].int8
    return (INT8 if is_int8 else FLOATS[dtype])[level]
