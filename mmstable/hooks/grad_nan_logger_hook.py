"""The hook that tells, line by line, of steps that went wrong."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.events import Fault, StepReport
from mmstable.events.step_statistics import StepStatistics
from mmstable.hooks.step_hook import StepHook
from mmstable.messages.rate_limit import RateLimit
from mmstable.messages.wording import make_wording
from mmstable.registry import HOOKS, register_globally


@register_globally(HOOKS)
class GradNanLoggerHook(StepHook):
    """Name the parameters whose gradient is NaN or Inf, and say if it matters.

    Every bad step gets a line that can be searched for ``loss_scale`` and
    ``NaN``. Overflows while the loss scale finds its level, and single ones
    later, are normal (INFO). Too many bad steps are a WARNING with advice for
    their kind. With mmengine's own wrappers it can only observe.

    Args:
        lang (str): 'en' or 'zh_cn'. Defaults to 'en'.
        max_names (int): Most parameters to name in a line. The event file
            has all of them. Defaults to 3.
        window (int): Steps that the rate of bad ones is taken over.
            Defaults to 200.
        max_bad_rate (float): The rate that is too high. Defaults to 0.05.
        max_in_a_row (int): So many bad steps in a row are too many.
            Defaults to 5.
        calibration_steps (int): Overflows before so many steps were applied
            belong to the start. Defaults to 20.
        max_lines (int): Most lines in 100 iterations; how many more there
            were is said afterwards. Defaults to 10.
    """

    def __init__(
        self,
        lang: str = 'en',
        max_names: int = 3,
        window: int = 200,
        max_bad_rate: float = 0.05,
        max_in_a_row: int = 5,
        calibration_steps: int = 20,
        max_lines: int = 10,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ('max_names', max_names, 1),
            ('window', window, 20),
            ('max_in_a_row', max_in_a_row, 1),
            ('calibration_steps', calibration_steps, 0),
            ('max_lines', max_lines, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f'GradNanLoggerHook: `{name}` must be an int of at least '
                    f'{least}, got {value!r}.'
                )
        if not 0 < max_bad_rate < 1:
            raise ValueError(
                'GradNanLoggerHook: `max_bad_rate` must be between 0 and 1, '
                f'got {max_bad_rate!r}.'
            )
        self._wording = make_wording(lang, max_names)
        self._window = window
        self._limits = (window, max_bad_rate, max_in_a_row, calibration_steps)
        self._budget = RateLimit(max_lines, per=100)
        self._stats: dict[str, StepStatistics] = {}
        self._quiet_until: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._scaled: dict[str, bool] = {}

    def before_train(self, runner: Runner) -> None:
        """Say what is on, and what is not."""
        super().before_train(runner)
        for name, wrapper in run_view.wrappers(runner).items():
            self._stats.setdefault(name, StepStatistics(*self._limits))
            if self.monitor.sources[name].is_stock:
                runner.logger.warning(
                    self._wording.observes_only(type(wrapper).__name__)
                )
            scaler = run_view.loss_scaler(wrapper)
            self._scaled[name] = scaler is not None
            if scaler is not None:
                line = self._wording.enabled('fp16', scaler.get_scale())
                if line is not None:
                    runner.logger.info(line)

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Count the step, and tell of it if it is bad."""
        stats = self._stats[name]
        applied = self.monitor.sources[name].steps.tally.applied
        alarming = stats.add(report, applied)
        if stats.rate != self._rates.get(name):
            self._publish(runner, name, stats.rate)
        if report.fault is not None:
            self._tell(runner, name, report)
        if alarming:
            self._warn_if_too_many(runner, name, report)

    def after_train(self, runner: Runner) -> None:
        """Say what was left out."""
        self._tell_left_out(runner)

    def _publish(self, runner: Runner, name: str, rate: float) -> None:
        hub = runner.message_hub
        tag = 'train/stable/' + ('' if self._is_alone() else f'{name}/')
        self._rates[name] = rate
        hub.update_scalar(f'{tag}skip_rate', rate)

    def _is_alone(self) -> bool:
        return len(self._stats) == 1

    def _tell(self, runner: Runner, name: str, report: StepReport) -> None:
        if not self._budget.allows(report.iteration):
            return
        self._tell_left_out(runner)
        where = f'Iter {report.iteration}'
        if not self._is_alone():
            where += f' [{name}]'
        scaled = self._scaled[name]
        runner.logger.log(
            logging.INFO
            if report.fault is Fault.OVERFLOW
            else logging.WARNING,
            self._wording.bad_step(where, report, scaled),
        )

    def _tell_left_out(self, runner: Runner) -> None:
        facts = self._budget.take_left_out()
        if facts is not None:
            runner.logger.info(self._wording.left_out(*facts))

    def _warn_if_too_many(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        stats = self._stats[name]
        is_quiet = report.iteration < self._quiet_until.get(name, 0)
        if is_quiet or not stats.is_too_high:
            return
        self._quiet_until[name] = report.iteration + self._window
        bad, seen = stats.counts()
        runner.logger.warning(
            self._wording.too_many(
                bad,
                seen,
                stats.in_a_row,
                replace(report, fault=stats.commonest_fault()),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            name: {
                **stats.state_dict(),
                'quiet_until': self._quiet_until.get(name, 0),
                'rate': self._rates.get(name),
            }
            for name, stats in self._stats.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for name, saved in state.items():
            self._stats[name] = StepStatistics(*self._limits)
            self._stats[name].load_state_dict(saved)
            self._quiet_until[name] = saved['quiet_until']
            if saved.get('rate') is not None:
                self._rates[name] = saved['rate']
