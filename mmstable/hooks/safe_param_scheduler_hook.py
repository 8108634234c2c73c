"""The hook that lets schedules wait for skipped steps, and catch up."""

from __future__ import annotations

import warnings
from typing import Any

from mmengine.hooks import ParamSchedulerHook
from mmengine.optim import _ParamScheduler
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import ConfigError
from mmstable.events import Outcome, StepReport
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import mapping_of, text
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, no_match
from mmstable.state.schedules import ScheduleBacklog

_NAME = 'SafeParamSchedulerHook'


@register_globally(HOOKS)
class SafeParamSchedulerHook(StepHook, ParamSchedulerHook):
    """``ParamSchedulerHook`` whose schedules wait for skipped steps.

    After a skipped step, schedules by iteration wait for as many iterations
    as the step stands for. They catch up by extra steps, spread evenly over
    the rest of the run, so they still end with it. Schedules by epoch, and
    those that look at a metric, move as always. With several optimizers the
    schedules of each obey its own steps. Without skipped steps it is exactly
    ``ParamSchedulerHook``; so it is with mmengine's own wrappers, which do
    not say what became of a step.

    It takes the place of mmengine's hook::

        default_hooks = dict(
            param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'))
    """

    # As mmengine's: after all that log the value of this iteration.
    priority = 'LOW'
    saved = staticmethod(mapping_of(text(), ScheduleBacklog.saved))
    # It does not obey mmengine's own wrappers.
    observes_stock = False

    def __init__(self) -> None:
        super().__init__()
        self._backlogs: dict[str, ScheduleBacklog] = {}
        # Of this iteration: wrapper to how many iterations were lost, or 0
        # once a step was applied.
        self._lost: dict[str, int] = {}
        # None: no stage `before_train` has been.
        self._schedules: dict[str, list[_ParamScheduler]] | None = None
        # What the runner had when they were found.
        self._built: Any = None
        # Whether all of them have made a step.
        self._has_moved = False
        self._has_told = False

    def before_train(self, runner: Runner) -> None:
        """See that nobody else moves the schedules."""
        super().before_train(runner)
        self._lost = {}
        self._find_schedules(runner)
        if not self._schedules:
            return
        names = [
            type(hook).__name__
            for hook in runner.hooks
            if isinstance(hook, ParamSchedulerHook)
        ]
        if len(names) > 1:
            raise ConfigError(
                f'{" and ".join(names)} are both there and would move every '
                'schedule twice. Take one, by `default_hooks = dict('
                "param_scheduler=dict(type='mmstable.SafeParamSchedulerHook')"
                ')`.'
            )
        sources = self.monitor.sources.values()
        if all(one.is_stock for one in sources):
            text = _(
                'SafeParamSchedulerHook: the optimizer wrapper does not '
                'report skipped steps, so schedules move in every '
                'iteration, as by ParamSchedulerHook.'
            )
            runner.logger.info(text)

    def _find_schedules(self, runner: Runner) -> None:
        """Remember what moves by iteration."""
        self._built = runner.param_schedulers
        self._has_moved = False
        self._schedules = {}
        for name, several in runner_view.schedulers(runner).items():
            by_iter = [one for one in several if not one.by_epoch]
            if by_iter:
                self._schedules[name] = by_iter
                self._backlogs.setdefault(name, ScheduleBacklog())

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Note how many iterations a skipped step stands for."""
        if report.outcome is Outcome.APPLIED:
            self._lost[name] = 0
        elif report.skipped and not self.monitor.sources[name].is_stock:
            wrapper = runner_view.wrappers(runner)[name]
            counts = runner_view.accumulative_counts(wrapper)
            self._lost.setdefault(name, counts)

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Move the schedules by iteration, or let them wait."""
        if self._schedules is None:
            ParamSchedulerHook.after_train_iter(self, runner, *args, **kwargs)
            return
        if runner.param_schedulers is not self._built:
            # A resume follows the schedules of the config.
            self._find_schedules(runner)
        lost, self._lost = self._lost, {}
        for name, schedule in self._schedules.items():
            backlog, waits = self._backlogs[name], lost.get(name, 0)
            steps = 1
            if waits or backlog.steps or backlog.hold:
                left = runner.max_iters - self.monitor.iteration
                steps = backlog.advance(left, waits)
            if self._has_moved:
                for one in schedule * steps:
                    one.step()
            else:
                _step_quietly(schedule * steps)
            if waits and not self._has_told:
                self._has_told = True
                line = _(
                    'Iter {iteration}: step skipped; the LR schedule is held '
                    'back one step and will catch up by iteration {last} '
                    '(logged once)',
                    iteration=runner.iter + 1,
                    last=runner.max_iters,
                )
                runner.logger.info(line)
        self._has_moved = True

    def add_backlog(self, iterations: int, name: str | None = None) -> None:
        """Note that schedules were set back, so that they catch up.

        Args:
            iterations (int): By how many of its steps.
            name (str, optional): The optimizer wrapper whose schedules they
                are; all if None. Defaults to None.
        """
        integer(_NAME, 'iterations', iterations, at_least=0)
        if name is not None and name not in self._backlogs:
            raise ValueError(
                f'{_NAME}: {no_match("name", name, self._backlogs)}'
            )
        for one in self._backlogs if name is None else [name]:
            self._backlogs[one].add(iterations)

    def clear_backlog(self) -> None:
        """Note that the schedules are where the run is."""
        for name in self._backlogs:
            self._backlogs[name] = ScheduleBacklog()

    def state_dict(self) -> dict[str, Any]:
        """The backlog of each schedule that has one."""
        states = {
            name: backlog.state_dict()
            for name, backlog in self._backlogs.items()
        }
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for name, saved in state.items():
            self._backlogs[name] = ScheduleBacklog()
            self._backlogs[name].load_state_dict(saved)


def _step_quietly(schedule: list[_ParamScheduler]) -> None:
    with warnings.catch_warnings():
        # A schedule by iteration may well move before the first step of the
        # optimizer, which comes at the end of an accumulation window.
        warnings.filterwarnings('ignore', 'Detected call of `scheduler.step')
        for one in schedule:
            one.step()
