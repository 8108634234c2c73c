"""``evaluation`` becomes the interval of validation and ``save_best``."""

from __future__ import annotations

from typing import Any

from mmstable.legacy.config.draft import Draft, take_dict
from mmstable.messages import _

# To settings of the train loop ...
_LOOP = {
    'interval': 'val_interval',
    'start': 'val_begin',
    'dynamic_intervals': 'dynamic_intervals',
}
# ... and of the checkpoint hook.
_BEST = ('save_best', 'rule', 'greater_keys', 'less_keys')
_NOT_NEEDED = ('by_epoch', 'gpu_collect', 'tmpdir', 'broadcast_bn_buffer')


def translate_evaluation(draft: Draft) -> None:
    """Settle when to validate, and what is the best checkpoint."""
    config = take_dict(draft, 'evaluation')
    if config is None:
        return
    loop = {
        new: config.pop(old)
        for old, new in _LOOP.items()
        if config.get(old) is not None
    }
    if loop:
        draft.fill('train_cfg', loop, 'evaluation', serious=False)
    for name in _NOT_NEEDED:
        if name in config:
            config.pop(name)
            draft.note(
                f'evaluation.{name}', _('not needed, the loops see to that')
            )
    best = {
        name: config.pop(name)
        for name in _BEST
        if config.get(name) is not None
    }
    if best.get('save_best'):
        _save_best(draft, best)
    _tell_rest(draft, config)


def _save_best(draft: Draft, best: dict[str, Any]) -> None:
    if not draft.settings.get('val_evaluator'):
        draft.leave(
            'evaluation.save_best',
            _(
                '{best!r} is a result of validation, which there is none of '
                'without a `val_evaluator`',
                best=best['save_best'],
            ),
        )
        return
    hooks = dict(draft.settings.get('default_hooks') or {})
    hook = dict(
        hooks.get('checkpoint')
        or {'type': 'mmstable.SafeCheckpointHook', 'by_epoch': draft.by_epoch}
    )
    hooks['checkpoint'] = {**best, **hook}
    draft.put('default_hooks', hooks, 'evaluation')


def _tell_rest(draft: Draft, config: dict[str, Any]) -> None:
    if not config:
        return
    if draft.settings.get('val_evaluator'):
        why = _('not used, `val_evaluator` says what is measured')
    else:
        why = _(
            'data sets of mmcv evaluated themselves; in mmengine a '
            '`val_evaluator` does, with a metric of your project'
        )
    draft.leave(', '.join(f'evaluation.{name}' for name in config), why)
