"""The keys that become ``optim_wrapper`` and ``param_scheduler``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.legacy.draft import Translation, class_name, usage_errors
from mmstable.legacy.schedules import (
    BY_ITERATION,
    PolicyLR,
    PolicyMomentum,
    PolicyScheduler,
    check_warmup,
)
from mmstable.messages import N_, _
from mmstable.optim.clipping import parse_clip_grad
from mmstable.optim.loss_scale import ScalePolicy
from mmstable.settings import integer, is_numeric


def _loss_scale(draft: Translation, path: str, scale: Any) -> Any:
    """Translate any form of a loss scale to that of :class:`ScalePolicy`."""
    if isinstance(scale, Mapping):
        scale = _of_dict(dict(scale))
    elif is_numeric(scale):
        scale = float(scale)
        why = N_(
            'starts at {scale} as before, but adapts to overflows; to fix it, '
            'write dict(init_scale={scale}, frozen=True)'
        )
        draft.note(f'{path}.loss_scale', why, scale=scale)
    with usage_errors(path):
        ScalePolicy.from_config(scale)
    return scale


def _of_dict(scale: dict[str, Any]) -> dict[str, Any]:
    if not scale.pop('enabled', True):
        # As in torch, the loss is not scaled.
        return {'init_scale': 1.0, 'frozen': True}
    # Names that mmcv used before torch had a GradScaler.
    if scale.pop('mode', 'dynamic') == 'static':
        scale['frozen'] = True
    if 'scale_factor' in scale:
        factor = scale.pop('scale_factor')
        scale.update(growth_factor=factor, backoff_factor=1 / factor)
    if 'scale_window' in scale:
        scale['growth_interval'] = scale.pop('scale_window')
    return scale


_SAFE = 'mmstable.SafeOptimWrapper'
_SAFE_AMP = 'mmstable.SafeAmpOptimWrapper'
# A safe wrapper may replace these, or a safe one of another precision.
_PLAIN = ('OptimWrapper', 'AmpOptimWrapper')
_HOOKS = (
    'OptimizerHook',
    'DistOptimizerHook',
    'Fp16OptimizerHook',
    'GradientCumulativeOptimizerHook',
    'GradientCumulativeFp16OptimizerHook',
)
_ACCUMULATE = ('cumulative_iters', 'update_interval')
_SETTINGS = (
    'type',
    'grad_clip',
    'loss_scale',
    'detect_anomalous_params',
    'use_fp16',
    *_ACCUMULATE,
    'coalesce',
    'bucket_size_mb',
    'distributed',
)
# mmcv's default, for `fp16 = dict()`.
_DEFAULT_SCALE = 512.0


def translate_optimizer(draft: Translation) -> None:
    """Translate optimizer, precision, clipping and accumulation."""
    keys = ('fp16', 'optimizer', 'optimizer_config')
    old = [key for key in keys if key in draft.settings]
    if not old:
        return
    fp16 = draft.take('fp16')
    config = draft.take('optimizer_config') or {}
    wrapper = dict(draft.settings.get('optim_wrapper') or {})
    if wrapper and fp16 is None and not config and 'optimizer' not in old:
        draft.note(', '.join(old), 'empty')
        return
    for name, value in (fp16 or {}).items():
        if config.get(name, value) != value:
            other = f'optimizer_config.{name}'
            draft.contradict(f'fp16.{name}', value, other, config[name])
    settings = {**config, **(fp16 or {})}
    _check_names(draft, settings, fp16)
    amp = fp16 is not None or _is_amp(settings)
    _set_type(draft, wrapper, amp)
    if amp:
        path = 'fp16' if fp16 is not None else 'optimizer_config'
        scale = settings.get('loss_scale', _DEFAULT_SCALE)
        known = wrapper.get('loss_scale')
        if known is None:
            wrapper['loss_scale'] = _loss_scale(draft, path, scale)
        elif known != scale and 'loss_scale' in settings:
            draft.conflict(path, 'optim_wrapper.loss_scale', scale, known)
    elif 'loss_scale' in settings:
        why = N_('optimizer_config.loss_scale: needs an fp16 optimizer hook.')
        draft.refuse(why)
    _set_optimizer(draft, wrapper)
    clip, path = settings.get('grad_clip'), 'optimizer_config.grad_clip'
    if clip is not None:
        with usage_errors(path):
            parse_clip_grad(clip)
        draft.settle(wrapper, 'optim_wrapper.clip_grad', clip, path)
    for name in _ACCUMULATE:
        with usage_errors():
            count = integer('optimizer_config', name, settings.get(name, 1))
        if count != 1:
            new = 'optim_wrapper.accumulative_counts'
            draft.settle(wrapper, new, count, f'optimizer_config.{name}')
    draft.drop('optimizer_config', settings)
    draft.put('optim_wrapper', wrapper, *old)


def _check_names(
    draft: Translation, settings: Mapping[str, Any], fp16: Any
) -> None:
    kind = settings.get('type', 'OptimizerHook')
    others = [name for name in settings if name not in _SETTINGS]
    if kind not in _HOOKS:
        why = N_(
            '{kind!r} is not an optimizer hook of mmcv 1.7. Only clipping, '
            'accumulation and fp16 are translated; other settings: {others}'
        )
        path, others = 'optimizer_config.type', others or [_('none')]
        draft.warn(path, why, kind=kind, others=others)
        return
    for name in others:
        place = 'fp16' if name in (fp16 or {}) else 'optimizer_config'
        draft.unknown(place, [name], _SETTINGS)


def _is_amp(settings: dict[str, Any]) -> bool:
    kind = settings.get('type', 'OptimizerHook')
    # A setting of Swin Transformer, which used the loss scale of apex.
    if kind in _HOOKS and settings.get('use_fp16'):
        settings.setdefault('loss_scale', 'dynamic')
        return True
    is_scaled = kind not in _HOOKS and 'loss_scale' in settings
    return is_scaled or 'fp16' in str(kind).lower()


def _set_type(draft: Translation, wrapper: dict[str, Any], amp: bool) -> None:
    kind = wrapper.get('type')
    name = class_name(wrapper)
    if kind is not None and name.removeprefix('Safe') not in _PLAIN:
        if amp:
            draft.conflict('fp16', 'optim_wrapper.type', _SAFE_AMP, name)
        return
    amp = amp or 'Amp' in name
    wrapper['type'] = _SAFE_AMP if amp else _SAFE


def _set_optimizer(draft: Translation, wrapper: dict[str, Any]) -> None:
    optimizer = draft.take('optimizer')
    if optimizer is None:
        return
    kinds = [one for one in optimizer.values() if isinstance(one, Mapping)]
    if 'type' not in optimizer and any('type' in one for one in kinds):
        why = N_('not changed; write a `constructor` for {names: and }')
        draft.warn('optimizer', why, names=list(optimizer))
        wrapper.update(optimizer)
        return
    paramwise = optimizer.pop('paramwise_cfg', None)
    constructor = optimizer.pop('constructor', None)
    wrapper['optimizer'] = optimizer
    if paramwise:
        wrapper['paramwise_cfg'] = paramwise
    if constructor not in (None, 'DefaultOptimizerConstructor'):
        wrapper['constructor'] = constructor
        why = N_("'{name}': register it in OPTIM_WRAPPER_CONSTRUCTORS")
        draft.leave('optimizer.constructor', why, name=constructor)


_SCHEDULES: dict[str, type[PolicyScheduler]] = {
    'lr_config': PolicyLR,
    'momentum_config': PolicyMomentum,
}
_WARMUP = ('warmup', 'warmup_iters', 'warmup_ratio')


def translate_schedule(draft: Translation) -> None:
    """Translate the schedules of learning rate and momentum."""
    old = [key for key in _SCHEDULES if key in draft.settings]
    configs = {key: draft.take(key) for key in old}
    known = draft.settings.get('param_scheduler')
    schedulers: list[dict[str, Any]] = []
    for key, config in configs.items():
        if config is not None and known is not None:
            policy = config.get('policy')
            draft.conflict(key, 'param_scheduler', policy, known)
        elif config is not None:
            schedulers += _schedulers(draft, key, config)
    if old and known is None:
        draft.put('param_scheduler', schedulers or None, *old)


def _schedulers(
    draft: Translation, key: str, config: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the equivalent schedulers: one, or none."""
    scheduler = _SCHEDULES[key]
    if 'policy' not in config:
        draft.refuse('{key}: needs a `policy`.', key=key)
    name = config.pop('policy')
    try:
        policy = scheduler.find_policy(key, name)
    except ValueError:
        why = N_('unknown policy {name!r}; write a `param_scheduler` instead')
        draft.warn(f'{key}.policy', why, name=name)
        return []
    is_lr = scheduler is PolicyLR
    # mmcv's IterBasedRunner changes the default of `lr_config` only.
    goes_by_epoch = policy not in BY_ITERATION
    default = goes_by_epoch and (draft.by_epoch or not is_lr)
    by_epoch = config.pop('by_epoch', default)
    if by_epoch and not goes_by_epoch:
        why = N_("{key}: policy '{policy}' needs `by_epoch=False`.")
        draft.refuse(why, key=key, policy=policy)
    warmup = _take_warmup(draft, key, config, is_lr)
    with usage_errors():
        scheduler.check_settings(key, policy, config)
    if by_epoch and not draft.by_epoch:
        why = N_('no effect, as in mmcv; set {key}.by_epoch=False to use it')
        draft.leave(key, why, key=key)
        return []
    if policy == 'fixed' and not warmup:
        return []
    count = {'by_epoch': bool(by_epoch or warmup.get('warmup_by_epoch'))}
    if count['by_epoch'] and warmup:
        count['convert_to_iter_based'] = True
        if not by_epoch:
            count['update_by_epoch'] = False
    head = {'type': f'mmstable.{scheduler.__name__}', 'policy': policy}
    return [{**head, **config, **count, **warmup}]


def _take_warmup(
    draft: Translation, key: str, config: dict[str, Any], is_lr: bool
) -> dict[str, Any]:
    names = (*_WARMUP, 'warmup_by_epoch') if is_lr else _WARMUP
    taken = {name: config.pop(name) for name in names if name in config}
    if taken.get('warmup') is None:
        return {}
    # mmcv's defaults differ.
    taken.setdefault('warmup_ratio', 0.1 if is_lr else 0.9)
    if not taken.get('warmup_by_epoch'):
        taken.pop('warmup_by_epoch', None)
    elif not draft.by_epoch:
        why = N_('{key}: `warmup_by_epoch` needs an epoch-based run.')
        draft.refuse(why, key=key)
    length = taken.get('warmup_iters', 0)
    with usage_errors():
        check_warmup(key, taken['warmup'], length, taken['warmup_ratio'])
    return taken
