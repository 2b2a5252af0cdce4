"""The backward pass of a function that returns tensors: its phases, and the gradients it gives.

The gradients that arrive at the outputs are random, from a seed: ones would hide what a sum does
not show (those of a softmax would all be zero). A single number, a loss, gets 1.

Which tensors get a gradient is read from the autograd graph of the outputs, and from what the
function refers to. They are named as there: ``x``, ``layer.weight``.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.suites.workload import Phase, Workload
from flopwatch.worker.agreement import copy_tensor, name_tensors


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A tensor that gets a gradient."""

    tensor: Any
    name: str
    is_named: bool = True
    """False where the name is only its place in the graph."""

    @property
    def path(self) -> str:
        """Its name inside its module; that of a tensor of no module is its own."""
        return self.name.partition(".")[2] or self.name


class BackwardPass:
    """A function whose result is differentiated."""

    def __init__(
        self,
        name: str,
        function: Callable[[], Any],
        seed: int,
        chosen: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._function = function
        self._seed = seed
        self._chosen = None if chosen is None else [Leaf(t, n) for n, t in chosen.items()]
        self._upstream: list[Any] = []
        """The gradients that arrive at the outputs."""
        self._leaves: list[Leaf] = []
        self.found: list[tuple[Leaf, Any]] = []
        """By `run_first`: tensors, chosen or all, with a copy of the gradient of each."""

    def make_workload(self) -> Workload:
        """For timing."""
        if not self._upstream:
            self.run_first()
        self.found = []  # their memory is the measurement's
        phases: dict[str, Phase] = {"forward": self._function, "backward": self._differentiate}
        return Workload(phases=phases, reset=self.clear)

    def run_first(self) -> dict[str, Any]:
        """Run it once, find the tensors that get gradients, and return the outputs by name."""
        output = self._function()
        outputs = {name: copy_tensor(tensor) for name, tensor in name_tensors("output", output)}
        roots = list_roots(output)
        if not roots:
            raise UsageError(
                f"{self._name!r} returns nothing that has a gradient, which backward=True needs; "
                "return a tensor computed from one with requires_grad=True"
            )
        self._upstream = [
            make_upstream(root, self._seed + place) for place, root in enumerate(roots)
        ]
        referred = list_referred(self._function)
        in_graph = name_leaves(find_leaves(roots), referred)
        # Reentrant activation checkpointing hides the parameters inside it from the graph.
        self._leaves = [*in_graph, *_leave_out(referred, in_graph)]
        self._leaves += _leave_out(self._chosen or [], self._leaves)
        self.clear()
        self._differentiate_first(output)
        compared = self._leaves if self._chosen is None else self._chosen
        self.found = [
            (leaf, copy_tensor(leaf.tensor.grad))
            for leaf in compared
            if leaf.tensor.grad is not None
        ]
        return outputs

    def _differentiate_first(self, output: Any) -> None:
        try:
            self._differentiate(output)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise UsageError(
                f"{self._name!r} has run its own backward pass already; leave backward=True out, "
                "and name the tensors whose gradients are to be compared: gradients_of=[...]"
            ) from None

    def clear(self) -> None:
        for leaf in self._leaves:
            leaf.tensor.grad = None

    def _differentiate(self, output: Any) -> None:
        import torch

        torch.autograd.backward(list_roots(output), self._upstream)


def copy_gradients(name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Of tensors by name, as a function has left them."""
    for tensor_name, tensor in chosen.items():
        if tensor.grad is None:
            raise UsageError(
                f"{name!r} computes no gradient of {tensor_name}, which gradients_of names; pass "
                "backward=True, or run the backward pass in it"
            )
    return {tensor_name: copy_tensor(tensor.grad) for tensor_name, tensor in chosen.items()}


def list_written(function: Any) -> list[tuple[int, int]]:
    """Changes if the function computes gradients of tensors that it refers to."""
    gradients = [leaf.tensor.grad for leaf in list_referred(function)]
    return [(id(gradient), getattr(gradient, "_version", 0)) for gradient in gradients]


def list_roots(output: Any) -> list[Any]:
    """The tensors of an output that have a gradient."""
    if hasattr(output, "requires_grad"):  # one tensor: nothing to search, in timed code
        return [output] if output.requires_grad else []
    return [tensor for _, tensor in name_tensors("output", output) if tensor.requires_grad]


def make_upstream(root: Any, seed: int) -> Any:
    import torch

    if root.numel() == 1:
        return torch.ones_like(root)
    generator = torch.Generator().manual_seed(seed % 2**63)  # of the CPU: equal on all devices
    wide = torch.complex64 if root.is_complex() else torch.float32
    drawn = torch.randn(root.shape, generator=generator, dtype=wide)
    return drawn.to(device=root.device, dtype=root.dtype)


def find_leaves(roots: Sequence[Any]) -> list[Any]:
    """The tensors that the graph of these ends in, in the order in which it reaches them."""
    leaves = {id(root): root for root in roots if root.grad_fn is None}
    waiting = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen = set(waiting)
    while waiting:
        node = waiting.popleft()
        if type(node).__name__ == "AccumulateGrad":
            leaves[id(node.variable)] = node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return list(leaves.values())


def name_leaves(tensors: Iterable[Any], referred: Iterable[Leaf]) -> list[Leaf]:
    names = {id(leaf.tensor): leaf.name for leaf in referred}
    return [
        Leaf(tensor, names[id(tensor)])
        if id(tensor) in names
        else Leaf(tensor, f"tensor {place} {tuple(tensor.shape)}", is_named=False)
        for place, tensor in enumerate(tensors)
    ]


def _leave_out(leaves: Iterable[Leaf], known: Iterable[Leaf]) -> list[Leaf]:
    ids = {id(leaf.tensor) for leaf in known}
    return [leaf for leaf in leaves if id(leaf.tensor) not in ids]


def list_referred(function: Any) -> list[Leaf]:
    """What a function refers to and may get a gradient: tensors, and parameters of modules."""
    found: dict[int, Leaf] = {}
    for name, value in _list_variables(function):
        for leaf in name_parameters(name, value):
            found.setdefault(id(leaf.tensor), leaf)
    return list(found.values())


def _list_variables(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, partial):
        yield from _list_variables(function.func)
        yield from ((f"argument {place}", value) for place, value in enumerate(function.args))
        yield from function.keywords.items()
        return
    if inspect.ismethod(function):
        yield type(function.__self__).__name__, function.__self__
        function = function.__func__
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        yield from {**variables.globals, **variables.nonlocals}.items()


def name_parameters(name: str, value: Any) -> list[Leaf]:
    """
    >>> import torch
    >>> [leaf.name for leaf in name_parameters("layer", torch.nn.Linear(2, 2))]
    ['layer.weight', 'layer.bias']
    """
    import torch

    if isinstance(value, torch.nn.Module):
        parameters = value.named_parameters(prefix=name)
        return [Leaf(tensor, path) for path, tensor in parameters if tensor.requires_grad]
    if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
        return [Leaf(value, name)]
    return []


def match(mine: Sequence[Leaf], theirs: Sequence[Leaf]) -> dict[int, str] | None:
    """For each of `mine`, by id: the name of the one of `theirs` that it corresponds to, or its own
    where there is none; None where that is not clear.

    Shared tensors correspond to themselves; copies by the same name in their module and the same
    shape, or by their shape alone where no two have it.
    """
    shared = {id(leaf.tensor): leaf.name for leaf in theirs}
    names = {id(leaf.tensor): shared.get(id(leaf.tensor), leaf.name) for leaf in mine}
    mine, theirs = _leave_out(mine, theirs), _leave_out(theirs, mine)
    for key in (_path_and_shape, _shape):
        ours, others = _index_unique(mine, key), _index_unique(theirs, key)
        for what in ours.keys() & others.keys():
            names[id(ours[what].tensor)] = others[what].name
            mine.remove(ours[what])
            theirs.remove(others[what])
    return None if mine and theirs else names


def _index_unique(
    leaves: Sequence[Leaf], key: Callable[[Leaf], Hashable | None]
) -> dict[Hashable, Leaf]:
    """By what no two of them have in common."""
    keys = [key(leaf) for leaf in leaves]
    return {k: leaf for k, leaf in zip(keys, leaves, strict=True) if k and keys.count(k) == 1}


def _path_and_shape(leaf: Leaf) -> Hashable | None:
    return (leaf.path, leaf.tensor.shape) if leaf.is_named else None


def _shape(leaf: Leaf) -> Hashable:
    return ("shape", leaf.tensor.shape)
