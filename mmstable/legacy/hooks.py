"""``checkpoint_config``, ``log_config``, hooks and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.registry import HOOKS

from mmstable.legacy.draft import MOVED, Translation, class_name, usage_errors
from mmstable.messages import N_
from mmstable.settings import integer, runtime_hooks

# Arguments that both checkpoint hooks have.
_KEPT = (
    'interval',
    'by_epoch',
    'save_optimizer',
    'out_dir',
    'max_keep_ckpts',
    'save_last',
    'filename_tmpl',
    'file_client_args',
)
_KNOWN = ('type', *_KEPT, 'sync_buffer', 'create_symlink', 'meta')


def translate_checkpoints(draft: Translation) -> None:
    """Translate ``checkpoint_config`` to the safe checkpoint hook."""
    if 'checkpoint_config' not in draft.settings:
        return
    config = draft.take('checkpoint_config')
    if config is None:
        # mmengine saves by default.
        draft.fill('default_hooks', {'checkpoint': None}, 'checkpoint_config')
        return
    kind = config.get('type', 'CheckpointHook')
    if kind != 'CheckpointHook':
        why = N_("'{kind}' is not mmcv's; SafeCheckpointHook replaces it")
        draft.leave('checkpoint_config.type', why, kind=kind)
    else:
        draft.unknown('checkpoint_config', config, _KNOWN)
    if not config.get('file_client_args'):
        config.pop('file_client_args', None)
    kept = {name: config[name] for name in _KEPT if name in config}
    hook = {'type': 'mmstable.SafeCheckpointHook', **kept}
    hook.setdefault('by_epoch', draft.by_epoch)
    draft.fill('default_hooks', {'checkpoint': hook}, 'checkpoint_config')
    if config.get('sync_buffer'):
        sync = {'type': 'SyncBuffersHook'}
        draft.append('custom_hooks', sync, 'checkpoint_config')
    draft.drop('checkpoint_config', config)


# From mmcv's hooks to mmengine's back-ends, and their common arguments.
_WANDB = ('init_kwargs', 'commit')
_BACKENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    'TextLoggerHook': ('LocalVisBackend', ()),
    'TensorboardLoggerHook': ('TensorboardVisBackend', ()),
    'WandbLoggerHook': ('WandbVisBackend', (*_WANDB, 'define_metric_cfg')),
    'MMDetWandbHook': ('WandbVisBackend', _WANDB),
    'MMSegWandbHook': ('WandbVisBackend', _WANDB),
    'MlflowLoggerHook': ('MLflowVisBackend', ('exp_name', 'tags', 'params')),
    'NeptuneLoggerHook': ('NeptuneVisBackend', ('init_kwargs',)),
    'ClearMLLoggerHook': ('ClearMLVisBackend', ('init_kwargs',)),
    'DvcliveLoggerHook': ('DVCLiveVisBackend', ()),
}
# Common arguments of the text hook and mmengine's LoggerHook.
_TEXT = (
    'interval_exp_name',
    'out_dir',
    'out_suffix',
    'keep_local',
    'file_client_args',
)
# Arguments of every hook: LoggerHook applies them to all back-ends.
_COMMON = (
    *('type', 'interval', 'ignore_last', 'by_epoch', 'priority'),
    # mmengine needs no such thing.
    'reset_flag',
)
# The last loss scale is more useful than a mean.
_LAST_SCALE = {
    'data_src': 'stable/loss_scale',
    'method_name': 'max',
    'window_size': 1,
}


def translate_log(draft: Translation) -> None:
    """Translate ``log_config`` to logger hook, log format and back-ends."""
    if 'log_config' not in draft.settings:
        return
    config = draft.take('log_config')
    if config is None:
        draft.fill('default_hooks', {'logger': None}, 'log_config')
        return
    interval = config.pop('interval', 10)
    hooks = [
        _checked(draft, 'log_config.hooks', hook)
        for hook in config.pop('hooks', None) or []
    ]
    draft.unknown('log_config', config, ['interval', 'hooks'])
    with usage_errors():
        interval = integer('log_config', 'interval', interval)
    text = next((o for o in hooks if o['type'] == 'TextLoggerHook'), {})
    by_epoch = text.get('by_epoch', draft.by_epoch)
    logger = {
        'type': 'LoggerHook',
        'interval': interval,
        'log_metric_by_epoch': by_epoch,
        **{name: text[name] for name in _TEXT if name in text},
    }
    ignore = [one['ignore_last'] for one in hooks if 'ignore_last' in one]
    if ignore:
        logger['ignore_last'] = all(ignore)
    draft.fill('default_hooks', {'logger': logger}, 'log_config')
    # mmcv logs means over the interval, mmengine over ten iterations.
    processor = {'by_epoch': by_epoch, 'window_size': interval}
    if 'loss_scale' in (draft.settings.get('optim_wrapper') or {}):
        processor['custom_cfg'] = [dict(_LAST_SCALE)]
    draft.fill('log_processor', processor, 'log_config')
    _put_visualizer(draft, hooks, interval)


def _put_visualizer(
    draft: Translation, hooks: list[Any], interval: int
) -> None:
    backends = []
    for index, hook in enumerate(hooks):
        path = f'log_config.hooks[{index}]'
        kind = str(hook['type'])
        if kind not in _BACKENDS:
            draft.leave(path, 'mmengine has no back-end for {kind}', kind=kind)
            continue
        name, shared = _BACKENDS[kind]
        kept = {key: hook[key] for key in shared if hook.get(key) is not None}
        backends.append({'type': name, **kept})
        known = {*shared, *_COMMON}
        if kind == 'TextLoggerHook':
            known.update(_TEXT)
        for key in [one for one in hook if one not in known]:
            if hook[key] is not None:
                why = N_('{value!r}: not an argument of the back-end')
                draft.leave(f'{path}.{key}', why, value=hook[key])
        asked = hook.get('interval', interval)
        if asked != interval:
            why = N_('{asked}: all back-ends use the interval {interval}')
            path = f'{path}.interval'
            draft.leave(path, why, asked=asked, interval=interval)
    if backends:
        visualizer = {'type': 'Visualizer', 'vis_backends': backends}
        draft.fill('visualizer', visualizer, 'log_config')


def _checked(draft: Translation, path: str, hook: Any) -> dict[str, Any]:
    if not isinstance(hook, Mapping) or 'type' not in hook:
        why = N_('{path}: must be a dict with a `type`, got {got!r}.')
        draft.refuse(why, path=path, got=hook)
    return dict(hook)


# mmengine adds these hooks to every run.
_DEFAULT = ('DistSamplerSeedHook', 'IterTimerHook')


def translate_custom_hooks(draft: Translation) -> None:
    """Translate mmcv's hooks; keep and report those of other packages."""
    profiler = draft.take('profiler_config')
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


def _translate(draft: Translation, path: str, hook: Any) -> Any:
    hook = _checked(draft, path, hook)
    kind = hook['type']
    if kind in _DEFAULT:
        draft.note(path, 'mmengine adds {kind} to every run', kind=kind)
        return None
    if kind == 'EMAHook':
        return _average(draft, path, hook)
    if kind == 'ProfilerHook':
        return _profiler(hook)
    if kind == 'SyncBuffersHook' and 'distributed' in hook:
        draft.note(f'{path}.distributed', 'not needed')
        del hook['distributed']
    if isinstance(kind, str) and not _is_registered(kind):
        why = N_('{kind} is unknown here and not changed: port it to mmengine')
        draft.leave(path, why, kind=kind)
    return hook


def _average(draft: Translation, path: str, hook: dict[str, Any]) -> Any:
    # The defaults of mmcv.
    interval = hook.get('interval', 1)
    momentum = hook.get('momentum', 0.0002) ** interval
    warm_up = hook.pop('warm_up', 100)
    if hook.pop('resume_from', None):
        why = N_('the resumed checkpoint contains the average')
        draft.leave(f'{path}.resume_from', why)
    if warm_up and 1 / warm_up < momentum:
        why = N_('{warm_up}: mmengine uses momentum {momentum:g} from step 1')
        path = f'{path}.warm_up'
        draft.leave(path, why, warm_up=warm_up, momentum=momentum)
    return {**hook, 'momentum': momentum, 'interval': interval}


def _profiler(hook: dict[str, Any]) -> dict[str, Any]:
    if 'profile_iters' in hook:
        hook['profile_times'] = hook.pop('profile_iters')
    activities = hook.pop('activities', None)
    if activities is not None:
        hook['activity_with_cpu'] = 'cpu' in activities
        hook['activity_with_cuda'] = 'cuda' in activities
    return hook


def _is_registered(name: str) -> bool:
    registries = (HOOKS, *HOOKS.children.values())
    return any(class_name(name) in one.module_dict for one in registries)


def add_runtime_hooks(draft: Translation) -> None:
    """Add the hooks that report skipped steps, if the wrapper is new."""
    origins = draft.origins.get('optim_wrapper')
    if not origins:
        return
    hooks = draft.settings.get('custom_hooks') or []
    known = set(map(class_name, hooks))
    for name, hook in runtime_hooks().items():
        if name not in known:
            draft.append('custom_hooks', hook, *origins)


def translate_environment(draft: Translation) -> None:
    """Translate seeds, back-ends and processes."""
    for old, path in MOVED.items():
        is_dict = old == 'dist_params'
        value = draft.take(old) if is_dict else draft.settings.pop(old, None)
        if value is None:
            continue
        top, *names, last = path.split('.')
        draft.put(top, dict(draft.settings.get(top) or {}), old)
        node = draft.settings[top]
        for name in names:
            node[name] = dict(node.get(name) or {})
            node = node[name]
        node[last] = value
        if old == 'deterministic' and value:
            why = N_('mmengine rejects all nondeterministic operations')
            draft.note(old, why)
    draft.drop('', draft.settings)
