"""Schedules that do not fit the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView, Part, whole_number
from mmstable.preflight.rule import Hit, rule

_ADAPTIVE = ('ReduceOnPlateauLR', 'ReduceOnPlateauParamScheduler')
_RAMPS = {'LinearLR': 'start_factor', 'ConstantLR': 'factor'}


@rule('no_warmup', Severity.HINT)
def no_warmup(view: ConfigView) -> Iterator[Hit]:
    """Transformers that start with the full rate.

    It is in 4 % of the published configs, most of the DETR family, which
    clip hard instead. Hence only a hint.
    """
    is_new = not view.get('load_from') and not view.get('resume')
    if not view.wrappers or not view.transformers or not is_new:
        return
    if view.length is None or any(map(_warms_up, view.schedulers)):
        return
    unit = 'epochs' if view.by_epoch else 'iterations'
    ramp = {
        'type': 'LinearLR',
        'start_factor': 1e-3,
        'by_epoch': False,
        'begin': 0,
        'end': 1000 if view.by_epoch else max(1, min(1500, view.length // 20)),
    }
    change: dict[str, Any] = {}
    whole = view.get('param_scheduler') or []
    if isinstance(whole, dict) and 'type' in whole:
        whole = [whole]
    if isinstance(whole, (list, tuple)):
        change = {'param_scheduler': [ramp, *whole]}
    fields = {'kinds': view.transformers[:3], 'unit': unit}
    yield Hit('param_scheduler', fields, change)


@rule('schedule_by_epoch', Severity.ERROR)
def schedule_by_epoch(view: ConfigView) -> Iterator[Hit]:
    """A schedule by epochs in a run that is one single epoch to mmengine."""
    if view.by_epoch or view.length is None:
        return
    for one in view.schedulers:
        if one.settings.get('by_epoch', True) and one.kind not in _ADAPTIVE:
            path = f'{one.path}.by_epoch'
            yield Hit(path, {'kind': one.kind}, {path: False})


@rule('schedule_ends_early', Severity.WARNING)
def schedule_ends_early(view: ConfigView) -> Iterator[Hit]:
    """Schedules that are over long before the run is."""
    ends = [(one, _end_of(one)) for one in _counted_as_the_run(view)]
    length = view.length
    if length is None or len(ends) < len(view.schedulers) or not ends:
        return
    # A rise to the rate that it then keeps is nobody's mistake.
    if all(_warms_up(one) for one, _ in ends):
        return
    last, end = max(ends, key=lambda pair: pair[1] or length)
    if end is not None and end < length:
        fields = {'kind': last.kind, 'end': end, 'length': length}
        yield Hit(last.path, fields, _ending_at(last, length))


@rule('schedule_ends_late', Severity.WARNING)
def schedule_ends_late(view: ConfigView) -> Iterator[Hit]:
    """Schedules that the run cuts off."""
    length = view.length
    for one in _counted_as_the_run(view) if length else ():
        end = _end_of(one)
        if end is not None and length and end > length:
            fields = {'kind': one.kind, 'end': end, 'length': length}
            yield Hit(one.path, fields, _ending_at(one, length))


def _counted_as_the_run(view: ConfigView) -> list[Part]:
    """Schedules in epochs of a run in epochs, or both in iterations."""
    return [
        one
        for one in view.schedulers
        if bool(one.settings.get('by_epoch', True)) == view.by_epoch
    ]


def _end_of(scheduler: Part) -> int | None:
    """When it is over; None if it lasts as long as the run."""
    begin = whole_number(scheduler.settings.get('begin')) or 0
    span = whole_number(scheduler.settings.get('T_max'))
    if span is not None:
        return begin + span
    return whole_number(scheduler.settings.get('end'))


def _ending_at(scheduler: Part, length: int) -> dict[str, Any]:
    settings, path = scheduler.settings, scheduler.path
    begin = whole_number(settings.get('begin')) or 0
    if begin >= length:
        # It would never begin: nobody can guess what is meant.
        return {}
    change = {}
    if 'T_max' in settings:
        change[f'{path}.T_max'] = length - begin
    if 'end' in settings:
        change[f'{path}.end'] = length
    return change


def _warms_up(scheduler: Part) -> bool:
    settings, kind = scheduler.settings, scheduler.kind
    if 'Warmup' in kind or kind.startswith('OneCycle'):
        return True
    if settings.get('warmup') is not None:
        return True
    factor = settings.get(_RAMPS.get(kind, ''), 1 / 3)
    starts = not settings.get('begin')
    return kind in _RAMPS and starts and factor < 1
