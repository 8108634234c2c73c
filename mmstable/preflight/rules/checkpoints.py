"""Checkpoints: how many, when, and whether they fit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from mmstable.finding import Severity
from mmstable.preflight.config_tree import kind_of
from mmstable.preflight.config_view import ConfigView, Part, whole_number
from mmstable.preflight.rule import Hit, rule


@rule('keeps_one_checkpoint', Severity.WARNING)
def keeps_one_checkpoint(view: ConfigView) -> Iterator[Hit]:
    """The old file is deleted before the new one is written."""
    hook = view.checkpoint_hook
    if hook is None or hook.kind != 'CheckpointHook':
        return
    if hook.settings.get('max_keep_ckpts') == 1:
        path = f'{hook.path}.max_keep_ckpts'
        yield Hit(path, {}, {path: 3})


@rule('checkpoints_by_epoch', Severity.WARNING)
def checkpoints_by_epoch(view: ConfigView) -> Iterator[Hit]:
    """Saved by epochs in a run that is one single epoch to mmengine."""
    hook = view.checkpoint_hook
    if view.by_epoch or view.length is None or hook is None:
        return
    if _interval(hook) and hook.settings.get('by_epoch', True):
        interval = min(view.val_interval, view.length)
        saved = {**hook.settings, 'by_epoch': False, 'interval': interval}
        change = {hook.path: saved}
        yield Hit(hook.path, {}, change)


@rule('validation_before_save', Severity.WARNING)
def validation_before_save(view: ConfigView) -> Iterator[Hit]:
    """Validations that no checkpoint comes right before.

    mmengine saves first if both are due, and validation is where memory runs
    out and metrics raise.
    """
    hook = view.checkpoint_hook
    if hook is None or not view.validates or view.length is None:
        return
    interval, between = _interval(hook), min(view.val_interval, view.length)
    same_unit = bool(hook.settings.get('by_epoch', True)) == view.by_epoch
    if not interval or not same_unit or between % interval == 0:
        return
    path = f'{hook.path}.interval'
    fields = {'interval': interval, 'between': view.val_interval}
    yield Hit(path, fields, {path: math.gcd(interval, between)})


@rule('disk_space', Severity.WARNING)
def disk_space(view: ConfigView) -> Iterator[Hit]:
    """More checkpoints than the disk can hold.

    Their size is that of the largest one in the work dir, or is guessed
    from the weights that training starts from.
    """
    hook, size = view.checkpoint_hook, _checkpoint_size(view)
    if hook is None or size is None:
        return
    folder = hook.settings.get('out_dir') or view.get('work_dir') or '.'
    free = view.machine.disk(str(folder))
    # One more is written before an old one is deleted.
    count = _kept(view, hook) + 1
    if free is not None and count * size > free:
        fields = {'count': count, 'size': size / 1e9, 'free': free / 1e9}
        fits = max(1, int(free // size) - 1)
        path = f'{hook.path}.max_keep_ckpts'
        yield Hit(path, fields, {path: fits} if free >= 2 * size else {})


def _interval(hook: Part) -> int | None:
    return whole_number(hook.settings.get('interval'))


def _kept(view: ConfigView, hook: Part) -> int:
    kept = whole_number(hook.settings.get('max_keep_ckpts'))
    interval = _interval(hook)
    if kept is not None or not view.length or not interval:
        return kept or 1
    return max(1, view.length // interval)


def _checkpoint_size(view: ConfigView) -> int | None:
    if view.get('work_dir'):
        found = list(Path(str(view.get('work_dir'))).glob('*.pth'))
        if found:
            return max(path.stat().st_size for path in found)
    weights = None
    start = view.get('load_from')
    if view.trial is not None and view.trial.parameter_bytes:
        weights = view.trial.parameter_bytes
    elif isinstance(start, str) and os.path.isfile(start):
        weights = os.path.getsize(start)
    kinds = [kind_of(one.settings.get('optimizer')) for one in view.wrappers]
    # Adam keeps two numbers for every weight, others one.
    states = 2 if any('Adam' in kind for kind in kinds) else 1
    return None if weights is None else weights * (1 + states)
