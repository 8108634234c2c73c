"""The two hooks of a resumed run: does it fit, and what was restored?"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.folders import checkpoint_folder
from mmstable.checkpoint.loaders import drop_foreign_references
from mmstable.checkpoint.shards import SHARDS
from mmstable.dist.collectives import decide_on_rank_zero
from mmstable.errors import CheckpointError
from mmstable.events.samples import read_lr, read_scale
from mmstable.hooks.safe_param_scheduler_hook import SafeParamSchedulerHook
from mmstable.messages import N_, _, choose_language, printable
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag, number, text
from mmstable.state.progress import STARTS_ANEW, judge

if TYPE_CHECKING:
    from mmstable.state.schedules import ConfiguredSchedule

_NAME = 'ResumeCheckHook'


@register_globally(HOOKS)
class ResumeCheckHook(Hook):
    """Compare a checkpoint with the model before a run is resumed from it.

    ``mmstable train`` adds it to every run that it resumes. Names and shapes
    of the weights, and the groups of the optimizers, have to be the same;
    otherwise the run ends with exit code 3 before anything is trained or
    saved. What the model itself does not save may be missing.

    Args:
        allow_partial (float): The share of the weights, from 0 to 1, that may
            differ. They start with what the model was built with, and
            optimizer and average start anew. A checkpoint that has nothing
            in common with the model is always refused. Defaults to 0.
    """

    # Ahead of EMAHook (NORMAL), which fails on weights that do not fit.
    priority = 'ABOVE_NORMAL'

    def __init__(self, allow_partial: float = 0.0) -> None:
        self._allowed = number(
            _NAME, 'allow_partial', allow_partial, at_least=0, at_most=1
        )
        self._is_training = False

    def before_run(self, runner: Runner) -> None:
        """A run begins."""
        choose_language(runner.hooks)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare, and refuse what does not fit."""
        # A rollback loads what this run has saved.
        if self._is_training or not runner_view.is_resuming(runner):
            return
        from mmstable.checkpoint.resume import prepare_and_log

        prepare_and_log(runner, checkpoint)
        if SHARDS in checkpoint.get('mmstable', {}):
            # torch compares names and shapes of shards itself.
            return
        text = decide_on_rank_zero(lambda: self._judge(runner, checkpoint))
        if text is not None:
            runner.logger.warning(
                _(
                    'mmstable: resumed in part: {differences}. What differs '
                    'starts with the values that the model was built with; '
                    'the optimizer starts anew.',
                    differences=text,
                )
            )
            for section in ('optimizer', 'ema_state_dict'):
                checkpoint.pop(section, None)

    def before_train(self, runner: Runner) -> None:
        """What is loaded from now on is loaded by a rollback."""
        self._is_training = True

    def after_train(self, runner: Runner) -> None:
        """The next run may resume again."""
        self._is_training = False

    def _judge(self, runner: Runner, checkpoint: dict[str, Any]) -> str | None:
        from mmstable.checkpoint.resume import (
            compare_optimizers,
            compare_weights,
        )

        fit = compare_weights(
            runner_view.saved_model(runner), checkpoint['state_dict']
        )
        if fit.differences:
            if fit.share > self._allowed or not fit.matching:
                raise CheckpointError(_refusal(fit.share, str(fit)))
            return str(fit)
        if 'optimizer' not in checkpoint:
            return None
        text = compare_optimizers(runner, checkpoint['optimizer'])
        if text is not None and not self._allowed:
            raise CheckpointError(_refusal(0.01, text))
        return text


def _refusal(share: float, differences: str) -> str:
    if share == 1:
        return _(
            'the checkpoint has nothing in common with the model; '
            '{differences}. Nothing was trained or saved. It is of another '
            'model, and cannot be resumed.',
            differences=differences,
        )
    # Rounded up, so that the advice works.
    needed = f'{int(share * 100 + 0.999999) / 100:g}'
    return _(
        'the checkpoint does not fit this run; {differences}. Nothing was '
        'trained or saved. Check `model` and `optim_wrapper` of the config. '
        'To resume with what fits, add --allow-partial {share}; the '
        'optimizer starts anew then.',
        differences=differences,
        share=needed,
    )


_REPORT_NAME = 'ResumeReportHook'
_REPLACED = N_(
    'mmstable: the optimizer settings of the config replace those of the '
    'checkpoint (in brackets): {changes}.'
)
_KEPT = N_(
    'mmstable: the optimizer settings of the config differ from those of the '
    'checkpoint (in brackets), which are kept: {changes}. To use those of '
    'the config, resume with --override-lr-schedule.'
)


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
            text(_REPORT_NAME, 'checkpoint', checkpoint)
        self._checkpoint = checkpoint
        self._override = flag(
            _REPORT_NAME, 'override_lr_schedule', override_lr_schedule
        )
        self._configured: ConfiguredSchedule | None = None
        self._missing: list[str] | None = None

    def before_run(self, runner: Runner) -> None:
        """Remember the schedule of the config."""
        choose_language(runner.hooks)
        if hasattr(runner.optim_wrapper, 'param_groups'):
            from mmstable.state.schedules import ConfiguredSchedule

            self._configured = ConfiguredSchedule(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make the checkpoint fit, and see what it lacks."""
        from mmstable.checkpoint.resume import prepare_and_log

        prepare_and_log(runner, checkpoint)
        self._missing = [
            section
            for section in ('optimizer', 'param_schedulers')
            if section not in checkpoint
        ]
        # Never let mmengine remove the best checkpoint of another run.
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook):
                folder = checkpoint_folder(hook.out_dir, runner.work_dir)
                drop_foreign_references(checkpoint, folder)

    def before_train(self, runner: Runner) -> None:
        """Report, unless the checkpoint only gave weights to a new run."""
        missing, self._missing = self._missing, None
        if missing is None or runner.iter == 0:
            return
        is_new = 'optimizer' in missing
        rate = _rates(runner)
        if self._configured is not None:
            moves = self._override or bool(
                'param_schedulers' in missing and runner.param_schedulers
            )
            changes = [] if is_new else self._configured.differences(runner)
            if changes:
                line = _REPLACED if moves else _KEPT
                runner.logger.warning(_(line, changes=changes))
            if moves:
                self._configured.move_to(runner)
                hook = runner_view.find_hook(runner, SafeParamSchedulerHook)
                if hook is not None:
                    hook.clear_backlog()
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
            'loss scale': _join(
                runner, read_scale, _('none, losses are not scaled')
            ),
            **({_('optimizer'): _(STARTS_ANEW)} if is_new else {}),
            **_run_state(runner),
        }
        source = self._checkpoint or _('a checkpoint')
        lines = [_('mmstable: resumed from {checkpoint}', checkpoint=source)]
        lines += [f'  {_pad(k, 15)}{printable(v)}' for k, v in facts.items()]
        runner.logger.info('\n'.join(lines))
        if runner.iter >= runner.max_iters:
            runner.logger.warning(
                _(
                    'mmstable: this training is already finished: '
                    '{iteration} of {last} iterations are done. To continue, '
                    'raise max_iters or max_epochs in `train_cfg`.',
                    **where,
                )
            )


def _pad(text: str, width: int) -> str:
    """Fill up to a width, in which Chinese characters count twice."""
    wide = sum(unicodedata.east_asian_width(char) in 'WF' for char in text)
    return text.ljust(width - wide)


def _rates(runner: Runner) -> str:
    return _join(runner, read_lr, _('none'))


def _join(runner: Runner, read: Any, nothing: str) -> str:
    values = {}
    for name, wrapper in runner_view.wrappers(runner).items():
        value = read(wrapper)
        values[name] = nothing if value is None else f'{value:g}'
    if len(values) == 1:
        return next(iter(values.values()))
    return ', '.join(f'{name}: {value}' for name, value in values.items())


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
