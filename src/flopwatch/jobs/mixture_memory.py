"""What a mixture of experts keeps for its backward pass, and what else it needs: the part of
`activation_memory` for `models.feed_forward.Mixture`.

All experts' weights are there, and every token is there once for each of its experts (a row). How
many rows an expert has makes no difference: no token is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parameters import count_router_weights, count_up_matrices
from flopwatch.jobs.step_memory import Stage, Tensor

if TYPE_CHECKING:
    from flopwatch.jobs.activation_memory import Sizes

FLOAT, LONG = 4, 8


def make_mixture(sizes: Sizes) -> Stage:
    shape, hidden_size = sizes.shape, sizes.shape.hidden_size
    active, size = shape.active_experts or 1, _find_size(shape)
    matrices, rows = count_up_matrices(shape), active * sizes.hidden
    weights = list_mixture_weights(shape)
    biases = int(sizes.has_biases) * (shape.experts or 0)
    up = sizes.weigh(*weights[UP]) + sizes.weigh(biases, matrices * size)
    down = sizes.weigh(*weights[DOWN]) + sizes.weigh(biases, hidden_size)
    lowering, raising = (_copy(sizes, name, weights[name]) for name in (DOWN, UP))
    one = sizes.count(active * size)
    gates = [sizes.tensor("gates of experts", active * size)] if shape.is_gated else []
    return Stage(
        name="experts",
        kept=[
            sizes.tensor("inputs of feed-forward", hidden_size),
            *_list_choice(sizes),
            sizes.tensor("inputs of experts", active * hidden_size),
            *raising,
            *lowering,
            sizes.tensor("experts, before the activation", matrices * active * size),
            *gates,
            sizes.tensor("experts, after the activation", active * size),
            sizes.tensor("results of experts", active * hidden_size),
        ],
        gradient_bytes=up + down + sizes.weigh(count_router_weights(shape)),
        forward_bytes=rows + max(sizes.hidden, sizes.stream) + sizes.lifted,
        backward_bytes=sizes.stream + max(
            2 * rows,  # where results are weighted
            # A weight's copy is gone when its gradient is there.
            down - sum(copy.size_bytes for copy in lowering) + max(
                matrices * one,  # in the activation
                up + rows - matrices * one,  # in the matmul before it
            ),
        ),
    )  # fmt: skip


UP, DOWN = "feed_forward.experts.up", "feed_forward.experts.down"


def _find_size(shape: Shape) -> int:
    return shape.expert_size or shape.feed_forward_size


def _copy(sizes: Sizes, name: str, weight: tuple[int, ...]) -> list[Tensor]:
    """In 16 bits. Autocast does not know it, so that it is gone with what was computed from it."""
    copied = Tensor(f"{name}, 16-bit copy", weight, sizes.element_bytes)
    return [copied] if sizes.is_autocast else []


def _list_choice(sizes: Sizes) -> list[Tensor]:
    shape = sizes.shape
    experts, active = shape.experts or 1, shape.active_experts or 1
    return [
        *sizes.copy("feed_forward.router", experts, shape.hidden_size),
        sizes.tensor("probabilities of experts", experts, element_bytes=FLOAT),
        # Before they are made to add up to 1, their sum, and what results are multiplied by.
        sizes.tensor("weights of experts", active + 1, element_bytes=FLOAT),
        sizes.tensor("weights of experts", active),
        # Of experts, of rows by expert, and of rows by token.
        sizes.tensor("numbers of experts", 3 * active, element_bytes=LONG),
    ]


def list_mixture_results(sizes: Sizes) -> tuple[list[Tensor], list[Tensor]]:
    """As `activation_memory.make_results`."""
    shape, hidden_size = sizes.shape, sizes.shape.hidden_size
    active, matrices = shape.active_experts or 1, count_up_matrices(shape)
    used = [
        sizes.tensor("results of the router", shape.experts or 1),
        sizes.tensor("experts, before the activation", matrices * active * _find_size(shape)),
        sizes.tensor("results of experts, by expert", active * hidden_size),
    ]
    if not shape.shared_expert_size:
        return used, used
    raised = matrices * shape.shared_expert_size
    used.append(sizes.tensor("shared experts, before the activation", raised))
    return [*used, sizes.tensor("results of shared experts", hidden_size)], used


def list_mixture_weights(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Of one mixture."""
    experts, hidden, size = shape.experts or 0, shape.hidden_size, _find_size(shape)
    matrices, shared = count_up_matrices(shape), shape.shared_expert_size
    weights: dict[str, tuple[int, ...]] = {
        "feed_forward.router.weight": (experts, hidden),
        UP: (experts, matrices * size, hidden),
        DOWN: (experts, hidden, size),
    }
    if shared:
        weights["feed_forward.shared.up.weight"] = (matrices * shared, hidden)
        weights["feed_forward.shared.down.weight"] = (hidden, shared)
    return weights
