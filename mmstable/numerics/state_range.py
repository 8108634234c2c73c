"""How large may gradients get before an optimizer's state overflows?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import ASGD, SGD, Adamax, Optimizer, Rprop

from mmstable.numerics.grad_health import stored_values

# Those of torch that keep no squares of gradients, and what is made of them.
_WITHOUT_SQUARES = (SGD, ASGD, Adamax, Rprop)


def largest_squarable(dtype: torch.dtype) -> float:
    """The largest number whose square is finite in a floating-point dtype."""
    return math.sqrt(torch.finfo(dtype).max)


def largest_safe_norm(optimizer: Optimizer) -> float:
    """The largest norm of gradients whose square the state can hold.

    Adam and its like keep squares of gradients; one that overflows to Inf
    stays for good. No value is above the norm of all gradients, so nothing
    overflows up to this norm: about 1.8e19 for a state in float32 or
    bfloat16, 255 in float16. Inf for an optimizer that keeps no squares, as
    SGD.

    Args:
        optimizer (Optimizer): The optimizer. A parameter that has no state
            yet counts by its own dtype, as torch's optimizers create it. All
            parameters are looked at: keep the result until the state is
            replaced.
    """
    if isinstance(optimizer, _WITHOUT_SQUARES):
        return math.inf
    dtypes = {
        dtype
        for group in optimizer.param_groups
        for param in group['params']
        for dtype in _state_dtypes(optimizer, param)
        if dtype.is_floating_point
    }
    return min(map(largest_squarable, dtypes), default=math.inf)


def overflows_state(
    optimizer: Optimizer,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    factor: float,
) -> bool:
    """Whether a gradient has a value whose square the state cannot hold.

    It looks at every value: for gradients above :func:`largest_safe_norm`.

    Args:
        optimizer (Optimizer): One that keeps squares.
        params (Sequence[Tensor]): Parameters of it.
        grads (Sequence[Tensor]): Their gradients, which are finite.
        factor (float): What gradients are multiplied by before their step.
    """
    for param, grad in zip(params, grads):
        values = stored_values(grad)
        dtypes = [
            dtype
            for dtype in _state_dtypes(optimizer, param)
            if dtype.is_floating_point
        ]
        if not dtypes or not values.numel():
            continue
        limit = min(map(largest_squarable, dtypes))
        if float(values.abs().max()) * factor > limit:
            return True
    return False


def _state_dtypes(optimizer: Optimizer, param: Tensor) -> set[torch.dtype]:
    # Counters of steps have no dimension.
    found = {
        value.dtype
        for value in optimizer.state.get(param, {}).values()
        if isinstance(value, Tensor) and value.dim() > 0
    }
    return found or {param.dtype}
