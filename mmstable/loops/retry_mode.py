"""See when the backward pass of a training step begins and ends."""

from __future__ import annotations

from typing import Any, Callable

from torch import Tensor
from torch.overrides import TorchFunctionMode


class RetryMode(TorchFunctionMode):
    """Does something around, or instead of, ``loss.backward()``.

    Args:
        backward (Callable): Called in place of ``Tensor.backward``.
    """

    def __init__(self, backward: Callable[..., None]) -> None:
        super().__init__()
        self._backward = backward

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.backward:
            return self._backward(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
