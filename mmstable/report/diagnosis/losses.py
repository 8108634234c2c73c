"""A loss that rises for good."""

from __future__ import annotations

import math
from statistics import median

from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.report.history import History
from mmstable.report.series import Series, ordered

_PARTS = 8
_LEAST_POINTS = 24
_RISE = 1.5


def levels(series: Series) -> list[float]:
    """The median of each eighth of a series."""
    x, y = ordered(series)
    held = [value for value in y.tolist() if math.isfinite(value)]
    size = len(held) / _PARTS
    if len(held) < _LEAST_POINTS:
        return []
    cuts = [round(i * size) for i in range(_PARTS + 1)]
    return [median(held[a:b]) for a, b in zip(cuts, cuts[1:])]


def main_loss(history: History) -> Series:
    """The loss as mmengine logs it, or else as it was sampled."""
    logged = history.line('mean_loss', 'loss')
    sampled = history.line('loss', 'loss')
    return logged if len(logged) >= len(sampled) else sampled


def rising_loss(history: History) -> Finding | None:
    """The loss has left its best level and does not come back."""
    found = levels(main_loss(history))
    if not found:
        return None
    best, last = min(found), found[-1]
    if best <= 0 or last < _RISE * best or found[-2] < _RISE * best:
        return None
    return Finding(
        id='rising_loss',
        severity=Severity.WARNING,
        path='',
        what=_(
            'The loss rises: {last:.4g} now, {best:.4g} at its best.',
            best=best,
            last=last,
        ),
        why=_(
            'The best was in part {part} of 8, and the last two parts are '
            'above it by half.',
            part=1 + found.index(best),
        ),
        fix=_(
            'Lower the learning rate, or add mmstable.DivergenceGuardHook, '
            'which goes back in time.'
        ),
    )
