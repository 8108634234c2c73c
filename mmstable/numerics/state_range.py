"""How large may gradients get before an optimizer's state overflows?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import (
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    SparseAdam,
)

from mmstable.numerics.grad_health import stored_values


class _Squares(NamedTuple):
    """Where an optimizer keeps squares of gradients, and how.

    Args:
        key (str): What its state calls them.
        kept (float): What they are multiplied by in a step.
        share (float): What the new square is multiplied by.
    """

    key: str
    kept: float
    share: float


def largest_squarable(dtype: torch.dtype) -> float:
    """The largest number whose square is finite in a floating-point dtype."""
    return math.sqrt(torch.finfo(dtype).max)


def largest_safe_norm(optimizer: Optimizer) -> float:
    """The largest norm of gradients that no state can overflow by.

    Adam and its like keep squares of gradients; one that overflows to Inf
    stays for good. No value is above the norm of all gradients, and no
    average of squares above the largest of them, so nothing overflows up to
    this norm: about 1.8e19 for a state in float32 or bfloat16, 255 in
    float16. What is above it has to be looked at. Inf for an optimizer that
    is not known to keep squares, as SGD.

    Args:
        optimizer (Optimizer): The optimizer. A parameter that has no state
            yet counts by its own dtype, as torch's optimizers create it. All
            parameters are looked at: keep the result until the state is
            replaced.
    """
    dtypes = {
        dtype
        for param, squares in _with_squares(optimizer)
        for dtype in [_state_dtype(optimizer, param, squares.key)]
        if dtype.is_floating_point
    }
    return min(map(largest_squarable, dtypes), default=math.inf)


def overflows_state(
    optimizer: Optimizer,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    factor: float,
) -> bool:
    """Whether a gradient makes a square overflow that the state keeps.

    It looks at every value: for gradients above :func:`largest_safe_norm`.

    Args:
        optimizer (Optimizer): The optimizer.
        params (Sequence[Tensor]): Parameters of it.
        grads (Sequence[Tensor]): Their gradients, which are finite.
        factor (float): What gradients are multiplied by before their step.
    """
    squares_of = {id(param): s for param, s in _with_squares(optimizer)}
    for param, grad in zip(params, grads):
        squares = squares_of.get(id(param))
        if squares is None or not stored_values(grad).numel():
            continue
        dtype = _state_dtype(optimizer, param, squares.key)
        if dtype.is_floating_point:
            state = optimizer.state.get(param, {}).get(squares.key)
            if _overflows(squares, state, grad, factor, dtype):
                return True
    return False


def _overflows(
    squares: _Squares,
    state: Tensor | None,
    grad: Tensor,
    factor: float,
    dtype: torch.dtype,
) -> bool:
    most = torch.finfo(dtype).max
    highest = float(stored_values(grad).abs().max()) * factor
    # Half precision is squared in float32.
    wide = dtype if dtype is torch.float64 else torch.float32
    if highest > largest_squarable(wide):
        return True
    if squares.share * highest**2 > most:
        return True
    if state is None:
        return False
    before = stored_values(state)
    old = float(before.max()) if before.numel() else 0.0
    if not squares.kept * old + squares.share * highest**2 > most:
        return False
    # The largest of both need not be in one place.
    values = grad.to_dense() if grad.is_sparse else stored_values(grad)
    new = values.double().mul_(factor).square_().mul_(squares.share)
    new.add_(before.double(), alpha=squares.kept)
    # What was Inf before is not the doing of this gradient.
    return bool(((new > most) & before.isfinite()).any())


def _with_squares(optimizer: Optimizer) -> Iterator[tuple[Tensor, _Squares]]:
    """The parameters whose squares are kept; none of unknown optimizers."""
    for group in optimizer.param_groups:
        squares = _squares_of(optimizer, group)
        if squares is not None:
            for param in group['params']:
                yield param, squares


def _squares_of(
    optimizer: Optimizer, group: Mapping[str, Any]
) -> _Squares | None:
    if isinstance(optimizer, (Adam, AdamW, NAdam, RAdam, SparseAdam)):
        kept, key = float(group['betas'][1]), 'exp_avg_sq'
    elif isinstance(optimizer, RMSprop):
        kept, key = float(group['alpha']), 'square_avg'
    elif isinstance(optimizer, Adadelta):
        kept, key = float(group['rho']), 'square_avg'
    elif isinstance(optimizer, Adagrad):
        # A sum.
        return _Squares('sum', 1.0, 1.0)
    else:
        return None
    return _Squares(key, kept, 1 - kept)


def _state_dtype(optimizer: Optimizer, param: Tensor, key: str) -> torch.dtype:
    state = optimizer.state.get(param, {}).get(key)
    return state.dtype if isinstance(state, Tensor) else param.dtype
