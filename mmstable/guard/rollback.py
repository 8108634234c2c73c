"""Return to an earlier state, with a lower learning rate for a while."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.loading import BadCheckpoint, load_checkpoint
from mmstable.dist.collectives import most_of_ranks
from mmstable.events.saved import Saved
from mmstable.io.schema import count, within
from mmstable.loops.question import CannotAsk
from mmstable.memory.host import host_room
from mmstable.messages import _, readable
from mmstable.state.run_state import RunState
from mmstable.state.schedules import catch_up, schedule_positions
from mmstable.state.snapshot import Snapshot, Snapshots

if TYPE_CHECKING:
    from mmstable.checkpoint.catalog import GoodCheckpoint

# How many intervals the older snapshot may be behind.
_SPAN = 4
# Of the free memory of a host, for snapshots of all of its ranks.
_SHARE = 0.25
# Of the time of a run, for snapshots; and the intervals that may follow.
_COST = 0.005
_FIRST_INTERVAL, _SHORTEST, _LONGEST = 50, 10, 1000


class Rollback(Saved):
    """Restores the newest snapshot in memory, or the newest good checkpoint.

    The number of rollbacks is limited; a long stretch of good steps renews
    it.

    Args:
        interval (int, optional): Iterations between two snapshots; None for
            as few as keep their cost below 0.5 % of the time.
        max_memory (float): GiB that snapshots may take.
        most (int): How many rollbacks there are.
        renewed_after (int): Good steps after which all are there again.
    """

    state = dict(spent=count, good_steps=count)

    def __init__(
        self,
        interval: int | None,
        max_memory: float,
        most: int,
        renewed_after: int,
    ) -> None:
        self._adapts = interval is None
        self.interval, self.most = interval or _FIRST_INTERVAL, most
        self.spent = self.good_steps = 0
        self._max_memory, self._renewed_after = max_memory, renewed_after
        self._last = 0
        # The iteration from which there is something to do here.
        self.wakes_at = math.inf
        # Seconds of the training that the newest snapshot took.
        self._cost_s = 0.0
        # The newest snapshot, until an accelerator has copied all of it.
        self._arriving: Snapshot | None = None
        # None: a state is too large to be kept in memory.
        self.snapshots: Snapshots | None = None

    def prepare(self, runner: Runner) -> str:
        """Decide how many snapshots to keep; a line about it.

        Those of all ranks of a host take at most ``max_memory``, and a
        quarter of what the host has free.
        """
        size = RunState(runner).size()
        ranks = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
        free = min(self._max_memory * 2**30, host_room().left * _SHARE)
        kept = int(min(Snapshots.COUNT, free / ranks / max(size, 1)))
        self.snapshots, self.wakes_at = None, math.inf
        if kept:
            self.wakes_at = 0
            self.snapshots = Snapshots(_SPAN * self.interval, kept)
            return _(
                'a snapshot every {interval} iterations; keeping {count} '
                '({size} of RAM)',
                interval=self.interval,
                count=kept,
                size=readable(kept * size),
            )
        return _(
            'a snapshot would take {gibibytes:.1f} GiB of host memory, '
            'more than max_snapshot_memory={limit:g}, or than a quarter '
            'of the free memory, allows: rollbacks use the newest good '
            'checkpoint instead',
            gibibytes=size / 2**30,
            limit=self._max_memory,
        )

    def is_due(self, iteration: int) -> bool:
        """Whether it is time for a snapshot."""
        if self._arriving is not None and self._arriving.settle():
            self._cost_s += self._arriving.copy_seconds()
            self._arriving = None
        if self._arriving is None:
            # A state that was just restored has to prove itself.
            self.wakes_at = self._last + self.interval
        is_time = iteration - self._last >= self.interval
        return is_time and self.snapshots is not None

    def take_snapshot(self, runner: Runner, iteration: int) -> Snapshot | None:
        """Take a snapshot, if these are on."""
        if self.snapshots is None:
            return None
        if self._adapts and self._cost_s:
            self._adapt(runner)
        self._last = iteration
        self.wakes_at = 0
        memory = self.snapshots.outdated(iteration)
        begin = time.perf_counter()
        snapshot = RunState(runner).capture(memory)
        self._cost_s = time.perf_counter() - begin
        self.snapshots.add(iteration, snapshot)
        if not snapshot.settle():
            self._arriving = snapshot
        return snapshot

    def _adapt(self, runner: Runner) -> None:
        """Choose the interval by the cost of the newest snapshot.

        A collective call: all ranks take snapshots of the same iterations.
        """
        iteration_s = max(runner_view.iteration_time(runner), 1e-6)
        wanted = self._cost_s / iteration_s / _COST
        wanted = most_of_ranks(int(min(max(wanted, _SHORTEST), _LONGEST)))
        # It is measured, so it is never the same twice.
        if self.snapshots is None or 2 / 3 < wanted / self.interval < 3 / 2:
            return
        self.interval = wanted
        self.snapshots.span = _SPAN * wanted
        runner.logger.info(
            _(
                'DivergenceGuardHook: a snapshot takes {cost:.1f} ms, an '
                'iteration {iteration:.1f} ms: one every {interval} '
                'iterations from now on',
                cost=1000 * self._cost_s,
                iteration=1000 * iteration_s,
                interval=wanted,
            )
        )

    def run(
        self, runner: Runner, iteration: int, before: int
    ) -> tuple[int, str] | None:
        """Roll back.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
            before (int): The iteration that was the first bad one.

        Returns:
            tuple: The iteration whose state the run has now, and 'memory' or
            the path of a checkpoint. None if nothing can be restored, or no
            rollback is left.
        """
        if self.spent >= self.most:
            return None
        self._last = iteration
        positions = schedule_positions(runner)
        chosen = self.snapshots.choose() if self.snapshots else None
        if chosen is not None:
            RunState(runner).restore(chosen[1])
            done = chosen[0], 'memory'
        else:
            found = last_good_checkpoint(runner, before)
            if found is None:
                return None
            RunState(runner).load(_read(found))
            done = found.iteration, str(found.path)
        catch_up(runner, positions)
        self.spent += 1
        self.good_steps = 0
        return done

    def find_better(
        self,
        runner: Runner,
        before: int,
        is_better: Callable[[Callable[[], None]], bool],
    ) -> bool:
        """Whether weights that a rollback can restore are better.

        The newest ones that are, are what a rollback then restores. A
        collective call.

        Args:
            runner (Runner): The runner.
            before (int): The iteration that was the first bad one.
            is_better (Callable): Whether the weights are that a function
                brings back.

        Raises:
            CannotAsk: If there are none.
        """
        snapshots = self.snapshots.candidates() if self.snapshots else []
        for place, snapshot in enumerate(snapshots):
            restore = partial(RunState(runner).load_weights, snapshot)
            if is_better(restore):
                if place and self.snapshots is not None:
                    # A state that was bad already when it was kept.
                    self.snapshots.discard_newest()
                return True
        if snapshots:
            return False
        found = last_good_checkpoint(runner, before)
        if found is None:
            raise CannotAsk(_('there is no earlier state'))
        load = RunState(runner).load_weights
        return is_better(partial(load, _read(found)))

    def note_good_step(self) -> None:
        """Count a step that was applied."""
        self.good_steps += 1
        if self.good_steps >= self._renewed_after:
            self.spent = self.good_steps = 0


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
    from mmstable.checkpoint.catalog import newest_own_checkpoint

    found: list[Any] = [None]
    if is_main_process():
        own = newest_own_checkpoint(runner, before)
        found = [own or _resumed_checkpoint(runner, before)]
    broadcast_object_list(found)
    return found[0]


def _resumed_checkpoint(
    runner: Runner, before: int | None
) -> GoodCheckpoint | None:
    from mmstable.checkpoint.catalog import verify_checkpoint
    from mmstable.checkpoint.resume import fits_exactly

    path = runner_view.resumed_from(runner)
    try:
        found = None if path is None else verify_checkpoint(path)
        # One that was resumed in parts only, by choice, cannot be restored.
        if found is not None and (
            (before is not None and found.iteration >= before)
            or not fits_exactly(runner, _read(found))
        ):
            return None
    except (BadCheckpoint, OSError):
        return None
    return found


def _read(found: GoodCheckpoint) -> Any:
    return load_checkpoint(found.path, sha256=found.sha256)


_KEY = 'train/stable/lr_factor'
# Cuts of the learning rate end here.
_LEAST_FACTOR = 1e-3


class LearningRateFactor(Saved):
    """Multiplies all learning rates while an iteration runs.

    A warm-up and a cut, both of which rise in a straight line to 1. Schedules
    compute a rate from the one before, so they must not see the factor: it is
    put on before an iteration, and taken off again before the schedules step
    and checkpoints are saved.

    Args:
        recovery (int): Iterations from a cut back to 1; 0 to stay there.
        cut_by (float): What an incident multiplies the factor by. Defaults
            to 0.5.
        start (float): The factor at iteration 0. Defaults to 1.0.
        start_length (int): Iterations from there to 1. Defaults to 0.
    """

    state = dict(cut_to=within(0, 1), since=count)

    def __init__(
        self,
        recovery: int,
        cut_by: float = 0.5,
        start: float = 1.0,
        start_length: int = 0,
    ) -> None:
        self.recovery, self._cut_by = recovery, cut_by
        self._start, self._start_length = start, start_length
        self.cut_to, self.since = 1.0, 0
        # Whether there is nothing to put on, and that is in the log.
        self.is_idle = False
        self._scheduled: list[tuple[dict[str, Any], Any]] = []
        # The newest factor in the log; None if it is unknown.
        self._shown: float | None = None

    def at(self, iteration: int) -> float:
        """What to multiply the learning rate of an iteration by."""
        if self.cut_to == self._start == 1.0:
            return 1.0
        warmup = _rise(self._start, iteration, self._start_length)
        since = iteration - self.since
        return warmup * _rise(self.cut_to, since, self.recovery)

    def cut(self, iteration: int) -> None:
        """Lower the factor from an iteration on, and let it rise again."""
        now = _rise(self.cut_to, iteration - self.since, self.recovery)
        self.cut_to = max(now * self._cut_by, _LEAST_FACTOR)
        self.is_idle = False
        self.since = iteration

    def put_on(self, runner: Runner, iteration: int) -> None:
        """Multiply; mmengine has logged the rate of the schedule by now.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        factor = self.at(iteration)
        self.is_idle = self.cut_to == self._start == 1.0
        if factor != self._shown:
            hub, self._shown = runner.message_hub, factor
            # A run that always had its full rate has nothing to show; a
            # resumed one may have shown less before.
            if factor != 1.0 or _KEY in hub.log_scalars:
                hub.update_scalar(_KEY, factor)
        if factor == 1.0 or self._scheduled:
            return
        for optimizer in runner_view.optimizers(runner).values():
            for group in optimizer.param_groups:
                self._scheduled.append((group, group['lr']))
                group['lr'] = group['lr'] * factor

    def take_off(self) -> None:
        """Give all groups the rates of the schedule."""
        for group, rate in self._scheduled:
            group['lr'] = rate
        self._scheduled.clear()

    def take_off_saved(
        self, runner: Runner, checkpoint: Mapping[str, Any]
    ) -> None:
        """Give a checkpoint the rates of the schedule.

        Any hook may save one while the factor is on. The rates of the run
        stay as they are: the iteration is not over.
        """
        saved = checkpoint.get('optimizer')
        if not self._scheduled or not isinstance(saved, Mapping):
            return
        rates = {id(group): rate for group, rate in self._scheduled}
        is_one_of_many = runner_view.has_many_wrappers(runner)
        for name, optimizer in runner_view.optimizers(runner).items():
            state = saved.get(name, {}) if is_one_of_many else saved
            groups = state.get('param_groups', ())
            for group, copied in zip(optimizer.param_groups, groups):
                # A custom optimizer may return its own groups.
                if copied is not group and id(group) in rates:
                    copied['lr'] = rates[id(group)]


def _rise(start: float, done: int, length: int) -> float:
    """From a start to 1 in so many iterations; nowhere if that is 0."""
    if start == 1.0 or length == 0:
        return start
    return start + (1.0 - start) * min(max(done / length, 0.0), 1.0)
