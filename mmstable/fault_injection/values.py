"""The numbers that faults put into tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

NAN, INF = float('nan'), float('inf')


def name_of(value: float) -> str:
    """As in the rest of mmstable: 'NaN', 'Inf', or the number."""
    if math.isnan(value):
        return 'NaN'
    return 'Inf' if math.isinf(value) else str(value)


@torch.no_grad()
def spoil_first(tensor: Tensor, value: float) -> None:
    """Put ``value`` into the first place of a tensor."""
    tensor[(0,) * tensor.dim()] = value


def check_factor(factor: Any) -> None:
    """Raise an error for what does not make a spike."""
    is_number = isinstance(factor, (int, float)) and not isinstance(
        factor, bool
    )
    if not is_number or not math.isfinite(factor) or abs(factor) <= 1:
        raise ValueError(
            '`factor` must be a finite number above 1 (or below -1), got '
            f'{factor!r}'
        )
