"""Hooks that notice where a model's forward pass, backward pass and optimizer begin and end.

The loop is not changed, and nothing is waited for. The end of the forward pass registers a hook on
its output; when a gradient arrives there, the backward pass of the model begins, and two callbacks
are queued at autograd's engine. The first runs when all gradients of this process are computed, and
queues the second: behind what DistributedDataParallel and `fully_shard` have queued meanwhile,
which wait for other ranks.

Hooks are those of the outer module only, so that nothing of a compiled model is compiled anew; of
one that was compiled in place, the compiled function is wrapped instead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flopwatch.monitor.step_marks import Code

if TYPE_CHECKING:
    from torch import nn

Note = Callable[[Code], None]
OnCall = Callable[[Any, Any], None]
"""Given the arguments of a forward pass that a backward pass may follow."""
OnError = Callable[[Exception], None]

MOST_OUTPUTS = 8
"""Tensors of an output that get a hook: a gradient reaches one of them first."""
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes that sum up gradients over ranks by themselves, in the backward pass."""


class Hook:
    """A function as a hook, which never raises. A copy of the model, or one in a file, has one that
    does nothing."""

    def __init__(self, function: Callable[..., None], on_error: OnError) -> None:
        self._function = function
        self._on_error = on_error

    def __call__(self, *arguments: Any) -> None:
        try:
            self._function(*arguments)
        except Exception as error:
            self._on_error(error)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever loads the model need not have flopwatch, so it must be of the standard library.
        return getattr, (contextlib.nullcontext(), "__exit__")


class ModuleHooks:
    """Of one monitor. `note` is called with a code at every mark, from whatever thread."""

    def __init__(
        self, models: Sequence[nn.Module], note: Note, on_call: OnCall, on_error: OnError
    ) -> None:
        self._models = list(models)
        self._note = note
        self._on_call = on_call
        self._on_error = on_error
        self._handles: list[Any] = []
        self._compiled: dict[int, Callable[..., Any]] = {}
        self._ours: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        """Whether an optimizer changes parameters of these models."""
        self._depth = 0
        """Of models that call each other."""
        self._is_in_backward = False

    def install(self) -> None:
        from torch.optim import optimizer

        for model in self._models:
            if model.__dict__.get("_compiled_call_impl") is not None:
                self._wrap_compiled(model)
                continue
            # First of all: before fully_shard gathers parameters, and before its hook on the
            # output, which queues its own waiting for other ranks.
            self._handles += [
                model.register_forward_pre_hook(
                    self._hook(self._begin_forward), with_kwargs=True, prepend=True
                ),
                model.register_forward_hook(self._hook(self._end_forward), prepend=True),
            ]
        self._handles += [
            optimizer.register_optimizer_step_pre_hook(self._hook(self._begin_optimizer)),
            optimizer.register_optimizer_step_post_hook(self._hook(self._end_optimizer)),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for model in self._models:
            original = self._compiled.pop(id(model), None)
            if original is not None:
                model._compiled_call_impl = original

    def _hook(self, function: Callable[..., None]) -> Hook:
        return Hook(function, self._on_error)

    @property
    def are_wrapped(self) -> bool:
        """Whether gradients are summed up over ranks in the backward pass."""
        return any(
            base.__name__ in WRAPPERS
            for model in self._models
            for module in model.modules()
            for base in type(module).__mro__
        )

    def begin_step(self) -> None:
        """Forget what an exception may have left behind."""
        self._is_in_backward = False
        self._depth = 0

    def _wrap_compiled(self, model: nn.Module) -> None:
        """`Module.compile` compiles hooks with the rest: one of Python's would break the graph."""
        original: Callable[..., Any] = model._compiled_call_impl  # type: ignore[assignment]
        self._compiled[id(model)] = original
        begin, end = self._hook(self._begin_forward), self._hook(self._end_forward)

        def call(*arguments: Any, **options: Any) -> Any:
            begin(model, arguments, options)
            output = original(*arguments, **options)
            end(model, arguments, output)
            return output

        model._compiled_call_impl = call

    def _begin_forward(self, module: Any, arguments: Any, options: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth > 1:
            return
        self._is_in_backward = False
        if torch.is_grad_enabled():
            self._on_call(arguments, options)
        self._note(Code.FORWARD_BEGIN)

    def _end_forward(self, module: Any, arguments: Any, output: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self._note(Code.FORWARD_END)
        if not torch.is_grad_enabled():
            return
        from flopwatch.models.module_flops import list_tensors

        for number, tensor in enumerate(list_tensors(output)):
            if tensor.requires_grad:
                tensor.register_hook(self._hook(self._begin_backward))  # type: ignore[no-untyped-call]
            if number == MOST_OUTPUTS:
                break

    def _begin_backward(self, gradient: Any) -> None:
        if self._is_in_backward:
            return
        self._is_in_backward = True
        self._note(Code.GRADIENT)
        _queue_callback(self._hook(self._end_backward))

    def _end_backward(self) -> None:
        self._is_in_backward = False
        self._note(Code.BACKWARD_END)
        _queue_callback(self._hook(self._end_wait))

    def _end_wait(self) -> None:
        self._note(Code.WAIT_END)

    def _begin_optimizer(self, optimizer: Any, arguments: Any, options: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and self._is_ours(optimizer):
            self._note(Code.OPTIMIZER_BEGIN)

    def _end_optimizer(self, optimizer: Any, arguments: Any, options: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and self._is_ours(optimizer):
            self._note(Code.OPTIMIZER_END)

    def _is_ours(self, optimizer: Any) -> bool:
        known = self._ours.get(optimizer)
        if known is None:
            # Now, not when the monitor was made: fully_shard replaces parameters.
            own = {id(parameter) for model in self._models for parameter in model.parameters()}
            theirs = (p for group in optimizer.param_groups for p in group["params"])
            known = not self._models or any(id(parameter) in own for parameter in theirs)
            self._ours[optimizer] = known
        return known


def _queue_callback(function: Callable[[], None]) -> None:
    from torch.autograd import Variable

    Variable._execution_engine.queue_callback(function)
