"""Rules about clipping, precision, learning rate, schedules, stock classes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from mmstable.check.config_tree import (
    ConfigView,
    Part,
    skips_steps,
    uses_amp,
    uses_fp16,
    whole_number,
)
from mmstable.check.rule import Violation, error, hint, setting, warning
from mmstable.check.source import ConfigSource, bases_of
from mmstable.finding import Severity
from mmstable.loops.checks import is_longer
from mmstable.messages import N_

_SAFE_AMP = 'mmstable.SafeAmpOptimWrapper'
# They step by the metric, in epoch-based and iteration-based runs.
_ADAPTIVE = ('ReduceOnPlateauLR', 'ReduceOnPlateauParamScheduler')

setting(
    'fp16_without_clipping',
    Severity.WARNING,
    'wrappers.*.clip_grad',
    lambda view, part, clip: (
        not clip
        and view.transformers
        and not view.clip_hooks
        and uses_fp16(part)
    ),
    {'max_norm': 1.0},
    what='{view.transformers} in fp16 without `clip_grad`.',
    why='Transformer gradients spike; in fp16 one spike can end the run.',
)
setting(
    'error_if_nonfinite',
    Severity.ERROR,
    'wrappers.*.clip_grad.error_if_nonfinite',
    lambda view, part, raises: raises and uses_amp(part),
    False,
    what='gradient clipping raises on the first overflow.',
    why='With AMP an overflow is normal and costs one step, not the run.',
)
# GPUs before Ampere. The machine is asked last: that initializes CUDA.
setting(
    'bf16_unsupported',
    Severity.ERROR,
    'wrappers.*.dtype',
    lambda view, part, dtype: (
        uses_amp(part)
        and 'bfloat16' in str(dtype)
        and view.machine.bf16() is False
    ),
    'float16',
    what='bfloat16 on a GPU without hardware support.',
    why='GPUs before Ampere emulate bfloat16 slowly, or reject it.',
)
setting(
    'accumulation_of_one_step',
    Severity.WARNING,
    'optim_wrapper.accumulative_counts',
    lambda view, part, counts: (
        not view.by_epoch and view.length and is_longer(counts, view.length)
    ),
    what='a step takes {value} iterations, the run has only {view.length}.',
    why='The optimizer makes a single step, at the end of the run.',
    fix='lower `accumulative_counts` or train longer',
)
setting(
    'auto_scale_without_accumulation',
    Severity.WARNING,
    'auto_scale_lr',
    lambda view, part, scaling: (
        view.get('auto_scale_lr.enable') and view.accumulation > 1
    ),
    what='`auto_scale_lr` ignores `accumulative_counts={view.accumulation}`.',
    why='mmengine scales by ranks and batch size only: the rate is too low.',
    fix='divide `auto_scale_lr.base_batch_size` by `accumulative_counts`, '
    'then ignore this rule',
)
setting(
    'schedule_by_epoch',
    Severity.ERROR,
    'schedulers.*.by_epoch',
    lambda view, part, by_epoch: (
        not view.by_epoch
        and view.length is not None
        and part.get('by_epoch', True)
        and part.kind not in _ADAPTIVE
    ),
    False,
    what='{kind} counts epochs, but the run counts iterations.',
    why='mmengine treats an iteration-based run as one epoch, so the schedule '
    'never advances. `by_epoch` defaults to True.',
)


@error(
    what='`loss_scale={scale}` is an int.',
    why="mmengine's AmpOptimWrapper accepts only a float, a dict or 'dynamic' "
    'and raises a TypeError for an int.',
)
def int_scale(view: ConfigView) -> Iterator[Violation]:
    """Find an int as loss scale of mmengine's wrapper, which raises."""
    for wrapper in view.wrappers:
        scale = wrapper.get('loss_scale')
        if wrapper.kind == 'AmpOptimWrapper' and type(scale) is int:
            yield _with_safe_wrapper(wrapper, scale)


@warning(
    what='the loss scale {scale} never changes.',
    why='A fixed loss scale does not back off after an overflow: the same '
    'steps are skipped again and again, without a message.',
)
def frozen_scale(view: ConfigView) -> Iterator[Violation]:
    """Find a loss scale that an overflow does not lower."""
    for wrapper in filter(uses_fp16, view.wrappers):
        scale = wrapper.get('loss_scale')
        if wrapper.kind == 'AmpOptimWrapper' and isinstance(scale, float):
            yield _with_safe_wrapper(wrapper, scale)
        elif wrapper.get('loss_scale.frozen') is True:
            path = wrapper.at('loss_scale')
            start = scale.get('init_scale', 'dynamic')
            yield Violation(path, {f'{path}.frozen': False}, scale=start)


def _with_safe_wrapper(wrapper: Part, scale: Any) -> Violation:
    change = {wrapper.at('type'): _SAFE_AMP}
    return Violation(wrapper.at('loss_scale'), change, scale=scale)


# OpenMMLab's config names: 8xb32 is 8 GPUs with 32 samples each.
_NAMED = re.compile(r'(?<!\d)(\d+)xb(\d+)')
_MAX_RATIO = 2.0
_LR = 'optim_wrapper.optimizer.lr'


@warning(
    what='the learning rate is meant for {base} samples per step, but a step '
    'has {actual} ({view.ranks:rank|ranks} x batch_size {view.batch_size} x '
    'accumulation {view.accumulation}): a factor of {factor:g}.',
    why='A learning rate for another batch size diverges if it is too high '
    'and learns slowly if it is too low.',
    fix='multiply `optim_wrapper.optimizer.lr` by that factor; use `mmstable '
    'check --ranks N` for another number of ranks',
)
def lr_for_other_batch(view: ConfigView) -> Iterator[Violation]:
    """Find a rate for 8 GPUs on one: off by more than a factor of two.

    The rate is for ``auto_scale_lr.base_batch_size``, or for the batch size
    in the name of the config.
    """
    base = whole_number(view.get('auto_scale_lr.base_batch_size'))
    base = base or _named_batch_size(view.file)
    if base is None or view.batch_size is None or not view.wrappers:
        return
    actual = view.batch_size * view.ranks * view.accumulation
    is_near = 1 / _MAX_RATIO <= actual / base <= _MAX_RATIO
    if is_near or view.get('auto_scale_lr.enable'):
        return
    change = {'auto_scale_lr': {'enable': True, 'base_batch_size': base}}
    yield Violation(
        'auto_scale_lr',
        change if view.accumulation == 1 else {},
        base=base,
        actual=actual,
        factor=actual / base,
    )


def _named_batch_size(file: str) -> int | None:
    """Read the batch size from the name of a config, or of its base."""
    named = _NAMED.findall(os.path.basename(file))
    if named:
        return int(named[-1][0]) * int(named[-1][1])
    if ConfigSource(file).line_of(_LR).startswith(f'{file}:'):
        # A config that sets the rate may have changed the batch size, too.
        return None
    return next(filter(None, map(_named_batch_size, bases_of(file))), None)


_RAMPS = {'LinearLR': 'start_factor', 'ConstantLR': 'factor'}


@hint(
    what='{view.transformers} without warm-up.',
    why="Adam's moment estimates are poor at first; at the full learning rate "
    'transformers may diverge in the first steps.',
    fix='start `param_scheduler` with a LinearLR',
)
def no_warmup(view: ConfigView) -> Iterator[Violation]:
    """Find transformers that start at the full rate.

    It is in 4 % of the published configs, most of the DETR family, which
    clip hard instead. Hence only a hint.
    """
    is_new = not view.get('load_from') and not view.get('resume')
    if not view.wrappers or not view.transformers or not is_new:
        return
    if view.length is None or any(map(_warms_up, view.schedulers)):
        return
    ramp = {
        'type': 'LinearLR',
        'start_factor': 1e-3,
        'by_epoch': False,
        'begin': 0,
        'end': 1000 if view.by_epoch else max(1, min(1500, view.length // 20)),
    }
    whole = view.get('param_scheduler') or []
    if isinstance(whole, dict) and 'type' in whole:
        whole = [whole]
    # A dict of schedules, by the names of wrappers, is not changed.
    change = {}
    if isinstance(whole, (list, tuple)):
        change = {'param_scheduler': [ramp, *whole]}
    yield Violation('param_scheduler', change)


_ENDS = N_('{kind} ends at {end}, the run at {view.length}.')
_END_TOGETHER = N_('let the schedule end with the run')


@warning(
    what=_ENDS,
    why='After its end the learning rate stays constant, often near 0; a '
    'cosine with a shorter `T_max` rises again.',
    fix=_END_TOGETHER,
)
def schedule_ends_early(view: ConfigView) -> Iterator[Violation]:
    """Find schedules that end long before the run."""
    ends = [(one, _end_of(one)) for one in _counted_as_the_run(view)]
    length = view.length
    if length is None or len(ends) < len(view.schedulers) or not ends:
        return
    # A warm-up to a constant rate is intended.
    if all(_warms_up(one) for one, _ in ends):
        return
    last, end = max(ends, key=lambda pair: pair[1] or length)
    if end is not None and end < length:
        yield _ending_with_the_run(last, end, length)


@warning(
    what=_ENDS,
    why='The run is over before the learning rate has decayed.',
    fix=_END_TOGETHER,
)
def schedule_ends_late(view: ConfigView) -> Iterator[Violation]:
    """Find schedules that the run cuts off."""
    for one in _counted_as_the_run(view):
        end = _end_of(one)
        if end is not None and view.length and end > view.length:
            yield _ending_with_the_run(one, end, view.length)


def _counted_as_the_run(view: ConfigView) -> list[Part]:
    """Return the schedules that count epochs or iterations as the run does."""
    return [
        one
        for one in view.schedulers
        if bool(one.get('by_epoch', True)) == view.by_epoch
    ]


def _end_of(scheduler: Part) -> int | None:
    """Return the end of a schedule; None if it lasts as long as the run."""
    begin = whole_number(scheduler.get('begin')) or 0
    span = whole_number(scheduler.get('T_max'))
    if span is not None:
        return begin + span
    return whole_number(scheduler.get('end'))


def _ending_with_the_run(scheduler: Part, end: int, length: int) -> Violation:
    begin = whole_number(scheduler.get('begin')) or 0
    right = {'T_max': length - begin, 'end': length}
    change = {
        scheduler.at(name): value
        for name, value in right.items()
        # A schedule that never begins cannot be fixed by its end.
        if name in scheduler.settings and begin < length
    }
    return Violation(scheduler.path, change, kind=scheduler.kind, end=end)


def _warms_up(scheduler: Part) -> bool:
    kind = scheduler.kind
    if 'Warmup' in kind or kind.startswith('OneCycle'):
        return True
    if scheduler.get('warmup') is not None:
        return True
    if kind not in _RAMPS or scheduler.get('begin'):
        return False
    return bool(scheduler.get(_RAMPS[kind], 1 / 3) < 1)


_STOCK = N_("uses mmengine's {kind}; consider {safe}.")


@hint(
    what=_STOCK,
    why="mmengine's EMAHook updates the average after a skipped step, too.",
)
def stock_ema(view: ConfigView) -> Iterator[Violation]:
    """Find an average that a skipped step moves, if steps can be skipped."""
    if skips_steps(view):
        yield from _stock_hooks(view, 'EMAHook')


@hint(
    what=_STOCK,
    why="mmengine's hook advances the schedules after a skipped step, too.",
)
def stock_param_scheduler(view: ConfigView) -> Iterator[Violation]:
    """Find a schedule that a skipped step moves, if steps can be skipped.

    It is in 6 % of the published configs: all that train in fp16.
    """
    if skips_steps(view) and view.schedulers:
        yield from _stock_hooks(view, 'ParamSchedulerHook')


@hint(
    what=_STOCK,
    why="mmengine's CheckpointHook saves NaN weights, overwrites in place and "
    'deletes the old file first.',
)
def stock_checkpoint(view: ConfigView) -> Iterator[Violation]:
    """Find checkpoints that are not verified.

    It is in 97 % of the published configs, which do not use mmstable.
    Therefore it is a hint, and not reported when a training starts.
    """
    if view.get('train_cfg'):
        yield from _stock_hooks(view, 'CheckpointHook')


@hint(
    what=_STOCK,
    why="mmengine's loops do not resume at the same sample, and read all past "
    'batches again.',
)
def stock_loop(view: ConfigView) -> Iterator[Violation]:
    """Find loops that cannot resume where a checkpoint was saved.

    Like :func:`stock_checkpoint`, it is in 97 % of the published configs.
    """
    loop = view.part('train_cfg')
    kind = loop.kind
    if not kind and 'by_epoch' in loop.settings:
        kind = 'EpochBasedTrainLoop' if view.by_epoch else 'IterBasedTrainLoop'
    if kind in ('EpochBasedTrainLoop', 'IterBasedTrainLoop'):
        safe = f'mmstable.Safe{kind}'
        # `by_epoch` selects the loop class, which does not accept it.
        rest = {k: v for k, v in loop.settings.items() if k != 'by_epoch'}
        change = {'train_cfg': {**rest, 'type': safe}}
        yield Violation('train_cfg', change, kind=kind, safe=safe)


def _stock_hooks(view: ConfigView, kind: str) -> Iterator[Violation]:
    safe = f'mmstable.Safe{kind}'
    for hook in view.hooks:
        if hook.kind == kind:
            change: dict[str, Any] = {hook.at('type'): safe}
            if not isinstance(view.get(hook.path), dict):
                # mmengine's default has to be written out.
                change = {hook.path: {**hook.settings, 'type': safe}}
            yield Violation(hook.path, change, kind=kind, safe=safe)
