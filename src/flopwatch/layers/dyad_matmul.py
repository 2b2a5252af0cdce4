"""Matmuls with a DYAD weight: what it is, the plain ways to multiply by it, and the fast one.

A DYAD weight is the sum of two matrices that are block-diagonal, the second one up to a
permutation. With `b` blocks, features come in two orders:

    direct       feature n of a row belongs to block n // (size / b)
    transposed   feature n of a row belongs to block n % b

The first half reads and writes features in direct order. The second half reads (variant ``it``),
writes (``ot``), or reads and writes (``dt``) them in transposed order.

All forms compute the same function of the same weight; they differ in what they move. Autograd
differentiates the plain ones. The fast one takes as few passes over memory as eager operations
allow: the side that is taken in two orders (the input for ``it``, the output for ``ot``) is copied
once, both orders side by side, so that all blocks of both halves are one batched matmul. That
matmul reads or writes the other side in place, through a strided view:

    it   x ──both orders──► (blocks, tokens, 2 block_in) ──matmul──► y
    ot   x ──matmul──► (blocks, tokens, 2 block_out) ──sum of both orders──► y

The backward pass of one is the forward pass of the other. ``dt`` does both.

What is only passed through is made for some tokens at a time, so that the layer never holds more
than a dense one and the one copy. Doing the same to everything, to stay in the cache, was no
faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flopwatch.devices.kinds import is_host
from flopwatch.errors import LayerError
from flopwatch.layers.kernels import triton_support

VARIANTS = ("it", "ot", "dt")
HOST_PART_TOKENS, PART_TOKENS = 512, 16384
"""Tokens at a time on a CPU, and on accelerators, which a few do not keep busy: fewer make the
matmuls less efficient, more take memory."""


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


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, structure: Structure) -> Tensor:
    """x, (tokens, in_features), times the weight."""
    if torch.compiler.is_compiling():
        # The compiler fuses the copies of the plain form itself, and cannot trace matmuls into
        # strided views, which make the eager form fast.
        return multiply_cat(x, weight, bias, structure)
    y: Tensor = Matmul.apply(x, weight, bias, structure)
    return y


class Matmul(torch.autograd.Function):
    """`multiply` with a backward pass of its own, which has no second derivative."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, structure: Structure
    ) -> Tensor:
        y = x.new_empty(len(x), structure.out_features)
        kept = x
        if structure.writes_transposed:
            for rows in parts(y):
                write_both(batch_multiply(_read(x[rows], structure), weight), bias, y[rows])
        else:
            kept = read_both(x, structure.blocks)
            torch.bmm(kept, weight, out=view_blocks(y, structure.blocks))
            if bias is not None:
                y += bias
        ctx.save_for_backward(kept, weight)
        ctx.structure = structure
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        structure: Structure = ctx.structure
        kept, weight = ctx.saved_tensors
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        grad_x = grad_y.new_empty(len(grad_y), structure.in_features) if need_x else None
        grad_weight = None
        # `dt` would have to copy both sides: it goes through the tokens in parts.
        for rows in parts(grad_y) if structure.variant == "dt" else [slice(None)]:
            grad = _read_back(grad_y[rows], structure)
            # First what needs memory for a moment, then what stays.
            if grad_x is not None:
                _multiply_back(grad, weight, grad_x[rows], structure)
            if need_weight:
                read = kept if structure.variant == "it" else _read(kept[rows], structure)
                grad_weight = add_to(grad_weight, batch_outer(read, grad, structure))
        return (
            grad_x,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            # A matrix-vector product: several times faster than a sum over rows.
            torch.mv(grad_y.t(), grad_y.new_ones(len(grad_y))) if need_bias else None,
            None,
        )


def _read(x: Tensor, structure: Structure) -> Tensor:
    """What the matmul reads of the input: a copy in both orders, or a view."""
    read = read_both if structure.reads_transposed else view_blocks
    return read(x, structure.blocks)


def _read_back(grad_y: Tensor, structure: Structure) -> Tensor:
    """What the matmuls of the backward pass read of the output's gradient."""
    read = read_both if structure.writes_transposed else view_blocks
    return read(grad_y, structure.blocks)


def _multiply_back(grad: Tensor, weight: Tensor, grad_x: Tensor, structure: Structure) -> None:
    """Into grad_x what the gradient of the output, in blocks, means for the input."""
    if structure.reads_transposed:
        for rows in parts(grad_x, most=_limit_part(grad_x, structure)):
            write_both(batch_multiply(grad[:, rows], weight.mT), None, grad_x[rows])
    else:
        torch.bmm(grad, weight.mT, out=view_blocks(grad_x, structure.blocks))


def _limit_part(grad_x: Tensor, structure: Structure) -> int | None:
    """On a CPU, so many tokens that both orders of their gradients are no larger than a dense
    layer's weight gradient, which is not there yet. An accelerator has memory for PART_TOKENS, and
    a launch for every few tokens would leave it idle."""
    return max(structure.out_features // 2, 1) if is_host(grad_x.device.type) else None


def parts(rows: Tensor, most: int | None = None) -> Iterator[slice]:
    """The rows in slices of a bearable size; one, if empty, where there are none."""
    size = HOST_PART_TOKENS if is_host(rows.device.type) else PART_TOKENS
    size = size if most is None else min(size, most)
    for start in range(0, max(len(rows), 1), size):
        yield slice(start, start + size)


def view_blocks(rows: Tensor, blocks: int) -> Tensor:
    """(tokens, features) seen as (blocks, tokens, features / blocks), in direct order."""
    return rows.unflatten(-1, (blocks, -1)).transpose(0, 1)


def read_both(rows: Tensor, blocks: int) -> Tensor:
    """A copy of (tokens, features) as (blocks, tokens, 2 features / blocks): in direct order,
    then in transposed order."""
    if kernels := _find_kernels(rows):
        return kernels.read_both(rows, blocks)
    transposed = rows.unflatten(-1, (-1, blocks)).permute(2, 0, 1)
    return torch.cat([view_blocks(rows, blocks), transposed], dim=2)


def write_both(both: Tensor, bias: Tensor | None, rows: Tensor) -> None:
    """The opposite: into `rows` the sum of both orders, and the bias."""
    if kernels := _find_kernels(rows):
        kernels.write_both(both, bias, rows)
        return
    blocks = len(both)
    direct, transposed = both.chunk(2, dim=2)
    rows.unflatten(-1, (-1, blocks)).copy_(transposed.permute(1, 2, 0))
    view_blocks(rows, blocks).add_(direct)
    if bias is not None:
        rows.add_(bias)


def batch_multiply(read: Tensor, weight: Tensor) -> Tensor:
    """(blocks, tokens, ...) times the weight; for `dt`, whose weight has a dimension more, each
    half of the inner dimension with its own half of the weight."""
    if weight.dim() == 3:
        return torch.bmm(read, weight)
    blocks, tokens, _ = read.shape
    y = read.new_empty(blocks, tokens, 2 * weight.shape[-1])
    halves = zip(read.chunk(2, dim=2), weight.unbind(0), y.chunk(2, dim=2), strict=True)
    for half, own, out in halves:
        torch.bmm(half, own, out=out)
    return y


def batch_outer(read: Tensor, grad: Tensor, structure: Structure) -> Tensor:
    """The gradient of the weight from these tokens."""
    if structure.variant != "dt":
        return torch.bmm(read.mT, grad)
    halves = zip(read.chunk(2, dim=2), grad.chunk(2, dim=2), strict=True)
    return torch.stack([torch.bmm(half.mT, own) for half, own in halves])


def add_to(total: Tensor | None, summand: Tensor) -> Tensor:
    """Their sum, in float32 where they are shorter: many of them would lose the small ones."""
    if total is None:
        return summand
    return (total.float() if total.dtype.itemsize == 2 else total).add_(summand)


def _find_kernels(rows: Tensor) -> Any:
    """The Triton kernels, where they can run."""
    if triton_support.find_obstacle(rows.device.type) is not None:
        return None
    from flopwatch.layers.kernels import dyad_triton

    return dyad_triton


def describe(device: str) -> str | None:
    """What a reader of timings should know about how they were made on such a device."""
    return None if is_host(device) else triton_support.describe(device, "the copies of DYAD")
