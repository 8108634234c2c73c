"""The hook that logs steps that went wrong, and warns of too many."""

from __future__ import annotations

import logging
from typing import Any

from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.events import Event, Fault, Intervention, StepReport
from mmstable.events.saved import Saved
from mmstable.events.step_lines import (
    ADVICE,
    LOWER_THE_RATE,
    StepStatistics,
    describe_step,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import count, mapping_of, optional, text, within
from mmstable.messages import RateLimit, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language

# Bad steps of the last ones, or in a row, that are too many; overflows before
# so many steps were applied belong to the start.
_WINDOW, _MOST_RATE, _MOST_IN_A_ROW, _START = 200, 0.05, 5, 20
# Most parameters to name in a line: the event file has all of them.
_MOST_NAMES = 3


class _Wrapper(Saved):
    """What is known about an optimizer wrapper."""

    state = dict(
        stats=StepStatistics, quiet_until=count, rate=optional(within(0))
    )

    def __init__(self) -> None:
        self.stats = StepStatistics(
            _WINDOW, _MOST_RATE, _MOST_IN_A_ROW, _START
        )
        # The rate that was last published.
        self.rate: float | None = None
        # No warning of too many bad steps before this iteration.
        self.quiet_until = 0
        self.is_scaled = self.is_stock = False
        # The iteration that first updated the weights with NaN, which only
        # mmengine's own wrappers do.
        self.spoiled_at: int | None = None


@register_globally(HOOKS)
class GradNanLoggerHook(StepHook):
    """Name the parameters whose gradient is NaN or Inf, and say if it matters.

    Every bad step gets a line that can be searched for ``loss_scale`` and
    ``NaN``. Overflows while the loss scale finds its level, and single ones
    later, are normal (INFO). More than 5 % of the last 200 steps, or 5 in a
    row, are a WARNING with advice for their kind. With mmengine's own
    wrappers it can only observe.

    Args:
        lang (str, optional): The language of all lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
        max_lines (int): Most lines in 100 iterations; how many more there
            were is said afterwards. Defaults to 10.
    """

    saved = staticmethod(mapping_of(text(), _Wrapper.saved))

    def __init__(self, lang: str | None = None, max_lines: int = 10) -> None:
        super().__init__()
        owner = 'GradNanLoggerHook'
        self.lang = language(owner, lang)
        self._budget = RateLimit(integer(owner, 'max_lines', max_lines), 100)
        self._wrappers: dict[str, _Wrapper] = {}

    def before_train(self, runner: Runner) -> None:
        """Warn of what can only be observed."""
        super().before_train(runner)
        for name, wrapper in runner_view.wrappers(runner).items():
            state = self._wrappers.setdefault(name, _Wrapper())
            state.is_scaled = runner_view.loss_scaler(wrapper) is not None
            state.is_stock = self.monitor.sources[name].is_stock
            state.spoiled_at = None
            if state.is_stock:
                line = _(
                    'GradNanLoggerHook can only observe {wrapper}: a NaN '
                    'is named, but not kept from the weights. Use '
                    "type='mmstable.SafeOptimWrapper' or "
                    "'mmstable.SafeAmpOptimWrapper' to be protected.",
                    wrapper=type(wrapper).__name__,
                )
                runner.logger.warning(line)

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Count the step, and log it if it is bad."""
        state = self._wrappers[name]
        applied = self.monitor.sources[name].steps.tally.applied
        alarming = state.stats.add(report, applied)
        # A run without a bad step logs no zeros.
        if state.stats.bad or state.rate:
            self._publish(runner, name, state)
        if report.fault is not None:
            is_spoiled = report.applied and bool(report.culprits)
            if is_spoiled and state.spoiled_at is None:
                state.spoiled_at = report.iteration
            self._log(runner, self._where(name, report), report, state)
        if alarming and report.iteration >= state.quiet_until:
            self._warn_if_too_many(runner, self._where(name, report), state)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Say how many lines were not printed before the run is changed."""
        if isinstance(event, Intervention):
            self.close(runner)

    def _publish(self, runner: Runner, name: str, state: _Wrapper) -> None:
        rate = state.stats.rate
        if rate == (state.rate or 0.0):
            return
        state.rate = rate
        prefix = '' if len(self._wrappers) == 1 else f'{name}/'
        # A wrapper of mmengine without a scaler does not skip anything.
        is_applied = state.is_stock and not state.is_scaled
        kind = 'bad_rate' if is_applied else 'skip_rate'
        key = f'train/stable/{prefix}{kind}'
        runner.message_hub.update_scalar(key, rate)

    def _where(self, name: str, report: StepReport) -> str:
        wrapper = '' if len(self._wrappers) == 1 else f' [{name}]'
        return f'Iter {report.iteration}{wrapper}'

    def _log(
        self, runner: Runner, where: str, report: StepReport, state: _Wrapper
    ) -> None:
        if not self._budget.allows(report.iteration):
            return
        self.close(runner)
        is_normal = report.fault is Fault.OVERFLOW
        level = logging.INFO if is_normal else logging.WARNING
        line = describe_step(where, report, state.is_scaled, _MOST_NAMES)
        runner.logger.log(level, line)

    def close(self, runner: Runner) -> None:
        """Say how many lines were not printed."""
        facts = self._budget.take_unprinted()
        if facts is not None:
            has_file = runner_view.find_hook(runner, EventLogHook) is not None
            where = _(
                '; loss_scale and culprits of each are in the event file'
            )
            line = _(
                '{count:more bad step|more bad steps} (NaN or Inf) '
                'between Iter {first} and Iter {last} not printed{where}',
                **dict(zip(('count', 'first', 'last'), facts)),
                where=where if has_file else '',
            )
            runner.logger.info(line)

    def _warn_if_too_many(
        self, runner: Runner, where: str, state: _Wrapper
    ) -> None:
        stats, spoiled = state.stats, state.spoiled_at
        if not stats.is_too_high:
            return
        state.quiet_until = self.monitor.iteration + _WINDOW
        if spoiled is None:
            cause = _(ADVICE[stats.commonest_fault().value])
            advice = f'{_(LOWER_THE_RATE)}; {cause}'
        else:
            advice = _(
                'the weights were updated with NaN or Inf in iteration '
                '{iteration}, so nothing after it is of use: stop, and '
                'resume from a checkpoint before it with '
                "type='mmstable.SafeOptimWrapper' (--resume "
                '--before-iter {iteration})',
                iteration=spoiled,
            )
        line = _(
            '{where}: {reason}; more than {percent:g} %, or {most} in a row, '
            'are too many. What to change: {advice}.',
            where=where,
            reason=stats.describe(),
            percent=100 * _MOST_RATE,
            most=_MOST_IN_A_ROW,
            advice=advice,
        )
        runner.logger.warning(line)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {name: one.state_dict() for name, one in self._wrappers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for name, saved in state.items():
            wrapper = self._wrappers.setdefault(name, _Wrapper())
            wrapper.load_state_dict(saved)
