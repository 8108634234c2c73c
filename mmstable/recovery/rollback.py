"""Where a run can go back to, and how it gets there."""

from __future__ import annotations

from typing import NamedTuple

from mmengine.runner import Runner

from mmstable.recovery.from_checkpoint import (
    last_good_checkpoint,
    restore_checkpoint,
)
from mmstable.run_state.schedules import catch_up, schedule_positions
from mmstable.run_state.snapshots import Snapshots


class GoneBack(NamedTuple):
    """A rollback that has happened.

    Args:
        iteration (int): Whose state the run has now.
        source (str): 'memory', or the path of a checkpoint.
    """

    iteration: int
    source: str


class Rollback:
    """Snapshots in memory, or the run's own checkpoints.

    Args:
        interval (int): Iterations between two snapshots.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._last = 0
        # None: a state is too large to be kept in memory.
        self.snapshots: Snapshots | None = Snapshots()

    def is_due(self, iteration: int) -> bool:
        """Whether it is time for a snapshot."""
        # A state that the run has just come back to has to prove itself.
        waited = iteration - self._last
        return self.snapshots is not None and waited >= self._interval

    def take(self, runner: Runner, iteration: int) -> None:
        """Take a snapshot, if these are on."""
        if self.snapshots is not None:
            self._last = iteration
            self.snapshots.take(runner, iteration)

    def go(
        self, runner: Runner, iteration: int, before: int
    ) -> GoneBack | None:
        """Go back; None if there is nothing to go back to.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
            before (int): The iteration that was the first bad one.
        """
        self._last = iteration
        positions = schedule_positions(runner)
        gone = self._restore(runner, before)
        catch_up(runner, positions)
        for hook in runner.hooks:
            if hasattr(hook, 'forget_window'):
                # What it keeps to undo an open window is outdated.
                hook.forget_window()
        return gone

    def _restore(self, runner: Runner, before: int) -> GoneBack | None:
        chosen = None if self.snapshots is None else self.snapshots.choose()
        if chosen is not None:
            chosen.restore(runner)
            return GoneBack(chosen.iteration, 'memory')
        checkpoint = last_good_checkpoint(runner, before)
        if checkpoint is None:
            return None
        restore_checkpoint(runner, checkpoint.path)
        return GoneBack(checkpoint.iteration, str(checkpoint.path))
