"""The ranks of a job along the dimensions in which it is parallel: one device mesh for all.

From the outermost to the innermost dimension, as torchtitan has them:

    pp              stages of a pipeline
    dp_replicate    data-parallel ranks that each have what the others have
    dp_shard        data-parallel ranks that divide parameters
    cp              ranks that divide a sequence
    tp              ranks that divide layers: neighbours, which exchange most

Experts are divided over data-parallel ranks, which is another view of the same ranks: dp_shard and
dp_replicate, taken together, as groups (edp) of neighbours (ep).
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from flopwatch.jobs.parallelism import UNSHARDED, Parallelism, count_job_shards


class JobMesh:
    """Seen from one rank. Without other ranks, there is no mesh, and every coordinate is 0."""

    def __init__(self, parallelism: Parallelism, device: str) -> None:
        self.parallelism = split = parallelism
        # Of zero1, only the optimizer's state is divided, by itself.
        self._shards = 1 if split.sharding in (*UNSHARDED, "zero1") else count_job_shards(split)
        data = {"dp_replicate": split.data // self._shards, "dp_shard": self._shards}
        outer, inner = {"pp": split.pipeline}, {"cp": split.context, "tp": split.tensor}
        self._mesh = self._experts = None
        if distributed.is_initialized():
            self._mesh = _make_mesh(device, tuple({**outer, **data, **inner}.items()))
            if split.expert > 1:
                groups = {"edp": split.data * split.context // split.expert, "ep": split.expert}
                self._experts = _make_mesh(
                    device, tuple({**outer, **groups, "tp": split.tensor}.items())
                )
                self._experts["edp", "ep"]._flatten("edp_ep")  # for norms of what both divide

    def find(self, *names: str) -> DeviceMesh:
        """The ranks that differ from this one in these dimensions only."""
        assert self._mesh is not None
        return self._mesh[names if len(names) > 1 else names[0]]

    def find_place(self, name: str) -> int:
        """Of this rank along a dimension."""
        return 0 if self._mesh is None else self._mesh.get_local_rank(name)

    @property
    def data_rank(self) -> int:
        """Among those that compute with sequences of their own."""
        return self.find_place("dp_replicate") * self._shards + self.find_place("dp_shard")

    @property
    def data(self) -> DeviceMesh | None:
        """All data-parallel ranks, over which gradients are averaged."""
        if self._mesh is None:
            return None
        names = [name for name in ("dp_replicate", "dp_shard", "cp") if self._size(name) > 1]
        if len(names) > 1:
            return self.find(*names)._flatten("_".join(names))
        return self.find(names[0] if names else "dp_shard")

    @property
    def shards(self) -> DeviceMesh:
        """The ranks that divide parameters, and in another dimension those that have the same."""
        assert self._mesh is not None
        mesh = self._mesh
        inner = ["dp_shard", "cp"] if self._size("cp") > 1 else ["dp_shard"]
        if len(inner) > 1:
            mesh[tuple(inner)]._flatten("dp_shard_cp")
            inner = ["dp_shard_cp"]
        outer = ["dp_replicate"] if self._size("dp_replicate") > 1 else []
        return self.find(*outer, *inner)

    @property
    def experts(self) -> DeviceMesh | None:
        """The ranks that divide experts among them; None: each has all."""
        return None if self._experts is None else self._experts["ep"]

    @property
    def expert_data(self) -> DeviceMesh | None:
        """The ranks that have the same experts, over which their gradients are averaged."""
        return None if self._experts is None else self._experts["edp"]

    def _size(self, name: str) -> int:
        assert self._mesh is not None
        return self._mesh[name].size()


def find_own(tensor: Tensor) -> Tensor:
    """The part that this rank has of it, which may be all."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@lru_cache
def _make_mesh(device: str, sizes: tuple[tuple[str, int], ...]) -> DeviceMesh:
    """Made once in a process: every group of ranks has connections of its own."""
    names, numbers = zip(*sizes, strict=True)
    return init_device_mesh(device, numbers, mesh_dim_names=names)
