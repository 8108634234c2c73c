"""Hooks that are there twice, or come in the wrong order."""

from __future__ import annotations

from collections.abc import Iterator

from mmengine.runner import get_priority

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView, Part
from mmstable.preflight.rule import Hit, rule

# Who has to know about a step before whom, and the priority each has.
_ORDER = {
    'RuntimeInfoHook': 10,
    'GradNanLoggerHook': 30,
    'EventLogHook': 30,
    'GradClipHook': 30,
    'NanForensicsHook': 35,
    'DivergenceGuardHook': 40,
    'EMAHook': 50,
    'SafeEMAHook': 50,
    'ParamSchedulerHook': 70,
    'SafeParamSchedulerHook': 70,
    'CheckpointHook': 90,
    'SafeCheckpointHook': 90,
    'EmergencyCheckpointHook': 100,
}
# The same hook twice does its work twice.
_SINGLE = {*_ORDER, 'IterTimerHook', 'LoggerHook', 'DistSamplerSeedHook'}
_FAMILIES = ('EMAHook', 'ParamSchedulerHook', 'CheckpointHook')


@rule('hook_priority', Severity.WARNING)
def hook_priority(view: ConfigView) -> Iterator[Hit]:
    """A priority that puts a hook before what it has to know."""
    known = [hook for hook in view.hooks if hook.kind in _ORDER]
    for hook in known:
        if hook.settings.get('priority') is None:
            continue
        mine = get_priority(hook.settings['priority'])
        wrong = [
            other.kind
            for other in known
            if (_ORDER[other.kind] - _ORDER[hook.kind])
            * (_priority(other) - mine)
            < 0
        ]
        if wrong:
            rest = {k: v for k, v in hook.settings.items() if k != 'priority'}
            fields = {
                'kind': hook.kind,
                'priority': hook.settings['priority'],
                'usual': _ORDER[hook.kind],
                'others': wrong,
            }
            yield Hit(f'{hook.path}.priority', fields, {hook.path: rest})


@rule('hook_twice', Severity.WARNING)
def hook_twice(view: ConfigView) -> Iterator[Hit]:
    """Two hooks that do the same work."""
    seen: dict[str, Part] = {}
    custom = view.get('custom_hooks') or []
    for hook in view.hooks:
        family = next(
            (f for f in _FAMILIES if hook.kind in (f, f'Safe{f}')), ''
        )
        is_single = hook.kind in _SINGLE or hook.path.startswith('default_')
        name = family or hook.kind
        first = seen.setdefault(name, hook)
        # Of other hooks, only copies are surely a mistake.
        copied = first.settings == hook.settings
        if first is hook or not (is_single or copied):
            continue
        fields = {'kind': hook.kind, 'first': first.path, 'path': hook.path}
        change = {}
        if hook.path.startswith('custom_hooks'):
            place = int(hook.path.rpartition('.')[2])
            others = [o for n, o in enumerate(custom) if n != place]
            change = {'custom_hooks': others}
        yield Hit(hook.path, fields, change)


def _priority(hook: Part) -> int:
    given = hook.settings.get('priority')
    return _ORDER[hook.kind] if given is None else get_priority(given)
