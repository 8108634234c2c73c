"""The hook that sends messages about a run to its owner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import StoppedBySignal, TrainingDiverged
from mmstable.events.log import RESTARTED_AFTER
from mmstable.events.records import (
    Action,
    CheckpointFailed,
    Event,
    Fault,
    FaultExplained,
    Hang,
    Intervention,
    MemoryAlarm,
    OutOfMemory,
    Poisoned,
    ReplicasDiverged,
    StepReport,
)
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import N_, _, readable, readable_time
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import number

if TYPE_CHECKING:
    from mmstable.notify import Notifier

# Overflows before that are how a loss scale finds its level.
_QUIET_ITERATIONS = 50
# Events of other ranks than 0 that rank 0 does not have.
_OF_EACH_RANK = (FaultExplained, Hang, MemoryAlarm, OutOfMemory)


@register_globally(HOOKS)
class NotifyHook(StepHook):
    """Send a message when a run stops, crashes, hangs, resumes or ends.

    Also at the first fault of a kind and when memory runs out. Without
    addresses it does nothing. They come from the environment variable
    ``MMSTABLE_NOTIFY`` or from a private file, never from a config. Messages
    leave from another process, so the run never waits for them.

    Args:
        interval (float): Least seconds between two messages of a kind; 0
            sends one for every event. Defaults to 600.0.
    """

    # After the hooks whose reactions it reports.
    priority = 'LOWEST'
    observes_stock = False

    def __init__(self, interval: float = 600.0) -> None:
        self._interval = number('NotifyHook', 'interval', interval, at_least=0)
        self._notifier: Notifier | None = None
        self._seen: set[str] = set()
        # The iteration of the newest fault that was explained.
        self._explained = 0
        self._metrics: dict[str, Any] = {}

    def before_run(self, runner: Runner) -> None:
        """Read the addresses."""
        from mmstable.notify import Notifier
        from mmstable.notify.addresses import mask_address

        super().before_run(runner)
        self._seen.clear()
        notifier = Notifier(Path(runner.work_dir), self._interval)
        self._notifier = notifier if notifier.addresses else None
        if notifier.addresses and get_rank() == 0:
            text = N_('mmstable: notifications go to {services}')
            services = list(map(mask_address, notifier.addresses))
            runner.logger.info(_(text, services=services))

    def before_train(self, runner: Runner) -> None:
        """Send that a run was resumed."""
        super().before_train(runner)
        iteration = runner_view.iterations_done(runner)
        if iteration == 0:
            return
        text = _('Resumed at iteration {iteration}.', iteration=iteration)
        reason = os.environ.get(RESTARTED_AFTER, '')
        if reason:
            text += ' ' + _('It had ended: {reason}.', reason=reason)
        self._send('RESUMED', text)

    def after_val_epoch(
        self, runner: Runner, metrics: dict[str, Any] | None = None
    ) -> None:
        """Keep the newest metrics."""
        self._metrics = dict(metrics or {})

    def after_event(self, runner: Runner, event: Event) -> None:
        """Send the first event of a kind."""
        if self._notifier is None or (
            get_rank() != 0 and not isinstance(event, _OF_EACH_RANK)
        ):
            return
        occasion, kind, text = describe_event(event)
        if not occasion or (kind in self._seen and self._interval):
            return
        if isinstance(event, FaultExplained):
            self._explained = event.iteration
        elif isinstance(event, StepReport) and (
            event.iteration == self._explained
        ):
            # Its explanation comes first.
            return
        self._seen.add(kind)
        self._send(occasion, text, kind)
        if isinstance(event, Hang):
            # In the thread of the watchdog, which may end the process next.
            self._notifier.wait(1.0)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Send what ended the run, before the last checkpoint is saved."""
        super().on_exception(runner, exception)
        is_stop = isinstance(exception, (StoppedBySignal, TrainingDiverged))
        kind, error = type(exception).__name__, str(exception)
        text = _(
            'Iteration {iteration} of {most}: {error}',
            iteration=runner_view.iterations_done(runner),
            most=runner.max_iters,
            error=error if is_stop else f'{kind}: {error}',
        )
        command = runner.cfg.get('resume_command')
        if command:
            resume = N_('Resume with: {command}')
            text += '\n' + _(resume, command=f'{command} --resume')
        self._send('STOPPED' if is_stop else 'CRASHED', text)

    def after_exception(
        self, runner: Runner, exception: BaseException
    ) -> None:
        """Wait a few seconds for the message, after the checkpoint."""
        if self._notifier is not None:
            self._notifier.wait()

    def after_run(self, runner: Runner) -> None:
        """Send the end of training, with its metrics."""
        if self._notifier is None:
            return
        if get_rank() == 0 and runner_view.built_train_loop(runner):
            self._send('FINISHED', self._describe_end(runner))
        self._notifier.wait()

    def _describe_end(self, runner: Runner) -> str:
        done = runner_view.iterations_done(runner)
        text = N_('Iteration {iteration} of {most}.')
        text = _(text, iteration=done, most=runner.max_iters)
        best = runner.message_hub.get_info('best_score', None)
        if isinstance(best, (int, float)):
            text += ' ' + _('Best score: {best:.4g}.', best=best)
        scores = [
            f'{name} {value:.4g}'
            for name, value in self._metrics.items()
            if isinstance(value, (int, float))
        ]
        if scores:
            text += ' ' + _('Last validation: {scores}.', scores=scores[:8])
        return text

    def _send(self, occasion: str, text: str, kind: str = '') -> None:
        from mmstable.notify import Occasion

        if self._notifier is not None:
            self._notifier.send(Occasion[occasion], text, kind)


def describe_event(event: Event) -> tuple[str, str, str]:
    """Return occasion, kind and text of an event; '' if it is not sent."""
    from mmstable.events.step_lines import describe_step

    facts = vars(event)
    occasion, kind, text = 'FAULT', event.event, ''
    if isinstance(event, FaultExplained):
        return occasion, event.fault.value, event.text
    if isinstance(event, Hang):
        return 'HANG', kind, event.text
    if isinstance(event, StepReport) and event.fault is not None:
        if event.fault is Fault.OVERFLOW and (
            event.iteration < _QUIET_ITERATIONS
        ):
            return '', '', ''
        head = f'Iter {event.iteration}'
        text = describe_step(head, event, event.loss_scale != 1, 3)
        return occasion, event.fault.value, text
    if isinstance(event, MemoryAlarm):
        occasion, kind = 'MEMORY', event.resource
        unit = str if kind == 'descriptors' else readable
        facts = {**facts, 'left': unit(event.left), 'limit': unit(event.limit)}
        text = N_('Iter {iteration}: {left} of {limit} left ({resource}).')
    elif isinstance(event, Intervention) and event.action is Action.ROLLBACK:
        kind, facts = 'rollback', {**facts, 'reason': event.reason.rstrip('.')}
        text = N_(
            'Iter {iteration}: {reason}. Rolled back to iteration {restored}.'
        )
    elif isinstance(event, OutOfMemory):
        kind = 'oom'
        text = N_('Iter {iteration}: a batch did not fit in memory.')
    elif isinstance(event, CheckpointFailed):
        kind = 'checkpoint'
        text = N_('Iter {iteration}: {name} could not be saved: {reason}')
    elif isinstance(event, (Poisoned, ReplicasDiverged)):
        names = [one.name for one in getattr(event, 'culprits', ())][:3]
        names = names or [getattr(event, 'name', '')]
        facts = {**facts, 'kind': kind, 'names': names}
        text = N_('Iter {iteration}: {kind}: {names}')
    if not text:
        return '', '', ''
    text = _(text, **facts)
    if isinstance(event, MemoryAlarm) and event.seconds_left is not None:
        when = readable_time(event.seconds_left)
        text += ' ' + _('At this rate it runs out in {time}.', time=when)
    return occasion, kind, text
