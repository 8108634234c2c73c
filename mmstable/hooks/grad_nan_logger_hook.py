"""The hook that tells, line by line, of steps that went wrong."""

from __future__ import annotations

import logging
from typing import Any

from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.events import Event, Fault, Intervention, StepReport
from mmstable.events.saved import Saved
from mmstable.events.step_lines import StepStatistics, describe_step
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import (
    count,
    mapping_of,
    optional,
    text,
    within,
)
from mmstable.messages import N_, RateLimit, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, number

_NAME = 'GradNanLoggerHook'
_ADVICE = {
    'overflow': N_(
        'Gradients overflow fp16 although the loss scale is backing off. Do '
        'NOT raise loss_scale: a larger one overflows sooner. Lower the '
        'learning rate or lengthen the warm-up, clip gradients '
        '(clip_grad=dict(max_norm=...)), or train in bfloat16, which has the '
        'range of float32.'
    ),
    'nan_loss': N_(
        'The loss itself is NaN or Inf before it is scaled, so no loss_scale '
        'can help. Check the data of these iterations (NaN or Inf in inputs '
        'or targets, empty targets, log(0), division by 0); run the loss in '
        "float32 (fp32_modules=['...']); lower the learning rate or lengthen "
        'the warm-up.'
    ),
    'nan_grad': N_(
        'The loss is finite, but its gradient is not, and no loss_scale is '
        'to blame (it is off, or at its floor). Look at the named modules '
        'for sqrt or norm at 0, division by 0, masked softmax; run them in '
        "float32 (fp32_modules=['...']); lower the learning rate or lengthen "
        'the warm-up; with bfloat16, try float16 or float32.'
    ),
    'spike': N_(
        'Loss or gradient norm keep jumping far above their recent level. '
        'Look at the data of these iterations (wrong labels, outliers); clip '
        'gradients (clip_grad=dict(max_norm=...)); lower the learning rate '
        'or lengthen the warm-up.'
    ),
    'transient': N_(
        'Steps go wrong, and are right when they are repeated. Test the '
        'machine with `mmstable doctor`.'
    ),
    'oom': N_(
        'Batches do not fit in memory and are left out. Use a smaller '
        'batch_size with accumulative_counts, smaller crops, or --memory '
        'balanced; mmstable estimate CONFIG tells what fits.'
    ),
}


class _Wrapper(Saved):
    """What is known about an optimizer wrapper.

    Args:
        stats (StepStatistics): Its recent bad steps.
    """

    state = dict(
        stats=StepStatistics, quiet_until=count, rate=optional(within(0))
    )

    def __init__(self, stats: StepStatistics) -> None:
        self.stats = stats
        # The rate that was last published.
        self.rate: float | None = None
        # No warning of too many bad steps before this iteration.
        self.quiet_until = 0
        self.is_scaled = False
        # The iteration that first updated the weights with NaN, which only
        # mmengine's own wrappers do.
        self.spoiled_at: int | None = None


@register_globally(HOOKS)
class GradNanLoggerHook(StepHook):
    """Name the parameters whose gradient is NaN or Inf, and say if it matters.

    Every bad step gets a line that can be searched for ``loss_scale`` and
    ``NaN``. Overflows while the loss scale finds its level, and single ones
    later, are normal (INFO). Too many bad steps are a WARNING with advice for
    their kind. With mmengine's own wrappers it can only observe.

    Args:
        lang (str, optional): The language of all lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
        max_names (int): Most parameters to name in a line. The event file
            has all of them. Defaults to 3.
        window (int): Steps that the rate of bad ones is taken over.
            Defaults to 200.
        max_bad_rate (float): The rate that is too high. Defaults to 0.05.
        max_consecutive_bad (int): So many bad steps in a row are too many.
            Defaults to 5.
        calibration_steps (int): Overflows before so many steps were applied
            belong to the start. Defaults to 20.
        max_lines (int): Most lines in 100 iterations; how many more there
            were is said afterwards. Defaults to 10.
    """

    saved = staticmethod(mapping_of(text(), _Wrapper.saved))

    def __init__(
        self,
        lang: str | None = None,
        max_names: int = 3,
        window: int = 200,
        max_bad_rate: float = 0.05,
        max_consecutive_bad: int = 5,
        calibration_steps: int = 20,
        max_lines: int = 10,
    ) -> None:
        super().__init__()
        self.lang = language(_NAME, lang)
        self._max_names = integer(_NAME, 'max_names', max_names)
        self._limits = (
            integer(_NAME, 'window', window, 20),
            number(_NAME, 'max_bad_rate', max_bad_rate, above=0, at_most=1),
            integer(_NAME, 'max_consecutive_bad', max_consecutive_bad),
            integer(_NAME, 'calibration_steps', calibration_steps, 0),
        )
        self._budget = RateLimit(integer(_NAME, 'max_lines', max_lines), 100)
        self._wrappers: dict[str, _Wrapper] = {}

    def before_train(self, runner: Runner) -> None:
        """Say what can only be observed."""
        super().before_train(runner)
        for name, wrapper in runner_view.wrappers(runner).items():
            state = self._state_of(name)
            state.is_scaled = runner_view.loss_scaler(wrapper) is not None
            state.spoiled_at = None
            if self.monitor.sources[name].is_stock:
                kind = type(wrapper).__name__
                runner.logger.warning(
                    _(
                        'GradNanLoggerHook can only observe {wrapper}: a NaN '
                        'is named, but not kept from the weights. Use '
                        "type='mmstable.SafeOptimWrapper' or "
                        "'mmstable.SafeAmpOptimWrapper' to be protected.",
                        wrapper=kind,
                    )
                )

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Count the step, and tell of it if it is bad."""
        state = self._wrappers[name]
        applied = self.monitor.sources[name].steps.tally.applied
        alarming = state.stats.add(report, applied)
        # A run without a bad step logs no zeros.
        if state.stats.rate != (state.rate or 0.0):
            self._publish(runner, name, state)
        if report.fault is not None:
            is_spoiled = report.applied and bool(report.culprits)
            if is_spoiled and state.spoiled_at is None:
                state.spoiled_at = report.iteration
            self._tell(runner, name, report)
        if alarming and report.iteration >= state.quiet_until:
            self._warn_if_too_many(runner, name, report)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Say how many lines were not printed before the run is changed."""
        if isinstance(event, Intervention):
            self.close(runner)

    def _state_of(self, name: str) -> _Wrapper:
        new = _Wrapper(StepStatistics(*self._limits))
        return self._wrappers.setdefault(name, new)

    def _publish(self, runner: Runner, name: str, state: _Wrapper) -> None:
        state.rate = state.stats.rate
        prefix = '' if self._is_alone() else f'{name}/'
        # A wrapper of mmengine without a scaler does not skip anything.
        is_applied = (
            self.monitor.sources[name].is_stock and not state.is_scaled
        )
        kind = 'bad_rate' if is_applied else 'skip_rate'
        runner.message_hub.update_scalar(
            f'train/stable/{prefix}{kind}', state.rate
        )

    def _is_alone(self) -> bool:
        return len(self._wrappers) == 1

    def _tell(self, runner: Runner, name: str, report: StepReport) -> None:
        if not self._budget.allows(report.iteration):
            return
        self.close(runner)
        is_normal = report.fault is Fault.OVERFLOW
        runner.logger.log(
            logging.INFO if is_normal else logging.WARNING,
            describe_step(
                self._where(name, report),
                report,
                self._wrappers[name].is_scaled,
                self._max_names,
            ),
        )

    def _where(self, name: str, report: StepReport) -> str:
        wrapper = '' if self._is_alone() else f' [{name}]'
        return f'Iter {report.iteration}{wrapper}'

    def close(self, runner: Runner) -> None:
        """Say how many lines were not printed."""
        facts = self._budget.take_unprinted()
        if facts is not None:
            count, first, last = facts
            has_file = runner_view.find_hook(runner, EventLogHook) is not None
            runner.logger.info(
                _(
                    '{count:more bad step|more bad steps} (NaN or Inf) '
                    'between Iter {first} and Iter {last} not printed{where}',
                    count=count,
                    first=first,
                    last=last,
                    where=_(
                        '; loss_scale and culprits of each are in the event '
                        'file'
                    )
                    if has_file
                    else '',
                )
            )

    def _warn_if_too_many(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        state = self._wrappers[name]
        stats, spoiled = state.stats, state.spoiled_at
        if not stats.is_too_high:
            return
        state.quiet_until = report.iteration + self._limits[0]
        bad, seen = stats.counts()
        __, max_rate, max_consecutive, __ = self._limits
        fault = stats.commonest_fault()
        runner.logger.warning(
            _(
                '{where}: {bad:.4g} of the last {seen} steps were bad '
                '({percent:.1f} %), {consecutive} in a row; more than '
                '{max_percent:g} %, or {max_consecutive} in a row, are too '
                'many. {advice}',
                where=self._where(name, report),
                bad=bad,
                seen=seen,
                percent=100 * bad / seen,
                consecutive=stats.in_a_row,
                max_percent=100 * max_rate,
                max_consecutive=max_consecutive,
                advice=_(_ADVICE[fault.value])
                if spoiled is None
                else _(
                    'The weights were updated with NaN or Inf in iteration '
                    '{iteration}, so nothing after it is of use: stop, and '
                    'resume from a checkpoint before it with '
                    "type='mmstable.SafeOptimWrapper' (--resume "
                    '--before-iter {iteration}).',
                    iteration=spoiled,
                ),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {name: one.state_dict() for name, one in self._wrappers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for name, saved in state.items():
            self._state_of(name).load_state_dict(saved)
