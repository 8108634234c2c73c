"""Are the settings of the guard possible?"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mmstable.numerics.lr_ramp import LearningRateRamp
from mmstable.numerics.spike import SpikeDetector

_SPIKE = tuple(inspect.signature(SpikeDetector).parameters)


def check_int(where: str, name: str, value: Any, least: int) -> int:
    """Refuse anything but an int that is large enough."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < least:
        raise ValueError(
            f'{where}: `{name}` must be an int of at least {least}, got '
            f'{value!r}.'
        )
    return value


def check_share(where: str, name: str, value: Any) -> float:
    """Refuse anything but a number above 0 and up to 1."""
    if not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(
            f'{where}: `{name}` must be above 0 and at most 1, got {value!r}.'
        )
    return float(value)


def check_memory(where: str, name: str, value: Any) -> float:
    """Refuse anything but a number from 0 on."""
    if not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(
            f'{where}: `{name}` must be a number of GiB from 0 on, got '
            f'{value!r}.'
        )
    return float(value)


def parse_spike(where: str, spike: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings of a :class:`SpikeDetector`."""
    settings = dict(spike or {})
    for name, value in settings.items():
        if name not in _SPIKE:
            raise ValueError(
                f'{where}: `spike` takes {", ".join(_SPIKE)}, got {name!r}.'
            )
        if name != 'threshold':
            check_int(where, f'spike.{name}', value, 2)
        elif not isinstance(value, (int, float)) or not 0 < value <= 1000:
            raise ValueError(
                f'{where}: `spike.threshold` must be above 0 and at most '
                f'1000, got {value!r}.'
            )
    return settings


def parse_ramp(
    where: str, recovery: int, warmup: Mapping[str, Any] | None
) -> LearningRateRamp:
    """How the factor on the learning rate starts and recovers."""
    check_int(where, 'lr_recovery', recovery, 0)
    if warmup is None:
        return LearningRateRamp(recovery)
    unknown = set(warmup) - {'iters', 'start_factor'}
    if unknown or 'iters' not in warmup:
        raise ValueError(
            f'{where}: `warmup` takes iters and start_factor, got '
            f'{dict(warmup)}.'
        )
    return LearningRateRamp(
        recovery,
        check_share(
            where, 'warmup.start_factor', warmup.get('start_factor', 0.1)
        ),
        check_int(where, 'warmup.iters', warmup['iters'], 1),
    )
