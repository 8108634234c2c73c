"""Adaptive gradient clipping, unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmstable.numerics.grad_health import HALF
from mmstable.numerics.module_names import is_inside


@dataclass(frozen=True)
class UnitClip:
    """Keep each unit's gradient small against the unit's own weights.

    A unit is what makes one output: a row of a matrix, a filter of a
    convolution; a whole bias or gain is one, too. Following Brock et al.,
    2021, it may not change by more than a share of its weights.

    Args:
        clip_factor (float): Largest gradient norm over weight norm.
            Defaults to 0.01.
        eps (float): Weight norms count as at least this, so that units that
            start at zero can move. Defaults to 1e-3.
        exclude (tuple[str]): Modules that are left alone, e.g. the last
            linear layer. Defaults to ().
    """

    clip_factor: float = 0.01
    eps: float = 1e-3
    exclude: tuple[str, ...] = ()

    def shrink_(
        self,
        names: Sequence[str],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        magnification: float,
    ) -> None:
        """Clip gradients that are ``magnification`` times too large."""
        for name, param, grad in zip(names, params, grads):
            if grad.is_sparse or is_inside(name, self.exclude):
                continue
            allowed = unit_norms(param.detach()).clamp_(min=self.eps)
            allowed.mul_(self.clip_factor * magnification)
            actual = unit_norms(grad).clamp_(min=1e-12)
            grad.mul_((allowed / actual).clamp_(max=1.0))

    def __str__(self) -> str:
        return f'unit-wise, clip_factor={self.clip_factor:g}'


def unit_norms(tensor: Tensor) -> Tensor:
    """Norms of the units of a tensor, shaped so that they broadcast."""
    # A norm kept in half precision overflows long before its tensor.
    dtype = torch.float32 if tensor.dtype in HALF else None
    if tensor.squeeze().dim() <= 1:
        return torch.linalg.vector_norm(tensor, dtype=dtype)
    axes = tuple(range(1, tensor.dim()))
    return torch.linalg.vector_norm(
        tensor, dim=axes, keepdim=True, dtype=dtype
    )
