"""How far gradients are cut back, as plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from torch import Tensor

# torch.nn.utils.clip_grad_norm_ adds this to the norm it divides by.
_EPSILON = 1e-6


@dataclass(frozen=True)
class NormClip:
    """Shrink all gradients together so that their norm is at most a limit.

    Args:
        max_norm (float): The limit.
        norm_type (float): Order of the norm. Defaults to 2.0.
    """

    max_norm: float
    norm_type: float = 2.0

    def excess(self, norm: Tensor) -> Tensor:
        """What gradients of this norm must be divided by, at least 1."""
        return norm.add(_EPSILON).div_(self.max_norm).clamp_(min=1.0)

    def coefficient(self, norm: float) -> float:
        """What gradients of this norm are multiplied by, at most 1."""
        return min(1.0, self.max_norm / (norm + _EPSILON))

    def __str__(self) -> str:
        order = '' if self.norm_type == 2 else f', norm_type={self.norm_type}'
        return f'max_norm={self.max_norm:g}{order}'


@dataclass(frozen=True)
class ValueClip:
    """Cut every single gradient value to a range around zero.

    Args:
        clip_value (float): The largest absolute value allowed.
    """

    clip_value: float

    def __str__(self) -> str:
        return f'clip_value={self.clip_value:g}'


Clip = Union[NormClip, ValueClip]

_ALLOWED = {
    'norm': {'max_norm', 'norm_type', 'error_if_nonfinite', 'foreach'},
    'value': {'clip_value', 'foreach'},
}
_REQUIRED = {'norm': 'max_norm', 'value': 'clip_value'}


def parse_clip_grad(clip_grad: Mapping | None) -> Clip | None:
    """Understand mmengine's ``clip_grad`` setting without changing it.

    Args:
        clip_grad (Mapping, optional): ``type`` ('norm' or 'value') and the
            arguments of ``torch.nn.utils.clip_grad_norm_`` or
            ``clip_grad_value_``.
    """
    if clip_grad is None:
        return None
    if not isinstance(clip_grad, Mapping):
        raise TypeError(
            f'clip_grad: must be a dict or None, got {clip_grad!r}.'
        )
    settings = dict(clip_grad)
    kind = settings.pop('type', 'norm')
    if kind not in _ALLOWED:
        raise ValueError(
            f"clip_grad: `type` must be 'norm' or 'value', got {kind!r}."
        )
    unknown = sorted(settings.keys() - _ALLOWED[kind])
    if unknown:
        raise ValueError(
            f'clip_grad: unknown setting {unknown[0]!r} for type {kind!r}; '
            f'allowed are {sorted(_ALLOWED[kind])}.'
        )
    if _REQUIRED[kind] not in settings:
        raise ValueError(
            f'clip_grad: type {kind!r} needs `{_REQUIRED[kind]}`, got '
            f'{dict(clip_grad)}.'
        )
    if settings.get('error_if_nonfinite'):
        raise ValueError(
            'clip_grad: `error_if_nonfinite=True` contradicts a safe '
            'wrapper, which skips a step with a non-finite norm.'
        )
    if kind == 'value':
        return ValueClip(_limit('clip_value', settings['clip_value']))
    return NormClip(
        _limit('max_norm', settings['max_norm']),
        _norm_type(settings.get('norm_type', 2.0)),
    )


def _limit(name: str, value: object) -> float:
    number = _number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f'clip_grad: `{name}` must be positive and finite, got {value}.'
        )
    return number


def _norm_type(value: object) -> float:
    number = _number('norm_type', value)
    if not number > 0:
        raise ValueError(
            f'clip_grad: `norm_type` must be positive or inf, got {value}.'
        )
    return number


def _number(name: str, value: object) -> float:
    # torch takes norm_type='inf' too.
    if value == 'inf':
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f'clip_grad: `{name}` must be a number, got {value!r}.'
        )
    return float(value)
