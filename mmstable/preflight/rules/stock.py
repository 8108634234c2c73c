"""Parts of mmengine for which mmstable has a safe one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView, Part, skips_steps
from mmstable.preflight.rule import Hit, rule


@rule('stock_ema', Severity.HINT)
def stock_ema(view: ConfigView) -> Iterator[Hit]:
    """An average that a skipped step moves; only where steps are skipped."""
    if skips_steps(view):
        yield from _of_kind(view.hooks, view, 'EMAHook', 'SafeEMAHook')


@rule('stock_param_scheduler', Severity.HINT)
def stock_param_scheduler(view: ConfigView) -> Iterator[Hit]:
    """A schedule that a skipped step moves; only where steps are skipped.

    It is in 6 % of the published configs: all that train in fp16.
    """
    if skips_steps(view) and view.schedulers:
        yield from _of_kind(
            view.hooks, view, 'ParamSchedulerHook', 'SafeParamSchedulerHook'
        )


@rule('stock_checkpoint', Severity.HINT)
def stock_checkpoint(view: ConfigView) -> Iterator[Hit]:
    """Checkpoints that nobody looks through.

    It is in 97 % of the published configs, which know nothing of mmstable;
    that is why it is a hint, and not told at the start of a training.
    """
    if view.get('train_cfg'):
        yield from _of_kind(
            view.hooks, view, 'CheckpointHook', 'SafeCheckpointHook'
        )


@rule('stock_loop', Severity.HINT)
def stock_loop(view: ConfigView) -> Iterator[Hit]:
    """Loops that cannot resume where a checkpoint was saved.

    As :func:`stock_checkpoint`, it is in 97 % of the published configs.
    """
    loop = view.part('train_cfg')
    kind = loop.kind
    if not kind and 'by_epoch' in loop.settings:
        kind = 'EpochBasedTrainLoop' if view.by_epoch else 'IterBasedTrainLoop'
    if kind in ('EpochBasedTrainLoop', 'IterBasedTrainLoop'):
        # It decides between the two, and a loop itself does not take it.
        rest = {k: v for k, v in loop.settings.items() if k != 'by_epoch'}
        safe = {**rest, 'type': f'mmstable.Safe{kind}'}
        fields = {'kind': kind, 'safe': f'mmstable.Safe{kind}'}
        yield Hit('train_cfg', fields, {'train_cfg': safe})


def _of_kind(
    parts: list[Part], view: ConfigView, kind: str, safe: str
) -> Iterator[Hit]:
    for part in parts:
        if part.kind == kind:
            name = f'mmstable.{safe}'
            fields = {'kind': kind, 'safe': name}
            change: dict[str, Any] = {
                part.path: {**part.settings, 'type': name}
            }
            if isinstance(view.get(part.path), dict):
                change = {f'{part.path}.type': name}
            yield Hit(part.path, fields, change)
