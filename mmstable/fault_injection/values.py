"""The numbers that faults put into tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mmstable.messages import _
from mmstable.settings import is_number, refuse

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
    if not is_number(factor) or abs(factor) <= 1:
        refuse('', 'factor', _('a finite number above 1 or below -1'), factor)
