"""The hook that says what a resumed run has restored."""

from __future__ import annotations

import unicodedata
from typing import Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.lr_schedule import ConfiguredSchedule
from mmstable.checkpoint.references import drop_foreign_references
from mmstable.checkpoint.storage import checkpoint_folder
from mmstable.events.samples import read_lr, read_scale
from mmstable.hooks.safe_param_scheduler_hook import SafeParamSchedulerHook
from mmstable.legacy.checkpoints import prepare_to_resume
from mmstable.messages import _, choose_language
from mmstable.messages.printable import printable
from mmstable.registry import HOOKS, register_globally
from mmstable.run_state.exactness import judge
from mmstable.run_state.progress import STARTS_ANEW
from mmstable.settings import flag, text

_NAME = 'ResumeReportHook'


@register_globally(HOOKS)
class ResumeReportHook(Hook):
    """Say exactly what was restored from a checkpoint, and see to the rest.

    ``mmstable train`` adds it to every run that it resumes. Checkpoints of
    mmcv 1.x have no schedule in them: that of the config is moved to where
    the run is.

    Args:
        checkpoint (str, optional): What the report calls the checkpoint.
            Defaults to None.
        override_lr_schedule (bool): Whether to follow the learning rates,
            other numbers of the optimizer and the schedule of the config,
            moved to where the run is, instead of those in the checkpoint.
            Defaults to False.
    """

    # After all that restore something.
    priority = 'LOWEST'

    def __init__(
        self,
        checkpoint: str | None = None,
        override_lr_schedule: bool = False,
    ) -> None:
        if checkpoint is not None:
            text(_NAME, 'checkpoint', checkpoint)
        self._checkpoint = checkpoint
        self._override = flag(
            _NAME, 'override_lr_schedule', override_lr_schedule
        )
        self._configured: ConfiguredSchedule | None = None
        self._missing: list[str] | None = None

    def before_run(self, runner: Runner) -> None:
        """Remember the schedule of the config."""
        choose_language(runner.hooks)
        if hasattr(runner.optim_wrapper, 'param_groups'):
            self._configured = ConfiguredSchedule(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make the checkpoint fit, and see what it lacks."""
        for note in prepare_to_resume(checkpoint):
            runner.logger.info(_('mmstable: checkpoint: {note}.', note=note))
        self._drop_foreign_references(runner, checkpoint)
        self._missing = [
            section
            for section in ('optimizer', 'param_schedulers')
            if section not in checkpoint
        ]

    def _drop_foreign_references(
        self, runner: Runner, checkpoint: dict
    ) -> None:
        """Never let mmengine remove the best checkpoint of another run."""
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook):
                folder = checkpoint_folder(hook.out_dir, runner.work_dir)
                drop_foreign_references(checkpoint, folder)

    def before_train(self, runner: Runner) -> None:
        """Report, unless the checkpoint only gave weights to a new run."""
        missing, self._missing = self._missing, None
        if missing is None or runner.iter == 0:
            return
        rate = _rates(runner)
        if self._configured is not None:
            moves = self._override or bool(
                'param_schedulers' in missing and runner.param_schedulers
            )
            if 'optimizer' not in missing:
                self._tell_changes(runner, self._configured, moves)
            if moves:
                self._move(runner, self._configured)
                rate = _(
                    '{lr} (schedule of the config; was {before})',
                    lr=_rates(runner),
                    before=rate,
                )
        where = {'iteration': runner.iter, 'last': runner.max_iters}
        facts = {
            'epoch': runner.epoch,
            _('iteration'): _('{iteration} of {last}', **where),
            _('learning rate'): rate,
            'loss scale': _scales(runner),
            **_optimizer_state(missing),
            **_run_state(runner),
        }
        lines = [
            f'  {_pad(name, 15)}{printable(value)}'
            for name, value in facts.items()
        ]
        source = self._checkpoint or _('a checkpoint')
        runner.logger.info(
            '\n'.join(
                [
                    _(
                        'mmstable: resumed from {checkpoint}',
                        checkpoint=source,
                    ),
                    *lines,
                ]
            )
        )
        if runner.iter >= runner.max_iters:
            runner.logger.warning(
                _(
                    'mmstable: this training is already finished: '
                    '{iteration} of {last} iterations are done. To continue, '
                    'raise max_iters or max_epochs in `train_cfg`.',
                    **where,
                )
            )

    def _tell_changes(
        self, runner: Runner, configured: ConfiguredSchedule, moves: bool
    ) -> None:
        changes = configured.differences(runner)
        if changes:
            line = _(
                (
                    'mmstable: the optimizer settings of the config replace '
                    'those of the checkpoint (in brackets): {changes}.'
                )
                if moves
                else (
                    'mmstable: the optimizer settings of the config differ '
                    'from those of the checkpoint (in brackets), which are '
                    'kept: {changes}. To use those of the config, resume with '
                    '--override-lr-schedule.'
                ),
                changes=changes,
            )
            runner.logger.warning(line)

    def _move(self, runner: Runner, configured: ConfiguredSchedule) -> None:
        configured.move_to(runner)
        hook = run_view.find_hook(runner, SafeParamSchedulerHook)
        if hook is not None:
            hook.clear_backlog()


def _pad(text: str, width: int) -> str:
    """Fill up to a width, in which Chinese characters count twice."""
    wide = sum(unicodedata.east_asian_width(char) in 'WF' for char in text)
    return text.ljust(width - wide)


def _rates(runner: Runner) -> str:
    return _join(runner, read_lr, _('none'))


def _scales(runner: Runner) -> str:
    return _join(runner, read_scale, _('none, losses are not scaled'))


def _join(runner: Runner, read: Any, nothing: str) -> str:
    values = {
        name: read(wrapper)
        for name, wrapper in run_view.wrappers(runner).items()
    }
    if len(values) == 1:
        (value,) = values.values()
        return nothing if value is None else f'{value:g}'
    return ', '.join(
        f'{name}: {nothing if value is None else format(value, "g")}'
        for name, value in values.items()
    )


def _optimizer_state(missing: list[str]) -> dict[str, str]:
    if 'optimizer' not in missing:
        return {}
    return {_('optimizer'): _(STARTS_ANEW)}


def _run_state(runner: Runner) -> dict[str, str]:
    """What the hook that restores it says."""
    loop = type(runner.train_loop).__name__
    found = {
        'RNG': _('not restored, which takes SafeCheckpointHook'),
        'data position': _('up to {loop}, by the iteration', loop=loop),
        'result': judge([_('random numbers are new')]),
    }
    for hook in runner.hooks:
        found.update(getattr(hook, 'restored', {}))
    rng, position = found.pop('RNG'), found.pop('data position')
    result = found.pop('result')
    return {
        _('RNG'): rng,
        _('data position'): position,
        **found,
        _('result'): result,
    }
