"""Are the settings of the guard possible?"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mmstable.numerics.lr_ramp import LearningRateRamp
from mmstable.numerics.spike import SpikeDetector
from mmstable.settings import integer, known_settings, mapping, number

_SPIKE = tuple(inspect.signature(SpikeDetector).parameters)


def parse_spike(where: str, spike: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings of a :class:`SpikeDetector`."""
    settings = mapping(where, 'spike', spike)
    known_settings(f'{where}: `spike`', settings, _SPIKE)
    for name, value in settings.items():
        if name == 'threshold':
            number(where, 'spike.threshold', value, above=0, at_most=1000)
        else:
            settings[name] = integer(where, f'spike.{name}', value, 2)
    return settings


def parse_ramp(
    where: str, recovery: int, warmup: Mapping[str, Any] | None
) -> LearningRateRamp:
    """How the factor on the learning rate starts and recovers."""
    recovery = integer(where, 'lr_recovery', recovery, at_least=0)
    if warmup is None:
        return LearningRateRamp(recovery)
    settings = mapping(where, 'warmup', warmup)
    known_settings(f'{where}: `warmup`', settings, ('iters', 'start_factor'))
    start = settings.get('start_factor', 0.1)
    return LearningRateRamp(
        recovery,
        number(where, 'warmup.start_factor', start, above=0, at_most=1),
        integer(where, 'warmup.iters', settings.get('iters')),
    )
