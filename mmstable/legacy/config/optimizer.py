"""``optimizer``, ``optimizer_config``, ``fp16`` become ``optim_wrapper``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.errors import UsageError
from mmstable.legacy.config.draft import (
    CONTRADICTION,
    Draft,
    take_dict,
    usage_errors,
)
from mmstable.legacy.config.loss_scale import translate_loss_scale
from mmstable.messages import _
from mmstable.numerics.clip_settings import parse_clip_grad
from mmstable.settings import integer

_SAFE = 'mmstable.SafeOptimWrapper'
_SAFE_AMP = 'mmstable.SafeAmpOptimWrapper'
# Wrappers that may become a safe one of another precision.
_PLAIN = (
    'OptimWrapper',
    'AmpOptimWrapper',
    'SafeOptimWrapper',
    'SafeAmpOptimWrapper',
)
# Whether the hook trains in fp16.
_HOOKS = {
    'OptimizerHook': False,
    'DistOptimizerHook': False,
    'Fp16OptimizerHook': True,
    'GradientCumulativeOptimizerHook': False,
    'GradientCumulativeFp16OptimizerHook': True,
}
_ACCUMULATE = ('cumulative_iters', 'update_interval')
# How gradients travel between ranks, which torch looks after by now.
_TRANSPORT = ('coalesce', 'bucket_size_mb', 'distributed')
_SETTINGS = (
    'type',
    'grad_clip',
    'loss_scale',
    'detect_anomalous_params',
    'use_fp16',
    *_ACCUMULATE,
    *_TRANSPORT,
)
# mmcv's default, which is what `fp16 = dict()` stands for.
_DEFAULT_SCALE = 512.0


def translate_optimizer(draft: Draft) -> None:
    """Settle optimizer, precision, clipping and accumulation."""
    old = [
        key
        for key in ('fp16', 'optimizer', 'optimizer_config')
        if key in draft.settings
    ]
    if not old:
        return
    fp16 = take_dict(draft, 'fp16')
    config = take_dict(draft, 'optimizer_config') or {}
    wrapper = dict(draft.settings.get('optim_wrapper') or {})
    if wrapper and fp16 is None and not config and 'optimizer' not in old:
        draft.note(', '.join(old), _('asks for nothing'))
        return
    settings = _merge(config, fp16 or {})
    _check_names(draft, settings, fp16)
    amp = fp16 is not None or _is_amp(settings)
    _set_type(draft, wrapper, amp)
    if amp:
        path = 'fp16' if fp16 is not None else 'optimizer_config'
        _set_scale(draft, wrapper, path, settings)
    elif 'loss_scale' in settings:
        raise UsageError(
            _(
                'optimizer_config.loss_scale: is for fp16 only; set '
                "`type='Fp16OptimizerHook'` as well."
            )
        )
    _set_optimizer(draft, wrapper)
    _set_clip(draft, wrapper, settings.get('grad_clip'))
    _set_accumulation(draft, wrapper, settings)
    _tell_rest(draft, settings)
    draft.put('optim_wrapper', wrapper, *old)
    draft.remarks['optim_wrapper'] = _remark(wrapper)


def _merge(
    config: Mapping[str, Any], fp16: Mapping[str, Any]
) -> dict[str, Any]:
    for name in fp16:
        if config.get(name, fp16[name]) != fp16[name]:
            raise UsageError(
                _(
                    CONTRADICTION,
                    path=f'fp16.{name}',
                    value=repr(fp16[name]),
                    other=f'optimizer_config.{name}',
                    found=repr(config[name]),
                )
            )
    return {**config, **fp16}


def _check_names(
    draft: Draft, settings: Mapping[str, Any], fp16: Mapping[str, Any] | None
) -> None:
    kind = settings.get('type', 'OptimizerHook')
    others = [name for name in settings if name not in _SETTINGS]
    if kind in _HOOKS:
        for name in others:
            place = 'fp16' if name in (fp16 or {}) else 'optimizer_config'
            draft.unknown(place, [name], _SETTINGS)
        return
    draft.warn(
        'optimizer_config.type',
        _(
            '{kind!r} is no optimizer hook of mmcv 1.7. Clipping, '
            'accumulation and fp16 are translated, but not what it does '
            'besides nor {others}',
            kind=kind,
            others=others,
        )
        if others
        else _(
            '{kind!r} is no optimizer hook of mmcv 1.7. Clipping, '
            'accumulation and fp16 are translated, but not what it does '
            'besides',
            kind=kind,
        ),
    )


def _is_amp(settings: dict[str, Any]) -> bool:
    kind = settings.get('type', 'OptimizerHook')
    if kind not in _HOOKS:
        return 'fp16' in str(kind).lower() or 'loss_scale' in settings
    # Of Swin Transformer, where apex had a scale of its own.
    if settings.get('use_fp16'):
        settings.setdefault('loss_scale', 'dynamic')
        return True
    return _HOOKS[kind]


def _set_type(draft: Draft, wrapper: dict[str, Any], amp: bool) -> None:
    kind = wrapper.get('type')
    name = getattr(kind, '__name__', str(kind)).rpartition('.')[2]
    if kind is not None and name not in _PLAIN:
        if amp:
            draft.conflict('fp16', 'optim_wrapper.type', _SAFE_AMP, name)
        return
    amp = amp or 'Amp' in name
    wrapper['type'] = _SAFE_AMP if amp else _SAFE


def _set_scale(
    draft: Draft,
    wrapper: dict[str, Any],
    path: str,
    settings: Mapping[str, Any],
) -> None:
    scale = settings.get('loss_scale', _DEFAULT_SCALE)
    known = wrapper.get('loss_scale')
    if known is None:
        wrapper['loss_scale'] = translate_loss_scale(
            draft, f'{path}.loss_scale', scale
        )
    elif known != scale and 'loss_scale' in settings:
        draft.conflict(path, 'optim_wrapper.loss_scale', scale, known)


def _set_optimizer(draft: Draft, wrapper: dict[str, Any]) -> None:
    optimizer = take_dict(draft, 'optimizer')
    if optimizer is None:
        return
    if 'type' not in optimizer and any(
        isinstance(one, Mapping) and 'type' in one
        for one in optimizer.values()
    ):
        draft.warn(
            'optimizer',
            _(
                'several optimizers ({names}) need a `constructor` of your '
                'project in mmengine; they are written as they were',
                names=list(optimizer),
            ),
        )
        wrapper.update(optimizer)
        return
    paramwise = optimizer.pop('paramwise_cfg', None)
    constructor = optimizer.pop('constructor', None)
    wrapper['optimizer'] = optimizer
    if paramwise:
        wrapper['paramwise_cfg'] = paramwise
    if constructor not in (None, 'DefaultOptimizerConstructor'):
        wrapper['constructor'] = constructor
        draft.leave(
            'optimizer.constructor',
            _(
                "'{name}' is not mmcv's: it is kept, and must be registered "
                'in OPTIM_WRAPPER_CONSTRUCTORS by your project',
                name=constructor,
            ),
        )


def _set_clip(draft: Draft, wrapper: dict[str, Any], clip: Any) -> None:
    if clip is None:
        return
    try:
        parse_clip_grad(clip)
    except (TypeError, ValueError) as error:
        text = str(error).partition(': ')[2]
        raise UsageError(f'optimizer_config.grad_clip: {text}') from error
    if wrapper.get('clip_grad') is None:
        wrapper['clip_grad'] = clip
    elif wrapper['clip_grad'] != clip:
        draft.conflict(
            'optimizer_config.grad_clip',
            'optim_wrapper.clip_grad',
            clip,
            wrapper['clip_grad'],
        )


def _set_accumulation(
    draft: Draft, wrapper: dict[str, Any], settings: Mapping[str, Any]
) -> None:
    for name in _ACCUMULATE:
        with usage_errors():
            count = integer('optimizer_config', name, settings.get(name, 1))
        if count == 1:
            continue
        known = wrapper.setdefault('accumulative_counts', count)
        if known != count:
            draft.conflict(
                f'optimizer_config.{name}',
                'optim_wrapper.accumulative_counts',
                count,
                known,
            )


def _tell_rest(draft: Draft, settings: Mapping[str, Any]) -> None:
    for name in _TRANSPORT:
        if name in settings:
            draft.note(
                f'optimizer_config.{name}',
                _('not needed, torch sees to the exchange of gradients'),
            )
    if settings.get('detect_anomalous_params'):
        draft.leave(
            'optimizer_config.detect_anomalous_params',
            _(
                'in a distributed run '
                "`model_wrapper_cfg=dict(type='MMDistributedDataParallel', "
                'detect_anomalous_params=True)` does the same'
            ),
        )


def _remark(wrapper: Mapping[str, Any]) -> str:
    words = [str(wrapper['type']).rpartition('.')[2]]
    if 'loss_scale' in wrapper:
        words.append(f'loss_scale {_short(wrapper["loss_scale"])}')
    clip = wrapper.get('clip_grad')
    if clip:
        words.append(f'clip_grad {_short(clip)}')
    if 'accumulative_counts' in wrapper:
        count = wrapper['accumulative_counts']
        words.append(_('{count} iterations a step', count=count))
    return ', '.join(words)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ' '.join(f'{name} {one}' for name, one in value.items())
    return str(value)
