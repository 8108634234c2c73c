"""``log_config`` becomes the logger hook, the log format and visualizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.errors import UsageError
from mmstable.legacy.config.draft import (
    NO_TYPE,
    Draft,
    take_dict,
    usage_errors,
)
from mmstable.messages import _
from mmstable.settings import integer

# From hooks of mmcv to back-ends of mmengine, and the arguments that both
# have.
_BACKENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    'TextLoggerHook': ('LocalVisBackend', ()),
    'TensorboardLoggerHook': ('TensorboardVisBackend', ()),
    'WandbLoggerHook': (
        'WandbVisBackend',
        ('init_kwargs', 'commit', 'define_metric_cfg'),
    ),
    'MMDetWandbHook': ('WandbVisBackend', ('init_kwargs', 'commit')),
    'MMSegWandbHook': ('WandbVisBackend', ('init_kwargs', 'commit')),
    'MlflowLoggerHook': ('MLflowVisBackend', ('exp_name', 'tags', 'params')),
    'NeptuneLoggerHook': ('NeptuneVisBackend', ('init_kwargs',)),
    'ClearMLLoggerHook': ('ClearMLVisBackend', ('init_kwargs',)),
    'DvcliveLoggerHook': ('DVCLiveVisBackend', ()),
}
# What the text hook shares with mmengine's logger.
_TEXT = (
    'interval_exp_name',
    'out_dir',
    'out_suffix',
    'keep_local',
    'file_client_args',
)
# Of every hook: the logger does it, for all back-ends at once.
_COMMON = ('type', 'interval', 'ignore_last', 'by_epoch', 'priority')
_DEFAULT_INTERVAL = 10


def translate_log(draft: Draft) -> None:
    """Settle what is logged, when and where to."""
    if 'log_config' not in draft.settings:
        return
    config = take_dict(draft, 'log_config')
    if config is None:
        _fill(draft, 'default_hooks', {'logger': None})
        return
    interval = config.pop('interval', _DEFAULT_INTERVAL)
    hooks = config.pop('hooks', None) or []
    draft.unknown('log_config', config, ['interval', 'hooks'])
    with usage_errors():
        interval = integer('log_config', 'interval', interval)
    text: Mapping[str, Any] = next(
        (one for one in hooks if _kind(one) == 'TextLoggerHook'), {}
    )
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
    _fill(draft, 'default_hooks', {'logger': logger})
    # mmcv shows means over the interval, mmengine over ten iterations.
    processor: dict[str, Any] = {
        'by_epoch': by_epoch,
        'window_size': interval,
    }
    wrapper = draft.settings.get('optim_wrapper')
    if wrapper is not None and 'loss_scale' in wrapper:
        # Of a scale, the last value says more than a mean.
        processor['custom_cfg'] = [
            {
                'data_src': 'stable/loss_scale',
                'method_name': 'max',
                'window_size': 1,
            }
        ]
    _fill(draft, 'log_processor', processor)
    _put_visualizer(draft, hooks, interval)


def _fill(draft: Draft, key: str, values: Mapping[str, Any]) -> None:
    # Whatever is logged, the training is the same.
    draft.fill(key, values, 'log_config', serious=False)


def _put_visualizer(draft: Draft, hooks: list[Any], interval: int) -> None:
    backends = []
    for index, hook in enumerate(hooks):
        path = f'log_config.hooks[{index}]'
        kind = _kind(hook)
        if kind not in _BACKENDS:
            draft.leave(
                path, _('mmengine has no back-end for {kind}', kind=kind)
            )
            continue
        name, shared = _BACKENDS[kind]
        kept = {key: hook[key] for key in shared if hook.get(key) is not None}
        backends.append({'type': name, **kept})
        _tell_rest(draft, path, hook, {*shared, *_COMMON})
        if hook.get('interval', interval) != interval:
            draft.leave(
                f'{path}.interval',
                _(
                    '{asked}: all back-ends have the interval {interval}',
                    asked=hook['interval'],
                    interval=interval,
                ),
            )
    if backends:
        visualizer = {'type': 'Visualizer', 'vis_backends': backends}
        _fill(draft, 'visualizer', visualizer)


def _tell_rest(
    draft: Draft, path: str, hook: Mapping[str, Any], known: set[str]
) -> None:
    if _kind(hook) == 'TextLoggerHook':
        known = known | set(_TEXT)
    for name, value in hook.items():
        if name in known or value is None:
            continue
        if name == 'reset_flag':
            draft.note(f'{path}.reset_flag', _('not needed'))
        elif name == 'log_dir':
            draft.leave(
                f'{path}.log_dir',
                _(
                    '{value!r}: mmengine writes to vis_data in the log '
                    'folder of the run',
                    value=value,
                ),
            )
        else:
            text = _('{value!r}: not in the back-end', value=value)
            draft.leave(f'{path}.{name}', text)


def _kind(hook: Any) -> str:
    if not isinstance(hook, Mapping) or 'type' not in hook:
        path = 'log_config.hooks'
        raise UsageError(_(NO_TYPE, path=path, got=hook))
    return str(hook['type'])
