"""DYAD: a linear layer whose weight is the sum of two permuted block-diagonal matrices.

    >>> import torch
    >>> layer = Dyad(8, 12, blocks=4)
    >>> layer(torch.ones(2, 3, 8)).shape
    torch.Size([2, 3, 12])
    >>> layer.weight.numel(), layer.to_dense().shape
    (48, torch.Size([12, 8]))

With `blocks` blocks it has, and computes, 2 / blocks of a dense layer. See arXiv 2312.06881.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from flopwatch.errors import LayerError
from flopwatch.layers import dyad_matmul
from flopwatch.layers.dyad_matmul import Structure
from flopwatch.layers.swapping import DropIn

Form = Callable[[Tensor, Tensor, Tensor | None, Structure], Tensor]

FORMS: dict[str, Form] = {
    "fast": dyad_matmul.multiply,
    "split": dyad_matmul.multiply_split,
    "cat": dyad_matmul.multiply_cat,
    "published": dyad_matmul.multiply_published,
    "published-cat": dyad_matmul.multiply_published_cat,
}
"""Ways to compute the same function of the same weight."""


class Dyad(DropIn):
    """A drop-in for `nn.Linear`.

    `variant` says which side of the layer the second half takes in transposed order: ``it`` the
    input, ``ot`` the output, ``dt`` both. ``auto`` takes ``it`` where the layer widens and ``ot``
    where it narrows, so that the smaller side is the one that moves; it is another function, but
    one as good as the other. `form` chooses how it is computed, never what.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        blocks: int = 4,
        variant: str = "it",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        form: str = "fast",
    ) -> None:
        if form not in FORMS:
            raise LayerError(f"{form!r} is no form of DYAD; take one of {', '.join(FORMS)}")
        if variant == "auto":
            variant = "it" if out_features >= in_features else "ot"
        structure = Structure(
            in_features=in_features, out_features=out_features, blocks=blocks, variant=variant
        )
        super().__init__(
            in_features,
            out_features,
            weight_shape=structure.weight_shape,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.form = form
        self.structure = structure

    @property
    def blocks(self) -> int:
        return self.structure.blocks

    @property
    def variant(self) -> str:
        return self.structure.variant

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return FORMS[self.form](x, weight, bias, self.structure)

    def to_dense(self) -> Tensor:
        """The equivalent weight of an `nn.Linear`, differentiable."""
        return dyad_matmul.make_dense(self.weight, self.structure)

    def extra_repr(self) -> str:
        form = "" if self.form == "fast" else f", form={self.form}"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"blocks={self.blocks}, variant={self.variant}, bias={self.bias is not None}{form}"
        )


def convert_published(state: Mapping[str, Tensor], variant: str = "it") -> dict[str, Tensor]:
    """A state dict of the published implementation as one of ours.

    Its layers hold ``wl`` and ``wu``, (blocks, out / blocks, in / blocks), and a column as bias;
    whatever else the state holds is kept as it is, so that it may be a whole model's. `variant` is
    that of the layers, which cannot be read from their weights.
    """
    converted = dict(state)
    for key in [key for key in state if key == "wl" or key.endswith(".wl")]:
        prefix = key.removesuffix("wl")
        lower, upper = converted.pop(key), converted.pop(f"{prefix}wu", None)
        if upper is None or lower.dim() != 3 or lower.shape != upper.shape:
            found = "missing" if upper is None else f"{tuple(upper.shape)}"
            raise LayerError(
                f"{key!r} and {prefix + 'wu'!r} must be two tensors of one shape, (blocks, out, "
                f"in); they are {tuple(lower.shape)} and {found}"
            )
        blocks, block_out, block_in = lower.shape
        structure = Structure(
            in_features=blocks * block_in,
            out_features=blocks * block_out,
            blocks=blocks,
            variant=variant,
        )
        converted[f"{prefix}weight"] = structure.join(lower.mT, upper.mT).contiguous()
        if f"{prefix}bias" in converted:
            converted[f"{prefix}bias"] = converted[f"{prefix}bias"].flatten()
    return converted
