"""What ranks send each other, and how long they wait for it: `cost` has the formulas in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

from flopwatch.prediction.job_arrays import JobArrays, count_rank_parameters
from flopwatch.prediction.layer_cost import (
    FORWARD_SHARE,
    Micro,
    count_tokens,
    find_imbalance,
    time_attention,
)
from flopwatch.prediction.software_stacks import Parameters

if TYPE_CHECKING:
    from flopwatch.prediction.job_arrays import Array

Divided = Literal["tensor", "data", "expert", "stage"]
"""What ranks exchange, by the field of `JobArrays` that its link begins with."""
SWAPS = 4
"""Of tokens for heads in a layer: of queries, keys and values, and of the result back."""
BUCKET_BYTES = 5e8
"""Of gradients, reduced together."""


def time_ring(
    jobs: JobArrays,
    parameters: Parameters,
    size_bytes: Array,
    members: Array,
    apart: Array,
    kind: Divided = "data",
) -> tuple[Array, Array]:
    """Of a collective in which each of so many ranks, so far apart, sends that: what it takes for
    its bytes, and for its latency. Rings pass through all adapters of a node at once, so that each
    of the ring's ranks there sends a share of what has to leave it."""
    import numpy as np

    span = members * apart
    is_inside = span <= jobs.per_node
    neighbours = np.clip(jobs.per_node / apart, 1.0, np.maximum(members, 1.0))
    nodes = np.clip(span / jobs.per_node, 1.0, np.maximum(members, 1.0))
    own = getattr(jobs, f"{kind}_link")
    link = np.where(own > 0, own, 1.0) * parameters.link_efficiency
    network = np.where(jobs.network > 0, jobs.network, 1.0) * parameters.network_efficiency
    local_s = np.where(is_inside | (neighbours > 1), size_bytes / link, 0.0)
    remote_s = np.where(is_inside, 0.0, size_bytes / neighbours / network)
    latency = parameters.collective_s + np.where(
        is_inside, getattr(jobs, f"{kind}_latency"), parameters.hop_s * nodes
    )
    several = members > 1
    return (
        np.where(several, np.maximum(local_s, remote_s), 0.0),
        np.where(several, latency, 0.0),
    )


def time_layer_exchange(jobs: JobArrays, parameters: Parameters) -> Iterator[Micro]:
    import numpy as np

    tokens, hidden = count_tokens(jobs), jobs.get("hidden")
    tensor, context, expert = jobs.tensor, jobs.context, jobs.expert
    whole = tokens * hidden * jobs.element_bytes
    moved_s, latency_s = time_ring(
        jobs, parameters, 2 * (tensor - 1) / tensor * whole, tensor, np.ones_like(tensor), "tensor"
    )
    once = parameters.tensor_exposed * moved_s + latency_s
    yield Micro(
        "tensor-parallel communication", 2 * once, (2 + 2 * jobs.is_full) * once, 0.0, 0.0,
        "network",
    )  # fmt: skip
    # Keys and values pass all other ranks; backward, their gradients too. Attention hides them.
    # Or tokens are swapped for heads and back, which nothing hides.
    keys = tokens * jobs.get("key_width") / tensor * jobs.element_bytes * (context - 1)
    moved_s, latency_s = time_ring(jobs, parameters, keys, context, tensor)
    attention = time_attention(jobs, parameters)
    again = np.maximum(jobs.is_full, jobs.is_selective)
    forward = latency_s * (context - 1) + _wait(
        moved_s, parameters.context_exposed, attention.forward_s
    )
    backward = (1 + again) * latency_s * (context - 1) + _wait(
        (2 + again) * moved_s, parameters.context_exposed, attention.backward_s
    )
    swapped = tokens * (2 * jobs.get("heads") * jobs.get("head_dim") + jobs.get("key_width"))
    swapped = swapped / tensor * jobs.element_bytes * (context - 1) / context
    swap_s, swap_latency_s = _time_all_to_all(jobs, swapped, parameters, context, tensor)
    swap = swap_s + SWAPS * swap_latency_s
    forward = np.where(jobs.is_swapped > 0, swap, forward)
    backward = np.where(jobs.is_swapped > 0, (1 + again) * swap, backward)
    yield Micro("context-parallel communication", forward, backward, 0.0, 0.0, "network")
    routed = jobs.get("expert_layers") / jobs.get("layers")
    divided = np.where(jobs.is_sequence > 0, tensor, 1.0)
    sent = whole * jobs.get("routed") / divided * (expert - 1) / expert
    apart = np.where(jobs.expert_tensor > 0, jobs.expert_tensor, tensor) * context
    moved_s, latency_s = _time_all_to_all(jobs, sent, parameters, expert, apart)
    imbalance = find_imbalance(jobs, parameters)
    once = routed * (parameters.expert_exposed * imbalance * moved_s + latency_s)
    yield Micro(
        "expert-parallel communication", 2 * once, (2 + 2 * jobs.is_full) * once, 0.0, 0.0,
        "network",
    )  # fmt: skip


def time_end_exchange(jobs: JobArrays, parameters: Parameters) -> tuple[Micro, Micro]:
    """Of tensor parallelism in the first stage: what the embedding gives; and in the last: the
    gradient of the head's input, and of the loss the largest logit, the sum and the target's."""
    import numpy as np

    tensor = jobs.tensor
    size_bytes = count_tokens(jobs) * jobs.get("hidden") * jobs.element_bytes
    moved_s, latency_s = time_ring(
        jobs,
        parameters,
        2 * (tensor - 1) / tensor * size_bytes,
        tensor,
        np.ones_like(tensor),
        "tensor",
    )
    name = "tensor-parallel communication"
    return (
        Micro(name, moved_s + latency_s, 0 * latency_s, 0.0, 0.0, "network"),
        Micro(name, 3 * latency_s, moved_s + latency_s, 0.0, 0.0, "network"),
    )


def _time_all_to_all(
    jobs: JobArrays, size_bytes: Array, parameters: Parameters, members: Array, apart: Array
) -> tuple[Array, Array]:
    """Of what each rank sends to all others at full bandwidth: the share that leaves a node goes
    through its own adapter."""
    import numpy as np

    inside = np.clip(jobs.per_node / apart, 1.0, members)
    remote = 1 - inside / members
    local_s = np.where(
        inside > 1, size_bytes * (1 - remote) / np.maximum(jobs.expert_link, 1.0), 0.0
    )
    moved_s = np.maximum(local_s, size_bytes * remote / np.maximum(jobs.network, 1.0))
    nodes = members / inside
    latency = parameters.collective_s + np.where(
        remote > 0, parameters.hop_s * nodes, jobs.expert_latency
    )
    several = members > 1
    return np.where(several, moved_s, 0.0), np.where(several, latency, 0.0)


def _wait(time_s: Array, exposed: Any, computed_s: Array) -> Array:
    """What could be hidden behind arithmetic is waited for where there is not enough of it."""
    import numpy as np

    waited: Array = exposed * time_s + np.maximum(0.0, (1 - exposed) * time_s - computed_s)
    return waited


def time_sends(jobs: JobArrays, parameters: Parameters) -> Array:
    """What a micro-batch waits for what stages send each other, in both passes."""
    import numpy as np

    size_bytes = count_tokens(jobs) * jobs.get("hidden") * jobs.element_bytes
    size_bytes = size_bytes / np.where(jobs.scatters > 0, jobs.tensor, 1.0)
    ranks = jobs.tensor * jobs.context * jobs.data * jobs.pipeline
    is_inside = ranks <= jobs.per_node
    link = np.where(jobs.stage_link > 0, jobs.stage_link, 1.0) * parameters.link_efficiency
    network = np.where(jobs.network > 0, jobs.network, 1.0) * parameters.network_efficiency
    moved_s = size_bytes / np.where(is_inside, link, network)
    once = moved_s + parameters.collective_s
    once = once + np.where(is_inside, jobs.stage_latency, parameters.hop_s)
    sent = 2 * parameters.p2p_exposed * once * jobs.virtual_stages
    return np.where(jobs.pipeline > 1, sent, 0.0)


def time_data_exchange(
    jobs: JobArrays, parameters: Parameters, slowest_s: Array, mean_s: Array
) -> Array:
    """What is waited for in a step. Experts are reduced among the ranks that have the same."""
    import numpy as np

    total: Any = 0.0
    common, experts = count_rank_parameters(jobs)
    alike = jobs.data * jobs.context
    exposed = np.where(jobs.is_none > 0, 1.0, parameters.exposed_share)
    share = common / np.maximum(common + experts, 1.0)
    kinds = (
        (common, alike, jobs.tensor, share),
        (experts, jobs.count_alike(), jobs.find_expert_tensor() * jobs.expert, 1 - share),
    )
    for numbers, members, apart, share in kinds:
        group = np.minimum(jobs.shard_group, members)
        sharing = (members - 1) / members
        reduced = numbers * jobs.reduced_bytes
        gathered = numbers * jobs.gathered_bytes
        buckets = np.maximum(1.0, reduced / BUCKET_BYTES)
        # Once a step: gradients are summed up, which moves each twice, or once to its owner; and
        # updated parameters gathered.
        owned = jobs.is_zero1 * np.where(group < members, 0.0, 1.0)
        once_s, latency_s = time_ring(
            jobs, parameters, (2 - owned) * reduced * sharing, members, apart
        )
        back_s, back_latency_s = time_ring(
            jobs, parameters, jobs.is_zero1 * gathered * (group - 1) / group, group, apart
        )
        once = _wait(once_s + buckets * latency_s, exposed, FORWARD_SHARE * 2 * slowest_s * share)
        once = once + jobs.is_zero1 * (back_s + buckets * back_latency_s)
        # Every micro-batch, within the group that shards; and between groups, once.
        each_s, each_latency_s = time_ring(
            jobs,
            parameters,
            (jobs.gathers * gathered + reduced) * (group - 1) / group,
            group,
            apart,
        )
        copies = members / group
        between_s, between_latency_s = time_ring(
            jobs, parameters, 2 * reduced / group * (copies - 1) / copies, copies, apart * group
        )
        layers = jobs.get("layers") / jobs.pipeline
        latencies = (jobs.gathers + 1) * layers * jobs.gathered_tensors * each_latency_s
        each = jobs.grad_accum * _wait(each_s + latencies, exposed, mean_s * share)
        each = each + _wait(between_s + buckets * between_latency_s, exposed, mean_s * share)
        total = total + np.where(numbers > 0, np.where(jobs.is_sharded > 0, each, once), 0.0)
    return cast("Array", total)
