"""A backward pass that may turn out not to count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mmstable.numerics.grad_health import find_nonfinite, gradient_norms


def backward_if_finite(
    loss: Tensor, params: Sequence[Tensor], **kwargs: Any
) -> bool:
    """Back-propagate, but leave out gradients that are not finite.

    Takes memory for one more copy of the gradients, and waits for the device.

    Args:
        loss (Tensor): The loss.
        params (Sequence[Tensor]): All that may get a gradient. If any is not
            finite, what they had before stays as it was.
        **kwargs: For ``loss.backward``.

    Returns:
        bool: Whether all of them are finite, and are kept.
    """
    before = [param.grad for param in params]
    for param in params:
        param.grad = None
    is_finite = False
    try:
        loss.backward(**kwargs)
        is_finite = _are_finite(params)
    finally:
        for param, grad in zip(params, before):
            if not is_finite or param.grad is None:
                param.grad = grad
            elif grad is not None:
                # As autograd adds them.
                param.grad = grad.add_(param.grad)
    return is_finite


def _are_finite(params: Sequence[Tensor]) -> bool:
    grads = [
        param.grad.coalesce() if param.grad.is_sparse else param.grad
        for param in params
        if param.grad is not None and param.grad.numel()
    ]
    return not find_nonfinite(grads, gradient_norms(grads).tolist())
