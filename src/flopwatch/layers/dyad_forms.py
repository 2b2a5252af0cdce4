"""What a DYAD weight is, and the plain ways to multiply by it.

A DYAD weight is the sum of two matrices that are block-diagonal, the second one up to a
permutation. With `b` blocks, features come in two orders:

    direct       feature n of a row belongs to block n // (size / b)
    transposed   feature n of a row belongs to block n % b

The first half reads and writes features in direct order. The second half reads (variant ``it``),
writes (``ot``), or reads and writes (``dt``) them in transposed order.

All forms compute the same function of the same weight; they differ in what they move. Here are
the plain ones, which autograd differentiates; the fast one is in `dyad_matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flopwatch.errors import LayerError

VARIANTS = ("it", "ot", "dt")


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The sizes of a DYAD weight, and which sides its second half takes in transposed order."""

    in_features: int
    out_features: int
    blocks: int
    variant: str

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise LayerError(
                f"{self.variant!r} is no DYAD variant; take one of {', '.join(VARIANTS)}, or auto"
            )
        sizes = (self.in_features, self.out_features)
        if self.blocks < 1 or any(size % self.blocks for size in sizes):
            fitting = [n for n in range(1, min(sizes) + 1) if not any(size % n for size in sizes)]
            raise LayerError(
                f"{self.blocks} blocks do not divide {sizes[0]} input and {sizes[1]} output "
                f"features; these numbers do: {', '.join(map(str, fitting))}"
            )

    @property
    def block_in(self) -> int:
        return self.in_features // self.blocks

    @property
    def block_out(self) -> int:
        return self.out_features // self.blocks

    @property
    def reads_transposed(self) -> bool:
        return self.variant in ("it", "dt")

    @property
    def writes_transposed(self) -> bool:
        return self.variant in ("ot", "dt")

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Both halves in one tensor, side by side as one matmul needs them: along the inner
        dimension where they share the output, along the outer one where they share the input."""
        shapes = {
            "it": (self.blocks, 2 * self.block_in, self.block_out),
            "ot": (self.blocks, self.block_in, 2 * self.block_out),
            "dt": (2, self.blocks, self.block_in, self.block_out),
        }
        return shapes[self.variant]

    def split(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves, each (blocks, block_in, block_out)."""
        if self.variant == "dt":
            first, second = weight.unbind(0)
        else:
            first, second = weight.chunk(2, dim=1 if self.variant == "it" else 2)
        return first, second

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """The inverse of `split`."""
        if self.variant == "dt":
            return torch.stack([first, second])
        return torch.cat([first, second], dim=1 if self.variant == "it" else 2)


def make_dense(weight: Tensor, structure: Structure) -> Tensor:
    """The same weight as `nn.Linear` holds it: (out_features, in_features), mostly zeros.

    The reference of every form, so it is written out: block-diagonal, then permuted.
    """
    first, second = (torch.block_diag(*half.mT) for half in structure.split(weight))
    if structure.reads_transposed:
        second = second[:, _place_transposed(structure.in_features, structure.blocks)]
    if structure.writes_transposed:
        second = second[_place_transposed(structure.out_features, structure.blocks)]
    return first + second


def _place_transposed(features: int, blocks: int) -> Tensor:
    """For each feature, where it stands once the features are sorted by block n % blocks."""
    return torch.arange(features).view(blocks, features // blocks).t().reshape(-1)


def multiply_split(x: Tensor, weight: Tensor, bias: Tensor | None, structure: Structure) -> Tensor:
    """Two batched matmuls on views of x, (tokens, in_features)."""
    first, second = structure.split(weight)
    direct, transposed = _view_inputs(x, structure)
    return _add_outputs(torch.bmm(direct, first), torch.bmm(transposed, second), bias, structure)


def multiply_cat(x: Tensor, weight: Tensor, bias: Tensor | None, structure: Structure) -> Tensor:
    """One batched matmul, over a concatenated inner dimension where the variant has one."""
    direct, transposed = _view_inputs(x, structure)
    if structure.variant == "it":
        y = torch.bmm(torch.cat([direct, transposed], dim=2), weight)
        y = y.transpose(0, 1).flatten(1)
        return y if bias is None else y + bias
    if structure.variant == "ot":
        first, second = torch.bmm(direct, weight).chunk(2, dim=2)
    else:
        first, second = torch.bmm(torch.cat([direct, transposed]), weight.flatten(0, 1)).chunk(2)
    return _add_outputs(first, second, bias, structure)


def multiply_published(
    x: Tensor, weight: Tensor, bias: Tensor | None, structure: Structure
) -> Tensor:
    """As the published implementation does it inside a model: on feature-major tensors, so that a
    model's token-major ones have to be transposed on the way in and out."""
    first, second = (half.mT for half in structure.split(weight))
    direct, transposed = _view_features(x, structure)
    return _add_features(torch.bmm(first, direct), torch.bmm(second, transposed), bias, structure)


def multiply_published_cat(
    x: Tensor, weight: Tensor, bias: Tensor | None, structure: Structure
) -> Tensor:
    """The published implementation with its halves fused into one matmul."""
    direct, transposed = _view_features(x, structure)
    if structure.variant == "it":
        y = torch.bmm(weight.mT, torch.cat([direct, transposed], dim=1))
        y = y.reshape(structure.out_features, -1)
        return (y if bias is None else y + bias[:, None]).t()
    if structure.variant == "ot":
        first, second = torch.bmm(weight.mT, direct).chunk(2, dim=1)
    else:
        both = torch.cat([direct, transposed])
        first, second = torch.bmm(weight.flatten(0, 1).mT, both).chunk(2)
    return _add_features(first, second, bias, structure)


def _view_inputs(x: Tensor, structure: Structure) -> tuple[Tensor, Tensor]:
    """What each half reads, as (blocks, tokens, block_in)."""
    direct = x.unflatten(-1, (structure.blocks, structure.block_in)).transpose(0, 1)
    if not structure.reads_transposed:
        return direct, direct
    return direct, x.unflatten(-1, (structure.block_in, structure.blocks)).permute(2, 0, 1)


def _add_outputs(
    first: Tensor, second: Tensor, bias: Tensor | None, structure: Structure
) -> Tensor:
    """(tokens, out_features) of what each half gives as (blocks, tokens, block_out)."""
    order = (1, 2, 0) if structure.writes_transposed else (1, 0, 2)
    y = first.transpose(0, 1).flatten(1) + second.permute(order).flatten(1)
    return y if bias is None else y + bias


def _view_features(x: Tensor, structure: Structure) -> tuple[Tensor, Tensor]:
    """What each half reads, as (blocks, block_in, tokens)."""
    features = x.t()
    direct = features.reshape(structure.blocks, structure.block_in, -1)
    if not structure.reads_transposed:
        return direct, direct
    transposed = features.reshape(structure.block_in, structure.blocks, -1).transpose(0, 1)
    return direct, transposed


def _add_features(
    first: Tensor, second: Tensor, bias: Tensor | None, structure: Structure
) -> Tensor:
    """(tokens, out_features), as a view, of what each half gives as (blocks, block_out, tokens)."""
    if structure.writes_transposed:
        second = second.transpose(0, 1)
    y = first.reshape(structure.out_features, -1) + second.reshape(structure.out_features, -1)
    return (y if bias is None else y + bias[:, None]).t()
