"""The hook that writes the event file of a run."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import StoppedBySignal, TrainingDiverged
from mmstable.events import Event, Injection, StepReport
from mmstable.events.records import (
    FaultExplained,
    Hang,
    Heartbeat,
    LiveChange,
    MemoryAlarm,
    OutOfMemory,
    RunEnd,
    WrapperTotals,
)
from mmstable.events.samples import (
    IterationTimer,
    device_memory,
    host_memory,
    read_losses,
    sample_wrapper,
)
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import _
from mmstable.optim.grad_health import newest_module_norms
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import flag, integer

if TYPE_CHECKING:
    from mmstable.events.log import EventLog

# What every rank writes down; the rest is the same on all of them.
_OF_EACH_RANK = (
    StepReport,
    FaultExplained,
    MemoryAlarm,
    OutOfMemory,
    Hang,
    Injection,
    LiveChange,
)

# Characters, each of which can take twelve bytes of a line.
_LONGEST_TRACEBACK = 1 << 18


@register_globally(HOOKS)
class EventLogHook(StepHook):
    """Remember what happened to a run in ``stability/events.jsonl``.

    The file is in the log directory of the run. It has a header, bad steps,
    changes of the loss scale, regular samples and the totals, and is read
    back with :func:`mmstable.report.read_events`. Rank 0 writes everything;
    the others only what happened to them, into files that do not exist
    before.

    Args:
        interval (int): Iterations between two samples. Defaults to 50.
        report (bool): Whether to write ``stability_report.html`` into the
            work directory when the run ends or fails, as ``mmstable report``
            does, if that takes less than two seconds. Defaults to True.
    """

    def __init__(self, interval: int = 50, report: bool = True) -> None:
        self._interval = integer('EventLogHook', 'interval', interval)
        self._writes_report = flag('EventLogHook', 'report', report)
        self._log: EventLog | None = None
        self._config: str | None = None
        self._timer: IterationTimer | None = None
        self._rank = 0
        self._totals: dict[str, WrapperTotals] = {}
        self._has_trained = False

    def before_run(self, runner: Runner) -> None:
        """Take the text of the config that RuntimeInfoHook has written."""
        super().before_run(runner)
        # A resumed run gets the one of the checkpoint after this.
        self._config = runner.message_hub.get_info('cfg', None)

    def before_train(self, runner: Runner) -> None:
        """Start the event file of this run."""
        from mmstable.events.log import EventLog, describe_run

        super().before_train(runner)
        header = describe_run(runner, self._config)
        self._rank = header.rank
        self._has_trained = True
        self._timer = None
        self._log = EventLog(runner_view.stability_folder(runner), header)
        self._totals = {
            name: source.steps.tally.totals()
            for name, source in self.monitor.sources.items()
        }
        if self._rank == 0:
            self._log.write()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Take a sample now and then."""
        iteration = self.monitor.iteration
        if self._timer is None:
            # Not before: a resumed run may read its dataset up to here first.
            self._timer = IterationTimer(iteration)
        if iteration % self._interval:
            return
        allocated, peak = device_memory(runner_view.device_of(runner.model))
        samples = {}
        for name, wrapper in runner_view.wrappers(runner).items():
            source = self.monitor.sources.get(name)
            norms = {} if source is None else newest_module_norms(source.steps)
            newest = self.monitor.newest_step(name)
            samples[name] = sample_wrapper(wrapper, newest, norms)
        self.after_event(
            runner,
            Heartbeat.now(
                iteration,
                losses=read_losses(outputs),
                wrappers=samples,
                iteration_time=self._timer.lap(iteration),
                host_memory=host_memory(),
                device_memory=allocated,
                device_memory_peak=peak,
            ),
        )

    def after_event(self, runner: Runner, event: Event) -> None:
        """Record whatever happens."""
        if self._log is not None and (
            self._rank == 0 or isinstance(event, _OF_EACH_RANK)
        ):
            self._log.write(event)

    def before_val(self, runner: Runner) -> None:
        """Keep validation out of the iteration time."""
        if self._timer is not None:
            self._timer.pause()

    def after_val(self, runner: Runner) -> None:
        """Count time again."""
        if self._timer is not None:
            self._timer.go_on()

    def after_train(self, runner: Runner) -> None:
        """Record the end, and close the file."""
        finished = runner.iter >= runner.max_iters
        self._end(runner, 'finished' if finished else 'stopped')
        self._close()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Record what ended the run, if one of mmstable's loops runs.

        The file stays open: the error may be explained after this.
        """
        lines = traceback.format_exception(
            type(exception), exception, exception.__traceback__
        )
        stopped = isinstance(exception, (StoppedBySignal, TrainingDiverged))
        if isinstance(exception, SystemExit):
            # `sys.exit(0)` of a hook.
            stopped = not exception.code
        reason = 'stopped' if stopped else 'exception'
        # Its end says what happened; a message can have any length.
        self._end(runner, reason, ''.join(lines)[-_LONGEST_TRACEBACK:])

    def after_run(self, runner: Runner) -> None:
        """Draw what happened."""
        is_due, self._has_trained = self._has_trained, False
        if not (is_due and self._writes_report and self._rank == 0):
            return
        from mmstable.report.page import write_if_quick

        try:
            written = write_if_quick(runner.work_dir)
        except Exception:
            # A picture is worth no exit code.
            text = _(
                'mmstable: the report could not be written; the run is not '
                'affected'
            )
            runner.logger.exception(text)
            return
        if written is not None:
            path, text = written
            line = _('mmstable: {text} Report: {path}', path=path, text=text)
            runner.logger.info(line)

    def after_exception(
        self, runner: Runner, exception: BaseException
    ) -> None:
        """Close the file, and draw what happened."""
        self._close()
        self.after_run(runner)

    def _end(
        self, runner: Runner, reason: str, text: str | None = None
    ) -> None:
        if self._log is None:
            return
        end = RunEnd.now(
            runner_view.iterations_done(runner),
            reason=reason,
            wrappers={
                name: self.monitor.sources[name].steps.tally.since(before)
                for name, before in self._totals.items()
            },
            lost_events=self._log.lost,
            traceback=text,
        )
        self.after_event(runner, end)

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
