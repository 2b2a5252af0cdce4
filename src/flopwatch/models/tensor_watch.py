"""The storages that operations of a step make, followed until they are gone."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flopwatch.jobs.step_memory import Tensor

BLOCK_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class TensorWatch(TorchDispatchMode):
    """Follows all storages that operations make, until they are gone."""

    def __init__(self, model: nn.Module, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.rows: dict[str, list[tuple[int, int, int]]] = {}
        """By part: those of `Moments`."""
        self.kept: dict[int, Tensor] = {}
        self._held = held  # so that no other storage takes their places
        self._known = {_identify(tensor) for tensor in held}
        self._live: dict[int, Tensor] = {}
        self._watches: dict[int, weakref.finalize[Any, Any]] = {}
        self._live_bytes = self._kept_bytes = self._gradient_bytes = 0
        self._part = "forward"
        self._where: list[str] = []
        names = {name for name, _ in model.named_parameters()}
        numbers = [int(n) for name in names for n in BLOCK_NUMBER.findall(name)[:1]]
        last = f".{max(numbers, default=0)}."
        self._awaited = {name for name in names if last in name}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note_gradient(name))
            for name, parameter in model.named_parameters()
        ]
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._note_entry(name)))
            self._hooks.append(module.register_forward_hook(self._note_exit))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        for watch in self._watches.values():
            watch.detach()  # else it would hold us, and we what it waits for

    def finish_forward(self) -> int:
        self._part = "early"
        self.kept = dict(self._live)
        self._kept_bytes = self._live_bytes
        return self._kept_bytes

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        result = operation(*arguments, **(options or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                self._follow(made, operation)
        self._look()
        return result

    def _follow(self, tensor: torch.Tensor, operation: Any) -> None:
        identity = _identify(tensor)
        if identity in self._known:
            return
        module = (self._where[-1] if self._where else "") or "model"
        name = f"{generalise_name(module)}: {operation._schema.name.partition('::')[2]}"
        self._known.add(identity)
        self._live[identity] = describe_storage(name, tensor)
        self._live_bytes += tensor.untyped_storage().nbytes()
        storage = tensor.untyped_storage()
        self._watches[identity] = weakref.finalize(
            storage, self._forget, identity, storage.nbytes()
        )

    def _forget(self, identity: int, size_bytes: int) -> None:
        self._known.discard(identity)
        self._watches.pop(identity, None)
        self._live.pop(identity, None)
        self._live_bytes -= size_bytes
        if self.kept.pop(identity, None) is not None:
            self._kept_bytes -= size_bytes

    def _look(self) -> None:
        kept_bytes = self._live_bytes if self._part == "forward" else self._kept_bytes
        rows = self.rows.setdefault(self._part, [])
        rows.append((self._live_bytes, kept_bytes, self._gradient_bytes))

    def _note_entry(self, name: str) -> Callable[..., None]:
        return lambda *_: self._where.append(name)

    def _note_exit(self, *_: Any) -> None:
        self._where.pop()

    def _note_gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            self._gradient_bytes += parameter.numel() * parameter.element_size()
            self._awaited.discard(name)
            if not self._awaited:
                self._part = "late"

        return note


def _identify(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def generalise_name(name: str) -> str:
    """Without the number of the block."""
    return BLOCK_NUMBER.sub("*", f"{name}.")[:-1]


def describe_storage(name: str, tensor: torch.Tensor) -> Tensor:
    """What its storage holds, which may be more than itself."""
    shape = tuple(tensor.shape)
    size_bytes = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() != size_bytes:
        shape = (size_bytes // tensor.element_size(),)
    return Tensor(name, shape, tensor.element_size())
