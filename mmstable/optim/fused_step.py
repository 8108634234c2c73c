"""Steps of optimizers that unscale and skip on the device by themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, is_tensor
from torch.optim import Optimizer

_TAKES_A_SCALER: dict[type[Optimizer], bool] = {}


def reads_verdict_on_device(optimizer: Optimizer) -> bool:
    """Whether ``step`` obeys ``grad_scale`` and ``found_inf`` tensors.

    torch's fused optimizers do; a loaded checkpoint can have switched a
    parameter group back to an implementation that does not.
    """
    if not getattr(optimizer, '_step_supports_amp_scaling', False):
        return False
    if _takes_a_scaler(type(optimizer)):
        return False
    return all(group.get('fused', True) for group in optimizer.param_groups)


def _takes_a_scaler(cls: type[Optimizer]) -> bool:
    # An older contract, in which the scaler itself is handed over. Looking
    # at a signature takes longer than all the rest of a small step.
    if cls not in _TAKES_A_SCALER:
        parameters = inspect.signature(cls.step).parameters
        _TAKES_A_SCALER[cls] = 'grad_scaler' in parameters
    return _TAKES_A_SCALER[cls]


def step_with_verdict(
    optimizer: Optimizer,
    divisor: Tensor | None,
    found_inf: Tensor | None,
    **kwargs: Any,
) -> None:
    """Step with gradients divided by a tensor, unless a tensor says no.

    Args:
        optimizer (Optimizer): One that reads its verdict on the device.
        divisor (Tensor, optional): What to divide the gradients by.
        found_inf (Tensor, optional): Where it is 1.0 nothing is updated.
        **kwargs: For ``optimizer.step``.
    """
    optimizer.grad_scale = divisor  # type: ignore[attr-defined]
    optimizer.found_inf = found_inf  # type: ignore[attr-defined]
    try:
        optimizer.step(**kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def split_by_state(
    optimizer: Optimizer, params: list[Tensor]
) -> list[set[int]]:
    """Ids of the parameters that have optimizer state, and of the others.

    Returns:
        list[set[int]]: One or two sets; none of them is empty.
    """
    known = {
        id(param)
        for param in params
        if any(map(is_tensor, optimizer.state.get(param, {}).values()))
    }
    new = {id(param) for param in params} - known
    return [part for part in (known, new) if part]


@contextmanager
def restricted_to(optimizer: Optimizer, params: set[int]) -> Iterator[None]:
    """Let an optimizer see no parameters but those of these ids.

    Args:
        optimizer (Optimizer): The optimizer.
        params (set[int]): The ids.
    """
    everything = [group['params'] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group['params'] = [p for p in group['params'] if id(p) in params]
    try:
        yield
    finally:
        for group, original in zip(optimizer.param_groups, everything):
            group['params'] = original
