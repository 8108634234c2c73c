"""The hook that tells, line by line, of steps that went wrong."""

from __future__ import annotations

import logging
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import (
    count,
    mapping_of,
    optional,
    record,
    text,
    within,
)
from mmstable.events import Event, Fault, Intervention, StepReport
from mmstable.events.step_statistics import StepStatistics
from mmstable.events.step_text import describe_step
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import N_, _
from mmstable.messages.rate_limit import RateLimit
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, number, renamed

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
    'oom': N_(
        'Batches do not fit in memory and are left out. Use a smaller '
        'batch_size with accumulative_counts, smaller crops, or --memory '
        'balanced; mmstable estimate CONFIG tells what fits.'
    ),
}


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
        max_in_a_row (int, optional): The former name of
            ``max_consecutive_bad``. Defaults to None.
    """

    saved = staticmethod(
        mapping_of(
            text(),
            record(
                **StepStatistics.checks,
                quiet_until=count,
                rate=optional(within(0)),
            ),
        )
    )

    def __init__(
        self,
        lang: str | None = None,
        max_names: int = 3,
        window: int = 200,
        max_bad_rate: float = 0.05,
        max_consecutive_bad: int = 5,
        calibration_steps: int = 20,
        max_lines: int = 10,
        max_in_a_row: int | None = None,
    ) -> None:
        super().__init__()
        max_consecutive_bad = renamed(
            _NAME,
            'max_in_a_row',
            'max_consecutive_bad',
            max_in_a_row,
            max_consecutive_bad,
        )
        self.lang = language(_NAME, lang)
        self._max_names = integer(_NAME, 'max_names', max_names)
        self._window = integer(_NAME, 'window', window, 20)
        self._limits = (
            self._window,
            number(_NAME, 'max_bad_rate', max_bad_rate, above=0, at_most=1),
            integer(_NAME, 'max_consecutive_bad', max_consecutive_bad),
            integer(_NAME, 'calibration_steps', calibration_steps, 0),
        )
        self._budget = RateLimit(integer(_NAME, 'max_lines', max_lines), 100)
        self._stats: dict[str, StepStatistics] = {}
        self._quiet_until: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._scaled: dict[str, bool] = {}
        # Where a wrapper of mmengine has first updated weights with NaN.
        self._spoiled_at: dict[str, int] = {}

    def before_train(self, runner: Runner) -> None:
        """Say what can only be observed."""
        super().before_train(runner)
        for name, wrapper in run_view.wrappers(runner).items():
            self._stats.setdefault(name, StepStatistics(*self._limits))
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
            self._scaled[name] = run_view.loss_scaler(wrapper) is not None
        self._spoiled_at = {}

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
            if report.applied and not report.dropped_micro_batches:
                self._spoiled_at.setdefault(name, report.iteration)
            self._tell(runner, name, report)
        if alarming:
            self._warn_if_too_many(runner, name, report)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Say how many lines were not printed before the run is changed."""
        if isinstance(event, Intervention):
            self._tell_unprinted(runner)

    def after_train(self, runner: Runner) -> None:
        """Say how many lines were not printed."""
        self._tell_unprinted(runner)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Say how many lines were not printed."""
        self._tell_unprinted(runner)

    def _publish(self, runner: Runner, name: str, rate: float) -> None:
        hub = runner.message_hub
        tag = 'train/stable/' + ('' if self._is_alone() else f'{name}/')
        self._rates[name] = rate
        # A wrapper of mmengine without a scaler does not skip anything.
        is_applied = (
            self.monitor.sources[name].is_stock and not self._scaled[name]
        )
        hub.update_scalar(
            f'{tag}{"bad_rate" if is_applied else "skip_rate"}', rate
        )

    def _is_alone(self) -> bool:
        return len(self._stats) == 1

    def _tell(self, runner: Runner, name: str, report: StepReport) -> None:
        if not self._budget.allows(report.iteration):
            return
        self._tell_unprinted(runner)
        where = self._where(name, report)
        scaled = self._scaled[name]
        runner.logger.log(
            logging.INFO
            if report.fault is Fault.OVERFLOW
            else logging.WARNING,
            describe_step(where, report, scaled, self._max_names),
        )

    def _where(self, name: str, report: StepReport) -> str:
        wrapper = '' if self._is_alone() else f' [{name}]'
        return f'Iter {report.iteration}{wrapper}'

    def _tell_unprinted(self, runner: Runner) -> None:
        facts = self._budget.take_unprinted()
        if facts is not None:
            count, first, last = facts
            has_file = run_view.find_hook(runner, EventLogHook) is not None
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
        stats = self._stats[name]
        is_quiet = report.iteration < self._quiet_until.get(name, 0)
        if is_quiet or not stats.is_too_high:
            return
        self._quiet_until[name] = report.iteration + self._window
        bad, seen = stats.counts()
        __, max_rate, max_consecutive, __ = self._limits
        fault = stats.commonest_fault()
        spoiled = self._spoiled_at.get(name)
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
            if saved['rate'] is not None:
                self._rates[name] = saved['rate']
