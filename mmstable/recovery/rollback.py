"""What can a run roll back to, and how does it get there?"""

from __future__ import annotations

from typing import Any, NamedTuple

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.finder import (
    GoodCheckpoint,
    find_checkpoint,
    verify_checkpoint,
)
from mmstable.checkpoint.fit import fits_exactly
from mmstable.checkpoint.loading import BadCheckpoint, load_checkpoint
from mmstable.checkpoint.storage import checkpoint_folders
from mmstable.run_state.run_state import RunState
from mmstable.run_state.schedules import catch_up, schedule_positions
from mmstable.run_state.snapshot import Snapshots

# How many intervals the older snapshot may be behind.
_SPAN = 4


class RolledBack(NamedTuple):
    """A rollback that has happened.

    Args:
        iteration (int): Whose state the run has now.
        source (str): 'memory', or the path of a checkpoint.
    """

    iteration: int
    source: str


class Rollback:
    """Restores the newest snapshot in memory, or the newest good checkpoint.

    Args:
        interval (int): Iterations between two snapshots.
        max_memory (float): GiB that snapshots may take.
    """

    def __init__(self, interval: int, max_memory: float) -> None:
        self.interval = interval
        self.max_memory = max_memory
        self._last = 0
        # None: a state is too large to be kept in memory.
        self._snapshots: Snapshots | None = Snapshots(_SPAN * interval)

    @property
    def uses_memory(self) -> bool:
        """Whether snapshots are taken."""
        return self._snapshots is not None

    def prepare(self, runner: Runner) -> int:
        """Decide whether to take snapshots; the bytes that they take."""
        size = Snapshots.COUNT * RunState(runner).size()
        if size > self.max_memory * 2**30:
            self._snapshots = None
        return size

    def is_due(self, iteration: int) -> bool:
        """Whether it is time for a snapshot."""
        # A state that was just restored has to prove itself.
        return self.uses_memory and iteration - self._last >= self.interval

    def take_snapshot(self, runner: Runner, iteration: int) -> None:
        """Take a snapshot, if these are on."""
        if self._snapshots is not None:
            self._last = iteration
            memory = self._snapshots.outdated(iteration)
            snapshot = RunState(runner).capture(memory)
            self._snapshots.add(iteration, snapshot)

    def run(
        self, runner: Runner, iteration: int, before: int
    ) -> RolledBack | None:
        """Roll back; None if there is nothing to restore.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
            before (int): The iteration that was the first bad one.
        """
        self._last = iteration
        positions = schedule_positions(runner)
        done = self._restore(runner, before)
        catch_up(runner, positions)
        return done

    def _restore(self, runner: Runner, before: int) -> RolledBack | None:
        chosen = self._snapshots.choose() if self._snapshots else None
        if chosen is not None:
            iteration, snapshot = chosen
            RunState(runner).restore(snapshot)
            return RolledBack(iteration, 'memory')
        checkpoint = last_good_checkpoint(runner, before)
        if checkpoint is None:
            return None
        RunState(runner).restore(
            load_checkpoint(checkpoint.path, sha256=checkpoint.sha256)
        )
        return RolledBack(checkpoint.iteration, str(checkpoint.path))


def last_good_checkpoint(
    runner: Runner, before: int | None = None
) -> GoodCheckpoint | None:
    """The newest checkpoint of a run that can be relied on.

    If its own folders have none, this is the one that it was resumed from,
    wherever that is. A collective call: the main process looks, and all learn
    the answer.

    Args:
        runner (Runner): The runner.
        before (int, optional): Only those with fewer iterations done.
            Defaults to None.
    """
    found: list[Any] = [None]
    if is_main_process():
        folder, *others = checkpoint_folders(runner)
        own = find_checkpoint(folder, before, others).found
        found = [own or _resumed_checkpoint(runner, before)]
    broadcast_object_list(found)
    return found[0]


def _resumed_checkpoint(
    runner: Runner, before: int | None
) -> GoodCheckpoint | None:
    path = run_view.resumed_from(runner)
    if path is None:
        return None
    try:
        found = verify_checkpoint(path)
        content = load_checkpoint(path, sha256=found.sha256)
    except (BadCheckpoint, OSError):
        return None
    if before is not None and found.iteration >= before:
        return None
    # One that was resumed in parts only, by choice, cannot be restored.
    return found if fits_exactly(runner, content) else None
