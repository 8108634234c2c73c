"""The settings of a loss scale, and what they may be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ScalePolicy:
    """How a loss scale moves.

    Args:
        init_scale (float): Where it starts. Defaults to 65536.0.
        growth_factor (float): What it grows by. Defaults to 2.0.
        backoff_factor (float): What an overflow multiplies it by.
            Defaults to 0.5.
        growth_interval (int): Clean steps in a row before it grows.
            Defaults to 2000.
        min_scale (float): Its floor. Defaults to 1.0.
        max_scale (float): Its cap. Defaults to 16777216.0, or in a config to
            a start value above that.
        hysteresis (int): Overflows that it takes to back off once, counted
            anew after every clean step. Defaults to 1.
        frozen (bool): Keep the start value for good, as mmengine does with a
            float. Defaults to False.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    hysteresis: int = 1
    frozen: bool = False

    def __post_init__(self) -> None:
        for name in ('init_scale', 'min_scale', 'max_scale'):
            self._require(name, getattr(self, name) > 0, 'positive')
        self._require('growth_factor', self.growth_factor > 1, 'above 1')
        self._require(
            'backoff_factor',
            0 < self.backoff_factor < 1,
            'between 0 and 1, both excluded',
        )
        self._require('growth_interval', self.growth_interval > 0, 'positive')
        self._require('hysteresis', self.hysteresis > 0, 'positive')
        if not self.min_scale <= self.init_scale <= self.max_scale:
            raise ValueError(
                f'loss_scale: `init_scale` {self.init_scale} is outside '
                f'[`min_scale` {self.min_scale}, `max_scale` '
                f'{self.max_scale}].'
            )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(
                f'loss_scale: `{name}` must be {rule}, got '
                f'{getattr(self, name)}.'
            )

    @classmethod
    def from_config(cls, loss_scale: Any) -> ScalePolicy:
        """Understand the ``loss_scale`` setting of a wrapper.

        Args:
            loss_scale (str or float or int or Mapping): 'dynamic', a start
                value, or any of this class's arguments by name.
        """
        if loss_scale == 'dynamic':
            return cls()
        if isinstance(loss_scale, Mapping):
            return cls(**_checked(loss_scale))
        if isinstance(loss_scale, (int, float)):
            return cls(**_checked({'init_scale': loss_scale}))
        raise TypeError(
            "loss_scale: must be 'dynamic', a number or a dict, got "
            f'{loss_scale!r}.'
        )

    def clamp(self, scale: float) -> float:
        """The nearest scale that is allowed."""
        return min(max(scale, self.min_scale), self.max_scale)

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """In which settings a saved state differs from this policy."""
        return [
            f'{field.name} {state[field.name]} in the checkpoint, '
            f'{getattr(self, field.name)} configured'
            for field in fields(self)
            if state.get(field.name, getattr(self, field.name))
            != getattr(self, field.name)
        ]


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    types = {field.name: field.type for field in fields(ScalePolicy)}
    checked = {
        name: _value(name, value, types) for name, value in settings.items()
    }
    start = checked.get('init_scale', 0.0)
    if start > ScalePolicy.max_scale:
        checked.setdefault('max_scale', start)
    return checked


def _value(name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name not in types:
        near = difflib.get_close_matches(name, types, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ''
        raise ValueError(
            f"loss_scale: unknown key '{name}'{hint}; allowed are "
            f'{sorted(types)}.'
        )
    kind = types[name]
    if kind == 'bool':
        if not isinstance(value, bool):
            raise TypeError(
                f'loss_scale: `{name}` must be a bool, got {value!r}.'
            )
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f'loss_scale: `{name}` must be a number, got {value!r}.'
        )
    if not math.isfinite(value):
        raise ValueError(f'loss_scale: `{name}` must be finite, got {value}.')
    if kind == 'int':
        if value != int(value):
            raise ValueError(
                f'loss_scale: `{name}` must be a whole number, got {value}.'
            )
        return int(value)
    return float(value)
