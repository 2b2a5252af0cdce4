"""Regions for models that mark none themselves, those of the library transformers, by hooks.

What a module is, its name and the name of its class tell; architectures differ, and what is not
recognised falls to what is around it, or to "other". The arithmetic between modules of attention
(scores, softmax, the use of rotary positions) has the region of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from flopwatch.regions import region

PATTERNS: dict[str, str] = {
    "head": r"(lm_head|embed_out)$",
    "attention/rotation": r":\w*RotaryEmbedding$",
    "embedding": r"(embed_\w+|wte|wpe|word_embeddings)$|:\w*Embedding$",
    "norm": r":\w*Norm\w*$",
    "attention/qkv": r"([qkv]_proj|qkv_proj|q_[ab]_proj|kv_[ab]_proj\w*|query_key_value|c_attn|"
    r"Wqkv|in_proj|query|key|value)$",
    "attention/output": r"(o_proj|out_proj)$|.*(attn|attention)\.(c_proj|dense|proj)$",
    "attention": r":\w*Attention\w*$",
    "feed-forward/up": r"(up_proj|gate_proj|gate_up_proj|fc1|c_fc|fc_in|dense_h_to_4h|w1|w3)$",
    "feed-forward/activation": r"(act|act_fn|activation|activation_fn|activation_func)$",
    "feed-forward/down": r"(down_proj|fc2|fc_out|dense_4h_to_h|w2)$|.*mlp\.c_proj$",
    "feed-forward": r"(mlp|feed_forward|ffn)$|:\w*(MLP|FeedForward)$",
}
"""By region, what modules there are called: the last part of the name, or with a dot the whole
name, or after a colon the class. The first that matches counts."""


def find_region(name: str, class_name: str) -> str | None:
    """
    >>> find_region("model.layers.0.self_attn.q_proj", "Linear")
    'attention/qkv'
    >>> find_region("model.layers.0.input_layernorm", "LlamaRMSNorm")
    'norm'
    >>> find_region("model.layers.0", "LlamaDecoderLayer")
    """
    last = name.rpartition(".")[2]
    names = (last, name, f":{class_name}")
    return next(
        (
            found
            for found, pattern in PATTERNS.items()
            if any(re.match(pattern, each) for each in names)
        ),
        None,
    )


@contextmanager
def marking(model: Any) -> Iterator[None]:
    """Have every module that is recognised enter its region, for as long as this lasts."""
    entered: list[AbstractContextManager[object]] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            entered.append(region(name))
            entered[-1].__enter__()

        return hook

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    hooks = []
    for path, module in model.named_modules():
        name = find_region(path, type(module).__name__)
        if name is not None:
            hooks.append(module.register_forward_pre_hook(enter(name)))
            # Always: checkpointing leaves a module by an exception once it has what it needs.
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with _marking_loss(model):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _marking_loss(model: Any) -> Iterator[None]:
    """The loss is no module, but a function that models of transformers can be given."""
    original = getattr(model, "loss_function", None)
    if original is None:
        yield
        return

    def marked(*arguments: Any, **options: Any) -> Any:
        with region("loss"):
            return original(*arguments, **options)

    model.loss_function = marked
    try:
        yield
    finally:
        model.loss_function = original
