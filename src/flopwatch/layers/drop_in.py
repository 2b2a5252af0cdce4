"""What every layer that takes the place of `nn.Linear` does alike: check its input, follow
autocast, and take any number of leading dimensions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flopwatch.errors import LayerError


class DropIn(nn.Module):
    """Has a `weight`, of any shape, and a `bias`; a subclass says how they are applied."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        weight_shape: tuple[int, ...],
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform, bounded as in a dense layer of the same input."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        x, weight, bias = cast_for_autocast(x, self.weight, self.bias)
        if x.dtype != weight.dtype:
            raise LayerError(
                f"the input is {x.dtype} but the layer {weight.dtype}; convert one of them with "
                ".to(), or use torch.autocast"
            )
        tokens = math.prod(x.shape[:-1])  # -1 would not do where there are no features
        y = self.multiply(x.reshape(tokens, self.in_features), weight, bias)
        return y.reshape(*x.shape[:-1], self.out_features)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output for (tokens, in_features), all in one dtype."""
        raise NotImplementedError

    def _check(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise LayerError(
                f"a linear layer takes floating-point input, not {x.dtype}; convert it with "
                ".to(), for example .to(torch.float32)"
            )
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise LayerError(
                f"the last dimension of the input must be {self.in_features}, the layer's "
                f"in_features; the input is {tuple(x.shape)}"
            )


def cast_for_autocast(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """In autocast's dtype where it is on; like autocast, leave float64 alone."""
    device = x.device.type
    available = torch.amp.is_autocast_available(device)  # not on meta
    if not available or not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
