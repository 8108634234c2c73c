"""The hook that says what a resumed run goes on with."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable.checkpoint.lr_schedule import ConfiguredSchedule
from mmstable.events.samples import read_lr, read_scale
from mmstable.hooks.safe_param_scheduler_hook import SafeParamSchedulerHook
from mmstable.legacy.checkpoints import prepare_to_resume
from mmstable.optim.new_steps import wrappers_of
from mmstable.registry import HOOKS, register_globally
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
        override_lr_schedule (bool): Whether to follow the schedule of the
            config, moved to where the run is, instead of the one in the
            checkpoint. Defaults to False.
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
        if hasattr(runner.optim_wrapper, 'param_groups'):
            self._configured = ConfiguredSchedule(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make the checkpoint fit, and see what it lacks."""
        for note in prepare_to_resume(checkpoint):
            runner.logger.info(f'mmstable: checkpoint: {note}.')
        self._missing = [
            section
            for section in ('optimizer', 'param_schedulers')
            if section not in checkpoint
        ]

    def before_train(self, runner: Runner) -> None:
        """Report, unless the checkpoint only gave weights to a new run."""
        missing, self._missing = self._missing, None
        if missing is None or runner.iter == 0:
            return
        rate = _rates(runner)
        if self._configured is not None and (
            self._override
            or ('param_schedulers' in missing and runner.param_schedulers)
        ):
            self._configured.move_to(runner)
            for hook in runner.hooks:
                if isinstance(hook, SafeParamSchedulerHook):
                    hook.forget_debts()
            rate = f'{_rates(runner)} (schedule of the config; was {rate})'
        facts = {
            'epoch': str(runner.epoch),
            'iteration': f'{runner.iter} of {runner.max_iters}',
            'learning rate': rate,
            'loss scale': _scales(runner),
            **_optimizer_state(missing),
            **_run_state(runner),
        }
        lines = [f'  {name:15}{value}' for name, value in facts.items()]
        source = self._checkpoint or 'a checkpoint'
        runner.logger.info(
            '\n'.join([f'mmstable: resumed from {source}', *lines])
        )
        if runner.iter >= runner.max_iters:
            runner.logger.warning(
                f'mmstable: this training is already finished: '
                f'{runner.iter} of {runner.max_iters} iterations are done. '
                'To go on, raise max_iters or max_epochs in `train_cfg`.'
            )


def _rates(runner: Runner) -> str:
    return _join(runner, read_lr, 'none')


def _scales(runner: Runner) -> str:
    return _join(runner, read_scale, 'none, losses are not scaled')


def _join(runner: Runner, read: Any, nothing: str) -> str:
    values = {
        name: read(wrapper)
        for name, wrapper in wrappers_of(runner.optim_wrapper).items()
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
    return {'optimizer': 'not in the checkpoint, starts anew'}


def _run_state(runner: Runner) -> dict[str, str]:
    """What the hook that restores it says."""
    found = {
        'RNG': 'not restored, which takes SafeCheckpointHook',
        'data position': f'up to {type(runner.train_loop).__name__}, by the '
        'iteration',
    }
    for hook in runner.hooks:
        found.update(getattr(hook, 'restored', {}))
    return found
