"""The base classes of mmstable's hooks."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable.events.monitor import RunMonitor, StatefulHook
from mmstable.messages import choose_language
from mmstable.optim.observer import monitor_of


class QuietHook(Hook):
    """A hook that is not called in iterations in which it has no work.

    mmengine's ``call_hook`` calls each hook that has the stage as an
    attribute, and an unset slot is none. A subclass defines a stage that it
    always needs, without calling ``super()``; it sets one that it needs for
    a while, as ``self.after_train_iter = self._read``, and deletes it.
    """

    __slots__ = ('before_train_iter', 'after_train_iter')


class StepHook(QuietHook, StatefulHook):
    """A hook that the run's monitor calls for steps, and that can resume.

    It listens by ``after_step``, ``after_bad_step`` or ``after_event``; see
    :class:`~mmstable.events.monitor.RunMonitor`.
    """

    # Besides the monitor, ahead of all that log or obey.
    priority: str | int = 'HIGH'
    # Whether steps of mmengine's own wrappers are of interest, too.
    observes_stock = True
    monitor: RunMonitor

    def before_run(self, runner: Runner) -> None:
        """Choose the language of the run, and find its monitor."""
        choose_language(runner.hooks)
        # Before a checkpoint is loaded, part of which is the monitor's.
        self.monitor = monitor_of(runner)

    def before_train(self, runner: Runner) -> None:
        """Listen to the steps of this run."""
        self.monitor = monitor_of(runner)
        self.monitor.bind(runner)

    def after_train(self, runner: Runner) -> None:
        """Release what the hook holds."""
        self.close(runner)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Release what the hook holds; mmstable's loops call it."""
        self.close(runner)

    def close(self, runner: Runner) -> None:
        """Release threads, sockets and instruments; may be called twice."""
