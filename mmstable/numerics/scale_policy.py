"""The settings of a loss scale, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Callable

from mmstable.messages import _
from mmstable.settings import (
    flag,
    integer,
    known_settings,
    number,
    overriding,
)


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
        for name, check in _CHECKS.items():
            value = check('loss_scale', name, getattr(self, name))
            object.__setattr__(self, name, value)
        if not self.min_scale <= self.init_scale <= self.max_scale:
            raise ValueError(
                _(
                    'loss_scale: `init_scale` {init} is outside [`min_scale` '
                    '{least}, `max_scale` {most}].',
                    init=self.init_scale,
                    least=self.min_scale,
                    most=self.max_scale,
                )
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
            settings = overriding(loss_scale)
            known_settings('loss_scale', settings, _CHECKS)
            return cls(**_with_cap(settings))
        if isinstance(loss_scale, (int, float)):
            return cls(**_with_cap({'init_scale': loss_scale}))
        raise TypeError(
            _(
                "loss_scale: must be 'dynamic', a number or a dict, got "
                '{value!r}.',
                value=loss_scale,
            )
        )

    def clamp(self, scale: float) -> float:
        """The nearest scale that is allowed."""
        return min(max(scale, self.min_scale), self.max_scale)

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """In which settings a saved state differs from this policy."""
        return [
            _(
                '{name} {saved} in the checkpoint, {configured} configured',
                name=field.name,
                saved=state[field.name],
                configured=getattr(self, field.name),
            )
            for field in fields(self)
            if state.get(field.name, getattr(self, field.name))
            != getattr(self, field.name)
        ]


def _with_cap(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which a high start value lifts the default cap."""
    start = settings.get('init_scale')
    is_high = isinstance(start, (int, float)) and start > ScalePolicy.max_scale
    return {'max_scale': start, **settings} if is_high else dict(settings)


_positive = partial(number, above=0)
_CHECKS: Mapping[str, Callable[[str, str, Any], Any]] = {
    'init_scale': _positive,
    'growth_factor': partial(number, above=1),
    'backoff_factor': partial(number, above=0, below=1),
    'growth_interval': integer,
    'min_scale': _positive,
    'max_scale': _positive,
    'hysteresis': integer,
    'frozen': flag,
}
