"""The hook that writes the event file of a run."""

from __future__ import annotations

import traceback
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable.errors import StoppedBySignal
from mmstable.events import Culprit, Injection, Intervention
from mmstable.events.event_log import EventLog
from mmstable.events.run_header import describe_run, device_of
from mmstable.events.run_recorder import RunRecorder
from mmstable.optim.new_steps import record_losses, wrappers_of
from mmstable.registry import HOOKS, register_globally

# Characters, each of which can take twelve bytes of a line.
_LONGEST_TRACEBACK = 1 << 18


@register_globally(HOOKS)
class EventLogHook(Hook):
    """Remember what happened to a run in ``stability/events.jsonl``.

    The file is in the log directory of the run. It has a header, bad steps,
    changes of the loss scale, regular samples and the totals, and is read
    back with :func:`mmstable.report.read_events`. With mmengine's own
    optimizer wrappers, which do not report their steps, it has the header,
    the samples and the end.

    Args:
        interval (int): Iterations between two samples. Defaults to 50.
    """

    # Right after RuntimeInfoHook (VERY_HIGH) has read the loss, so that
    # nothing is waited for, and before any hook that may end the run.
    priority = 'HIGH'

    def __init__(self, interval: int = 50) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int):
            raise TypeError(
                f'EventLogHook: `interval` must be an int, got {interval!r}.'
            )
        if interval < 1:
            raise ValueError(
                f'EventLogHook: `interval` must be at least 1, got {interval}.'
            )
        self._interval = interval
        self._recorder: RunRecorder | None = None

    def before_train(self, runner: Runner) -> None:
        """Start the event file of this run."""
        header = describe_run(runner)
        self._recorder = RunRecorder(
            EventLog(Path(runner.log_dir, 'stability'), header),
            wrappers_of(runner.optim_wrapper),
            header.rank,
        )

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Record a bad step, a moved scale, and now and then a sample."""
        if self._recorder is None:
            return
        iteration = runner.iter + 1
        record_losses(runner.optim_wrapper, outputs)
        self._recorder.check_steps(iteration, outputs)
        if iteration % self._interval == 0:
            self._recorder.sample(iteration, outputs, device_of(runner.model))

    def after_poisoned(
        self, runner: Runner, culprits: tuple[Culprit, ...]
    ) -> None:
        """Record a checkpoint that SafeCheckpointHook did not save."""
        if self._recorder is not None:
            self._recorder.record_poison(runner.iter + 1, culprits)

    def after_divergence(
        self,
        runner: Runner,
        name: str,
        count: int,
        ranks: tuple[int, ...],
        action: str,
    ) -> None:
        """Record what ReplicaCheckHook found."""
        if self._recorder is not None:
            self._recorder.record_divergence(
                runner.iter + 1, name, count, ranks, action
            )

    def after_intervention(
        self, runner: Runner, intervention: Intervention
    ) -> None:
        """Record what DivergenceGuardHook has done."""
        if self._recorder is not None:
            self._recorder.record_intervention(intervention)

    def after_fault_injected(self, runner: Runner, fault: Injection) -> None:
        """Record what FaultInjectorHook did, before it shows."""
        if self._recorder is not None:
            self._recorder.record_injection(fault)

    def before_val(self, runner: Runner) -> None:
        """Keep validation out of the iteration time."""
        if self._recorder is not None:
            self._recorder.timer.pause()

    def after_val(self, runner: Runner) -> None:
        """Count time again."""
        if self._recorder is not None:
            self._recorder.timer.go_on()

    def after_train(self, runner: Runner) -> None:
        """Record the end, and close the file."""
        if self._recorder is None:
            return
        finished = runner.iter >= runner.max_iters
        self._recorder.end(runner.iter, 'finished' if finished else 'stopped')
        self._recorder = None

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Record what ended the run; mmstable's loops tell of it."""
        if self._recorder is None:
            return
        lines = traceback.format_exception(
            type(exception), exception, exception.__traceback__
        )
        stopped = isinstance(exception, StoppedBySignal)
        self._recorder.end(
            runner.iter,
            'stopped' if stopped else 'exception',
            # Its end says what happened; a message can have any length.
            ''.join(lines)[-_LONGEST_TRACEBACK:],
        )
        self._recorder = None
