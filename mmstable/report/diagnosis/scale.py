"""A loss scale that climbs and falls, or starts too high."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.numerics.scale_policy import ScalePolicy
from mmstable.report.history import History
from mmstable.report.plain import mapping
from mmstable.report.series import Series
from mmstable.report.start import Start

_LEAST_TEETH = 3
_LEAST_FALLS = 4
# Iterations after a start in which the scale looks for its level.
_SEARCH = 100


def teeth(scales: list[float]) -> tuple[int, float | None]:
    """How often a scale fell back from where it had just grown to.

    Args:
        scales (list[float]): The scale after each change.

    Returns:
        tuple: How often, and the highest scale that held.
    """
    levels: Counter[float] = Counter()
    for before, top, after in zip(scales, scales[1:], scales[2:]):
        if before < top and after < top:
            levels[after] += 1
    if not levels:
        return 0, None
    return sum(levels.values()), levels.most_common(1)[0][0]


def falls_at_start(series: Series, begin: float) -> tuple[int, float]:
    """How often a scale fell in a row at the start, and to what."""
    count, scale = 0, series.y[0] if len(series) else 0.0
    for x, y in zip(series.x, series.y):
        if y > scale or x > begin + _SEARCH:
            break
        count += y < scale
        scale = y
    return count, scale


def scale_sawtooth(history: History) -> Finding | None:
    """The scale grows into the same overflow again and again."""
    for name in _wrappers(history):
        held = [
            one.scales[name] for one in history.starts if name in one.scales
        ]
        scales = _changes([y for series in held for y in series.y])
        count, level = teeth(scales)
        if count < _LEAST_TEETH or level is None:
            continue
        last = history.starts[-1]
        interval = _interval(last, name)
        return Finding(
            id='scale_sawtooth',
            severity=Severity.WARNING,
            path='',
            what=_(
                'The loss scale grew {count:time|times} and fell back at '
                'once: {level:g} is what holds.',
                count=count,
                level=level,
            ),
            why=_(
                'Each of the {count} attempts cost a step, one after every '
                '{interval} clean steps.',
                count=count,
                interval=interval,
            ),
            fix=_(
                'Start at the scale that holds, and try a higher one less '
                'often.'
            ),
            change=_change(last, name, level, interval * 4),
        )
    return None


def high_start_scale(history: History) -> Finding | None:
    """The scale fell many times before the first steps were made."""
    for start in history.starts:
        for name, series in start.scales.items():
            count, level = falls_at_start(series, start.header.iteration)
            if count < _LEAST_FALLS or start.header.iteration > 0:
                continue
            return Finding(
                id='high_start_scale',
                severity=Severity.HINT,
                path='',
                what=_(
                    'The loss scale starts at {first:g}, and training begins '
                    'at {level:g}.',
                    first=series.y[0],
                    level=level,
                ),
                why=_(
                    'The first {count} falls each cost a step.', count=count
                ),
                fix=_('Start where it ended up.'),
                change=_change(start, name, level, None),
            )
    return None


def _wrappers(history: History) -> list[str]:
    names = [name for one in history.starts for name in one.scales]
    return list(dict.fromkeys(names))


def _changes(scales: list[float]) -> list[float]:
    return [
        scale
        for index, scale in enumerate(scales)
        if index == 0 or scale != scales[index - 1]
    ]


def _interval(start: Start, name: str) -> int:
    policy = mapping(start.header.wrappers[name].scale_policy)
    found = policy.get('growth_interval')
    return found if isinstance(found, int) and 0 < found < 10**9 else 2000


def _change(
    start: Start, name: str, level: float, interval: int | None
) -> dict[str, Any]:
    """The whole setting, because it may replace a number."""
    policy = mapping(start.header.wrappers[name].scale_policy)
    kept = {
        one.name: policy[one.name]
        for one in fields(ScalePolicy)
        if isinstance(policy.get(one.name), (int, float))
        and policy[one.name] != one.default
    }
    kept.update(init_scale=level)
    if interval is not None:
        kept.update(growth_interval=interval)
    place = 'optim_wrapper'
    if len(start.header.wrappers) > 1:
        place += f'.{name}'
    return {f'{place}.loss_scale': {**kept, '_delete_': True}}
