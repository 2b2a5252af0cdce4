"""Tensor parallelism: ranks that each compute a part of every layer, by torch's DTensor.

Of a block, attention's heads and the feed-forward part's width are divided: the first linear layer
by outputs (ColwiseParallel), the second one by inputs (RowwiseParallel), so that they meet once
after each, to add up what the second ones give. Embedding and head are divided by the vocabulary,
and the loss is computed from divided logits (loss_parallel).

With sequence parallelism, what lies between those pairs, norms and residuals, is divided by tokens:
ranks gather tokens before the first layer of a pair and scatter the sums after the second, which
moves as much as the sums alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from flopwatch.models.feed_forward import FeedForward
from flopwatch.models.transformer import Block, SelfAttention, Transformer

FUSED, SPEC = "_fused", "_divided_as"
"""Attributes: of a layer whose rows have another order, and of the part of a parameter."""


def divide_part(part: nn.Module, mesh: DeviceMesh, *, sequence: bool) -> None:
    """A block of a model of ours, or what is outside of its blocks."""
    plan: dict[str, ParallelStyle]
    if isinstance(part, Block):
        for module in part.modules():
            if isinstance(module, SelfAttention):
                fuse(module.qkv, 3, mesh.size())
            elif isinstance(module, FeedForward) and module.is_gated:
                fuse(module.up, 2, mesh.size())
        plan = plan_block(sequence=sequence)
    else:
        assert isinstance(part, Transformer)
        plan = plan_rest(part, sequence=sequence)
    # Every rank has drawn the same weights: none has to be sent.
    parallelize_module(part, mesh, plan, src_data_rank=None)
    if isinstance(part, Transformer):
        part.tie()


def plan_block(*, sequence: bool) -> dict[str, ParallelStyle]:
    """What comes in and goes out is a plain tensor: of all tokens, or of this rank's."""
    tokens = Shard(1) if sequence else Replicate()
    pairs = {
        **dict.fromkeys(
            ("attention.qkv", "feed_forward.up"), ColwiseParallel(input_layouts=tokens)
        ),
        **dict.fromkeys(
            ("attention.output", "feed_forward.down"), RowwiseParallel(output_layouts=tokens)
        ),
    }
    norms = ("attention_norm", "feed_forward_norm") if sequence else ()
    return {**pairs, **{name: SequenceParallel(use_local_output=True) for name in norms}}


def plan_rest(model: Transformer, *, sequence: bool) -> dict[str, ParallelStyle]:
    tokens = Shard(1) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        # Learned positions are added before tokens are divided: all ranks have those of all tokens.
        divides = model.positions is None
        plan["embedding"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=tokens if divides else Replicate()
        )
        if sequence and not divides:
            first = next(name for name, _ in model.blocks.named_children())
            plan[f"blocks.{first}"] = PrepareModuleInput(
                input_layouts=(Replicate(), None),
                desired_input_layouts=(Shard(1), None),
                use_local_output=True,
            )
    if model.head is not None:
        if sequence:
            plan["norm"] = SequenceParallel(use_local_output=True)
        plan["head"] = ColwiseParallel(
            input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False
        )
    return plan


def align_gradients(models: Iterable[nn.Module]) -> None:
    """Divide gradients as their parameters are: some arise as parts of a sum on each rank, which
    can wait until all micro-batches have added theirs."""
    for model in models:
        for parameter in model.parameters():
            gradient, own = parameter.grad, parameter.data
            if not isinstance(gradient, DTensor) or not isinstance(own, DTensor):
                continue
            if gradient.placements != own.placements:
                parameter.grad = gradient.redistribute(placements=own.placements)


class LocalParameters:
    """DistributedDataParallel averages plain tensors only, so that a model has those that its
    divided parameters are made of, but for its forward pass. Torch can do so by itself, where no
    two layers have the same parameter."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[nn.Module, str, nn.Parameter]] = []
        made: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for key, divided in list(module.named_parameters(recurse=False)):
                if isinstance(divided, DTensor):
                    if id(divided) not in made:
                        local = nn.Parameter(divided.to_local().detach())
                        spec = (divided.device_mesh, divided.placements, divided.shape)
                        setattr(local, SPEC, spec)
                        made[id(divided)] = local
                    self._places.append((module, key, made[id(divided)]))
        self._localize()
        model.register_forward_pre_hook(self._divide)
        model.register_forward_hook(self._localize)

    def _divide(self, *_: object) -> None:
        divided = {id(local): divide_alike(local, local) for _, _, local in self._places}
        for module, key, local in self._places:
            delattr(module, key)
            setattr(module, key, divided[id(local)])

    def _localize(self, *_: object) -> None:
        for module, key, local in self._places:
            delattr(module, key)
            module.register_parameter(key, local)


def divide_alike(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """A tensor of which this rank has the part that it has of the parameter."""
    spec = getattr(parameter, SPEC, None)
    if spec is None:
        return local
    mesh, placements, shape = spec
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def fuse(linear: nn.Linear, parts: int, ranks: int) -> None:
    """Of a linear layer that is several in one, each of which ranks divide, put the rows in another
    order, so that the next rows belong to the next rank, whichever of them they are of."""
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(reorder_rows(parameter, (parts, ranks)))
    setattr(linear, FUSED, (parts, ranks))


def restore_rows(owner: nn.Module, rows: Tensor) -> Tensor:
    """A gradient of a layer in the order that its rows had before they were divided."""
    sizes = getattr(owner, FUSED, None)
    return rows if sizes is None else reorder_rows(rows, sizes[::-1])


def reorder_rows(rows: Tensor, sizes: tuple[int, int]) -> Tensor:
    """
    >>> reorder_rows(torch.arange(8), (2, 4)).tolist()
    [0, 4, 1, 5, 2, 6, 3, 7]
    """
    return rows.unflatten(0, (*sizes, -1)).transpose(0, 1).flatten(0, 2)
