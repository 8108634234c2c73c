"""``custom_hooks`` and ``profiler_config``: the hooks that mmcv has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.registry import HOOKS

from mmstable.errors import UsageError
from mmstable.legacy.config.draft import NO_TYPE, Draft, take_dict
from mmstable.messages import _

# mmengine adds these to every run.
_DEFAULT = ('DistSamplerSeedHook', 'IterTimerHook')


def translate_custom_hooks(draft: Draft) -> None:
    """Settle hooks; those of other packages are kept and listed."""
    profiler = take_dict(draft, 'profiler_config')
    if profiler is not None:
        profiler.setdefault('type', 'ProfilerHook')
        hook = _translate(draft, 'profiler_config', profiler)
        draft.append('custom_hooks', hook, 'profiler_config')
    if not draft.all_old or not draft.settings.get('custom_hooks'):
        return
    hooks = draft.settings['custom_hooks']
    if isinstance(hooks, Mapping):
        hooks = [hooks]
    new = [
        _translate(draft, f'custom_hooks[{index}]', hook)
        for index, hook in enumerate(hooks)
    ]
    new = [hook for hook in new if hook is not None]
    if new != draft.settings['custom_hooks']:
        draft.put('custom_hooks', new, 'custom_hooks')


def _translate(draft: Draft, path: str, hook: Any) -> Any:
    if not isinstance(hook, Mapping) or 'type' not in hook:
        raise UsageError(_(NO_TYPE, path=path, got=hook))
    kind = hook['type']
    if kind in _DEFAULT:
        draft.note(
            path, _('{kind} is part of every run of mmengine', kind=kind)
        )
        return None
    if kind == 'EMAHook':
        return _average(draft, path, dict(hook))
    if kind == 'ProfilerHook':
        return _profiler(draft, path, dict(hook))
    if kind == 'SyncBuffersHook' and 'distributed' in hook:
        draft.note(f'{path}.distributed', _('not needed'))
        return {k: v for k, v in hook.items() if k != 'distributed'}
    if isinstance(kind, str) and not _is_registered(kind):
        draft.leave(
            path,
            _(
                '{kind} is neither of mmcv nor known to mmengine here. It is '
                'kept: your project must have it for mmengine, whose stages '
                'take more arguments',
                kind=kind,
            ),
        )
    return dict(hook)


def _average(draft: Draft, path: str, hook: dict[str, Any]) -> Any:
    # mmcv's defaults.
    interval = hook.get('interval', 1)
    momentum = hook.get('momentum', 0.0002) ** interval
    warm_up = hook.pop('warm_up', 100)
    if hook.pop('resume_from', None):
        draft.leave(
            f'{path}.resume_from',
            _('the average is in the checkpoint that the run resumes from'),
        )
    if warm_up and 1 / warm_up < momentum:
        draft.leave(
            f'{path}.warm_up',
            _(
                '{warm_up}: mmengine averages with the momentum {momentum:g} '
                'from the start',
                warm_up=warm_up,
                momentum=momentum,
            ),
        )
    return {**hook, 'momentum': momentum, 'interval': interval}


def _profiler(draft: Draft, path: str, hook: dict[str, Any]) -> Any:
    if 'profile_iters' in hook:
        hook['profile_times'] = hook.pop('profile_iters')
    activities = hook.pop('activities', None)
    if activities is not None:
        hook['activity_with_cpu'] = 'cpu' in activities
        hook['activity_with_cuda'] = 'cuda' in activities
    return hook


def _is_registered(name: str) -> bool:
    bare = name.rpartition('.')[2]
    return any(
        bare in registry.module_dict
        for registry in (HOOKS, *HOOKS.children.values())
    )
