"""What hooks that listen to optimizer steps have in common."""

from __future__ import annotations

from mmengine.runner import Runner

from mmstable.events.run_monitor import RunMonitor
from mmstable.events.stateful_hook import StatefulHook
from mmstable.messages import choose_language
from mmstable.optim.step_sources import monitor_of


class StepHook(StatefulHook):
    """A hook that is told of steps by the run's monitor, and can resume.

    It listens by ``after_step``, ``after_bad_step`` or ``after_event``; see
    :class:`~mmstable.events.run_monitor.RunMonitor`.
    """

    # Besides the monitor, ahead of all that log or obey.
    priority: str | int = 'HIGH'
    # Whether steps of mmengine's own wrappers are of interest, too.
    observes_stock = True
    monitor: RunMonitor

    def before_run(self, runner: Runner) -> None:
        """Choose the language of the run, and be told of its steps."""
        choose_language(runner.hooks)
        # Before a checkpoint is loaded, part of which is the monitor's.
        self.monitor = monitor_of(runner)

    def before_train(self, runner: Runner) -> None:
        """Listen to the steps of this run."""
        self.monitor = monitor_of(runner)
        self.monitor.bind(runner)

    # mmengine's own call another method each, in every iteration.
    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Do nothing."""

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Do nothing."""
