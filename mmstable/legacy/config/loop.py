"""``runner``, ``total_epochs`` and ``workflow`` become the train loop."""

from __future__ import annotations

from typing import Any

from mmstable.errors import UsageError
from mmstable.legacy.config.draft import (
    CONTRADICTION,
    Draft,
    take_dict,
    usage_errors,
)
from mmstable.messages import _
from mmstable.settings import integer

_EPOCHS = ('max_epochs', 'mmstable.SafeEpochBasedTrainLoop')
_ITERS = ('max_iters', 'mmstable.SafeIterBasedTrainLoop')
# Those with `Amp` came with Swin Transformer and used apex.
_RUNNERS = {
    'EpochBasedRunner': _EPOCHS,
    'EpochBasedRunnerAmp': _EPOCHS,
    'Runner': _EPOCHS,
    'IterBasedRunner': _ITERS,
    'IterBasedRunnerAmp': _ITERS,
}

# One of these, and the loop of a new config is settled.
_SETTLED = ('type', 'max_epochs', 'max_iters')


def translate_loop(draft: Draft) -> None:
    """Settle what the run is counted in, and how long it is."""
    _move_model_settings(draft)
    _drop_workflow(draft)
    runner = take_dict(draft, 'runner')
    old = ['runner'] if runner is not None else []
    for key, kind in (
        ('total_epochs', 'EpochBasedRunner'),
        ('total_iters', 'IterBasedRunner'),
    ):
        total = draft.settings.pop(key, None)
        if total is None:
            continue
        if runner is None:
            runner = {'type': kind}
        old.append(key)
        length = _RUNNERS[kind][0]
        if runner.setdefault(length, total) != total:
            raise UsageError(
                _(
                    CONTRADICTION,
                    path=key,
                    value=total,
                    other=f'runner.{length}',
                    found=runner[length],
                )
            )
    if runner is not None:
        _put_loop(draft, runner, old)


def _put_loop(draft: Draft, runner: dict[str, Any], old: list[str]) -> None:
    kind = runner.pop('type', 'EpochBasedRunner')
    if kind in _RUNNERS:
        length, loop = _RUNNERS[kind]
    else:
        length, loop = _ITERS if 'max_iters' in runner else _EPOCHS
        draft.warn(
            'runner.type',
            _(
                "'{kind}' is no runner of mmcv 1.7; written as {loop}",
                kind=kind,
                loop=loop,
            ),
        )
    if length not in runner:
        raise UsageError(
            _(
                '{path}: {kind} needs `{name}`.',
                path=old[0],
                kind=kind,
                name=length,
            )
        )
    with usage_errors():
        total = integer(old[0], length, runner.pop(length))
    for name, value in runner.items():
        if value is not None:
            draft.warn(
                f'runner.{name}', _('the train loop has nothing like it')
            )
    settled = draft.settings.get('train_cfg') or {}
    if any(key in settled for key in _SETTLED):
        if settled.get(length) == total:
            draft.note(old[0], _('`train_cfg` says the same'))
        else:
            draft.conflict(old[0], 'train_cfg', {length: total}, settled)
        return
    draft.by_epoch = length == 'max_epochs'
    draft.put('train_cfg', {'type': loop, length: total, **settled}, *old)
    draft.remarks['train_cfg'] = f'{length} {total}'


def _drop_workflow(draft: Draft) -> None:
    if 'workflow' not in draft.settings:
        return
    workflow = draft.settings.pop('workflow') or []
    if not all(isinstance(flow, (list, tuple)) and flow for flow in workflow):
        raise UsageError(
            _(
                "workflow: must be a list like [('train', 1)], got {got!r}.",
                got=workflow,
            )
        )
    modes = [flow[0] for flow in workflow]
    if modes in ([], ['train']):
        draft.note(
            'workflow', _('not needed, the loop does nothing but train')
        )
    else:
        draft.leave(
            'workflow',
            _(
                '{workflow}: mmengine computes no losses on validation data; '
                'training goes on without them',
                workflow=repr(workflow),
            ),
        )


def _move_model_settings(draft: Draft) -> None:
    """Old detectors and segmentors had these outside of the model."""
    for key in ('train_cfg', 'test_cfg'):
        value = draft.settings.get(key)
        if not draft.all_old or not isinstance(value, dict):
            continue
        model = draft.settings.get('model')
        if not isinstance(model, dict):
            draft.leave(
                key,
                _(
                    'belongs into the `model`, which this file does not '
                    'have; mmengine takes a key of this name for its loop'
                ),
            )
            del draft.settings[key]
        elif key in model:
            draft.leave(
                key, _('`model.{key}` is there as well, and is kept', key=key)
            )
            del draft.settings[key]
        else:
            model = {**model, key: draft.settings.pop(key)}
            draft.put('model', model, key)
            draft.remarks['model'] = _('moved inside, unchanged')
