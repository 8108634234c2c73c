"""Rules about hooks, loops, checkpoints, seeds and models."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmstable.check.config_tree import (
    ConfigView,
    Part,
    kind_of,
    whole_number,
)
from mmstable.check.rule import Violation, error, hint, setting, warning
from mmstable.finding import Severity
from mmstable.messages import _

setting(
    'keeps_one_checkpoint',
    Severity.WARNING,
    'hooks.*.max_keep_ckpts',
    lambda view, part, kept: (
        kept == 1
        and part.kind == 'CheckpointHook'
        and part == view.checkpoint_hook
    ),
    3,
    what="`max_keep_ckpts=1` with mmengine's CheckpointHook.",
    why='It is deleted before the next is saved: a crash there leaves none.',
)
setting(
    'resume_and_load_from',
    Severity.WARNING,
    'load_from',
    lambda view, part, file: file and view.get('resume') is True,
    what="`resume=True` with `load_from='{value}'`.",
    why='mmengine resumes from that file instead of the newest checkpoint: '
    'every restart loses the progress since then.',
    fix='`load_from = None` to continue this run, or `resume = False` to '
    'start from these weights',
)
setting(
    'deterministic_with_benchmark',
    Severity.WARNING,
    'env_cfg.cudnn_benchmark',
    lambda view, part, on: on and view.get('randomness.deterministic'),
    False,
    what='`deterministic=True` and `cudnn_benchmark=True`.',
    why='The search for the fastest algorithm may choose another one in every '
    'run, so mmengine turns it off again.',
)
setting(
    'deterministic_without_seed',
    Severity.WARNING,
    'randomness.seed',
    lambda view, part, seed: (
        seed is None and view.get('randomness.deterministic')
    ),
    0,
    what='`deterministic=True` without a seed.',
    why='Without a seed every run draws its own, and no two are the same.',
)

setting(
    'two_mmengines',
    Severity.WARNING,
    'default_scope',
    lambda view, part, scope: len(view.machine.mmengines) > 1,
    what='several distributions own the package mmengine: '
    '{view.machine.mmengines}.',
    why='The one that was installed last has overwritten files of the other.',
    fix='uninstall all of them, and install the one that you want',
)

# A second hook of these classes repeats the work of the first.
_SINGLE = {
    *('RuntimeInfoHook', 'IterTimerHook', 'LoggerHook'),
    *('DistSamplerSeedHook', 'GradNanLoggerHook', 'EventLogHook'),
    *('GradClipHook', 'FaultForensicsHook', 'DivergenceGuardHook'),
    *('EMAHook', 'SafeEMAHook', 'ParamSchedulerHook'),
    *('SafeParamSchedulerHook', 'CheckpointHook', 'SafeCheckpointHook'),
    'EmergencyCheckpointHook',
}
_FAMILIES = ('EMAHook', 'ParamSchedulerHook', 'CheckpointHook')


@warning(
    what='{kind} at `{path}` repeats the work of `{first}`.',
    why='Schedules advance twice, averages are averaged, files overwritten.',
    fix='keep one of them',
)
def hook_twice(view: ConfigView) -> Iterator[Violation]:
    """Find two hooks that do the same work."""
    seen: dict[str, Part] = {}
    custom = view.get('custom_hooks') or []
    for hook in view.hooks:
        family = [f for f in _FAMILIES if hook.kind in (f, f'Safe{f}')]
        first = seen.setdefault(family[0] if family else hook.kind, hook)
        is_single = hook.kind in _SINGLE or hook.path.startswith('default_')
        # Among other hooks, only an exact copy is certainly a mistake.
        if first is hook or not (is_single or first.settings == hook.settings):
            continue
        where, __, place = hook.path.partition('.')
        change = {}
        if where == 'custom_hooks':
            others = [one for n, one in enumerate(custom) if n != int(place)]
            change = {where: others}
        yield Violation(hook.path, change, kind=hook.kind, first=first.path)


_LOOPS = (
    ('train_cfg', 'train_dataloader', 'optim_wrapper'),
    ('val_cfg', 'val_dataloader', 'val_evaluator'),
    ('test_cfg', 'test_dataloader', 'test_evaluator'),
)


@error(
    is_fatal=True,
    what='the config has {given}, but not {missing}: mmengine needs all of '
    'them, or none (set unwanted ones to None).',
    why='mmengine refuses an incomplete loop.',
    fix='add the missing keys, or set all of them to None',
)
def incomplete_loop(view: ConfigView) -> Iterator[Violation]:
    """Find loops with some of their three keys missing."""
    for names in _LOOPS:
        given = [name for name in names if view.get(name) is not None]
        missing = [name for name in names if name not in given]
        if missing and given:
            yield Violation(given[0], given=given, missing=missing)


@warning(
    what='`{name}={value}`, but the run ends at {view.length}.',
    why='Without validation there is no metric and no best checkpoint.',
)
def late_validation(view: ConfigView) -> Iterator[Violation]:
    """Find a first validation after the end of the run."""
    length = view.length
    if length is None or not view.validates:
        return
    name, value = 'val_begin', whole_number(view.get('train_cfg.val_begin'))
    right = length
    if value is None or value <= length:
        # Intervals that change during the run are chosen with care.
        if view.get('train_cfg.dynamic_intervals'):
            return
        name, value = 'val_interval', view.val_interval
        right = max(1, length // 10)
    if value > length:
        path = f'train_cfg.{name}'
        yield Violation(path, {path: right}, name=name, value=value)


@warning(
    what='checkpoints by epoch in an iteration-based run.',
    why='To mmengine the run is one epoch: nothing is saved before its end.',
)
def checkpoints_by_epoch(view: ConfigView) -> Iterator[Violation]:
    """Find checkpoints by epoch in a run that mmengine sees as one epoch."""
    hook = view.checkpoint_hook
    if view.by_epoch or view.length is None or hook is None:
        return
    if whole_number(hook.get('interval')) and hook.get('by_epoch', True):
        interval = min(view.val_interval, view.length)
        right = {**hook.settings, 'by_epoch': False, 'interval': interval}
        yield Violation(hook.path, {hook.path: right})


@warning(
    what='validation every {view.val_interval} {unit}, but a checkpoint every '
    '{interval}.',
    why='A run often fails in validation: memory runs out, or a metric '
    'raises. Without a checkpoint right before it, training progress is lost.',
)
def validation_before_save(view: ConfigView) -> Iterator[Violation]:
    """Find validations without a checkpoint right before them.

    mmengine saves first if both are due.
    """
    hook = view.checkpoint_hook
    if hook is None or not view.validates or view.length is None:
        return
    interval = whole_number(hook.get('interval'))
    between = min(view.val_interval, view.length)
    same_unit = bool(hook.get('by_epoch', True)) == view.by_epoch
    if view.val_interval >= view.length and hook.get('save_last', True):
        # The last checkpoint is saved before the only validation.
        return
    if interval and same_unit and between % interval:
        path = hook.at('interval')
        yield Violation(
            path,
            {path: math.gcd(interval, between)},
            interval=interval,
            unit=_('epochs') if view.by_epoch else _('iterations'),
        )


@warning(
    what='{count} checkpoints of {size:.2f} GB, but only {free:.2f} GB are '
    'free.',
    why='A full disk ends the run or leaves a truncated checkpoint.',
    fix='keep fewer checkpoints, save less often, or free disk space',
)
def disk_space(view: ConfigView) -> Iterator[Violation]:
    """Find more checkpoints than the disk can hold.

    Their size is that of the largest one in the work dir, or is estimated
    from the initial weights.
    """
    hook, size = view.checkpoint_hook, _checkpoint_size(view)
    if hook is None or size is None:
        return
    folder = hook.get('out_dir') or view.get('work_dir') or '.'
    free = view.machine.disk(str(folder))
    kept = whole_number(hook.get('max_keep_ckpts'))
    interval = whole_number(hook.get('interval'))
    if kept is None and view.length and interval:
        kept = view.length // interval
    # The new checkpoint is written before an old one is deleted.
    count = (kept or 1) + 1
    if free is not None and count * size > free:
        path = hook.at('max_keep_ckpts')
        fits = max(1, int(free // size) - 1)
        yield Violation(
            path,
            {path: fits} if free >= 2 * size else {},
            count=count,
            size=size / 1e9,
            free=free / 1e9,
        )


def _checkpoint_size(view: ConfigView) -> int | None:
    if view.get('work_dir'):
        found = list(Path(str(view.get('work_dir'))).glob('*.pth'))
        if found:
            return max(path.stat().st_size for path in found)
    start = view.get('load_from')
    if view.trial is not None and view.trial.parameter_bytes:
        weights = view.trial.parameter_bytes
    elif isinstance(start, str) and os.path.isfile(start):
        weights = os.path.getsize(start)
    else:
        return None
    kinds = [kind_of(one.get('optimizer')) for one in view.wrappers]
    # Adam keeps two numbers for every weight, other optimizers one.
    return weights * (3 if any('Adam' in kind for kind in kinds) else 2)


_SAFE_HOOK = 'SafeActivationCheckpointHook'
_CHECKPOINTING = ('with_cp', 'with_checkpoint', 'use_checkpoint')


@error(
    what='`activation_checkpointing={names!r}`.',
    why='mmengine uses reentrant checkpointing: modules whose inputs have no '
    'gradients, such as images, get no gradients and are not trained. '
    'SafeActivationCheckpointHook avoids that.',
)
def activation_checkpointing(view: ConfigView) -> Iterator[Violation]:
    """Find mmengine's key, which leaves the modules without gradients."""
    path = 'activation_checkpointing'
    names = view.get(path)
    if not names:
        return
    change: dict[str, Any] = {path: None}
    if all(hook.kind != _SAFE_HOOK for hook in view.hooks):
        safe = {'type': f'mmstable.{_SAFE_HOOK}', 'modules': names}
        change['custom_hooks'] = [*(view.get('custom_hooks') or []), safe]
    yield Violation(path, change, names=names)


@warning(
    what='`find_unused_parameters=True` with `{path}=True`.',
    why='DDP marks checkpointed parameters ready twice and raises an error.',
    fix='`find_unused_parameters = False`, or `model_wrapper_cfg = '
    "dict(type='MMDistributedDataParallel', static_graph=True)`",
)
def unused_with_checkpointing(view: ConfigView) -> Iterator[Violation]:
    """Find unused parameters with checkpointing, for which DDP raises."""
    path = 'find_unused_parameters'
    unused = view.get(path) or view.get(f'model_wrapper_cfg.{path}')
    if not unused or view.get('model_wrapper_cfg.static_graph'):
        return
    for where, node in view.nodes('model'):
        for name in _CHECKPOINTING:
            if node.get(name) is True:
                yield Violation(path, path=f'{where}.{name}')
                return


@hint(
    what='Out-of-memory errors end the run: {kind} with {view.ranks} ranks.',
    why='One rank that runs out of memory cannot repeat its step, because the '
    'others wait for it in the middle of the model.',
    fix='leave room in memory (`mmstable estimate`), or use BatchNorm or '
    'GroupNorm, and DDP',
)
def no_oom_recovery(view: ConfigView) -> Iterator[Violation]:
    """Find models whose ranks cannot recover from an OOM one by one."""
    if view.ranks < 2 or view.get('train_cfg.oom.enabled') is False:
        return
    for path in ('model_wrapper_cfg', 'strategy'):
        kind = kind_of(view.get(path) or {})
        if 'FSDP' in kind or 'FullyShard' in kind:
            yield Violation(path, kind=kind)
            return
    for path, node in view.nodes('model'):
        norm = node.get('norm_cfg')
        if isinstance(norm, dict) and kind_of(norm) == 'SyncBN':
            yield Violation(f'{path}.norm_cfg', kind='SyncBN')
            return


_MAX_NAMES = 3


@warning(
    what='the optimizer has no {names} ({count} of {view.trial.parameters} '
    'parameters).',
    why='They are never trained, although they may get gradients.',
    fix='see `optim_wrapper.paramwise_cfg` and `constructor`, or set '
    '`requires_grad=False` if that is intended',
)
def unseen_parameters(view: ConfigView) -> Iterator[Violation]:
    """Find parameters that are not in the optimizer."""
    names = view.trial.unseen if view.trial else []
    yield from _untrained('optim_wrapper', names)


@warning(
    what='no gradient for {names} ({count} of {view.trial.parameters} '
    'parameters).',
    why='Parameters without gradients are not trained, and make DDP hang or '
    'raise an error.',
    fix='use them in the loss, set `requires_grad=False`, or set '
    '`find_unused_parameters = True` for DDP',
)
def no_gradient(view: ConfigView) -> Iterator[Violation]:
    """Find parameters without a gradient after one step."""
    names = view.trial.without_gradient if view.trial else []
    yield from _untrained('model', names)


def _untrained(path: str, names: list[str]) -> Iterator[Violation]:
    if names:
        yield Violation(path, names=names[:_MAX_NAMES], count=len(names))


@warning(
    what='{what} failed: {error}',
    why='`--deep` builds the config and runs one training step on the CPU.',
    fix='check whether training fails with the same error',
)
def deep_failed(view: ConfigView) -> Iterator[Violation]:
    """Find parts that could not be built or tried."""
    for what, reason in view.trial.failures if view.trial is not None else ():
        yield Violation(what, what=what, error=reason)
