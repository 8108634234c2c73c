"""Return to an earlier state, with a lower learning rate for a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.loading import BadCheckpoint, load_checkpoint
from mmstable.io.schema import count, record, within
from mmstable.loops.question import CannotAsk
from mmstable.memory.host import host_room
from mmstable.messages import _
from mmstable.settings import is_number
from mmstable.state.run_state import RunState, Weights
from mmstable.state.schedules import catch_up, schedule_positions
from mmstable.state.snapshot import Snapshot, Snapshots

if TYPE_CHECKING:
    from mmstable.checkpoint.catalog import GoodCheckpoint

# How many intervals the older snapshot may be behind.
_SPAN = 4
# Of the free memory of a host, for snapshots of all of its ranks.
_SHARE = 0.25


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

    There are so many rollbacks, until a long stretch of good steps renews
    them.

    Args:
        interval (int): Iterations between two snapshots.
        max_memory (float): GiB that snapshots may take.
        most (int): How many rollbacks there are.
        renewed_after (int): Good steps after which all are there again.
    """

    saved = staticmethod(record(spent=count, good_steps=count))

    def __init__(
        self, interval: int, max_memory: float, most: int, renewed_after: int
    ) -> None:
        self.interval = interval
        self.max_memory = max_memory
        self.most = most
        self.spent = 0
        self._renewed_after = renewed_after
        self._good_steps = 0
        self._last = 0
        # The newest snapshot, until an accelerator has copied all of it.
        self._arriving: Snapshot | None = None
        # None: a state is too large to be kept in memory.
        self._snapshots: Snapshots | None = Snapshots(_SPAN * interval)

    @property
    def uses_memory(self) -> bool:
        """Whether snapshots are taken."""
        return self._snapshots is not None

    def prepare(self, runner: Runner) -> int:
        """Decide how many snapshots to keep; return the bytes of one.

        Those of all ranks of a host take at most ``max_memory``, and a
        quarter of what the host has free.
        """
        size = RunState(runner).size()
        ranks = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
        free = min(self.max_memory * 2**30, host_room().left * _SHARE)
        count = int(min(Snapshots.COUNT, free / ranks / max(size, 1)))
        self._snapshots = None
        if count:
            self._snapshots = Snapshots(_SPAN * self.interval, count)
        return size

    @property
    def kept(self) -> int:
        """How many snapshots are kept."""
        return 0 if self._snapshots is None else self._snapshots.count

    def newest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that is complete, if there is one."""
        return self._snapshots.newest() if self._snapshots else None

    def is_due(self, iteration: int) -> bool:
        """Whether it is time for a snapshot."""
        if self._arriving is not None and self._arriving.settle():
            self._arriving = None
        # A state that was just restored has to prove itself.
        return self.uses_memory and iteration - self._last >= self.interval

    def take_snapshot(self, runner: Runner, iteration: int) -> Snapshot | None:
        """Take a snapshot, if these are on."""
        if self._snapshots is None:
            return None
        self._last = iteration
        memory = self._snapshots.outdated(iteration)
        snapshot = RunState(runner).capture(memory)
        self._snapshots.add(iteration, snapshot)
        if not snapshot.settle():
            self._arriving = snapshot
        return snapshot

    def run(
        self, runner: Runner, iteration: int, before: int
    ) -> RolledBack | None:
        """Roll back; None if nothing can be restored, or none is left.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
            before (int): The iteration that was the first bad one.
        """
        if self.spent >= self.most:
            return None
        self._last = iteration
        positions = schedule_positions(runner)
        done = self._restore(runner, before)
        catch_up(runner, positions)
        if done is not None:
            self.spent += 1
            self._good_steps = 0
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
        snapshots = self._snapshots.candidates() if self._snapshots else []
        for number, snapshot in enumerate(snapshots):
            if is_better(
                partial(Weights().restore, runner, snapshot.parts[0])
            ):
                if number and self._snapshots is not None:
                    # A state that was bad already when it was kept.
                    self._snapshots.discard_newest()
                return True
        found = None if snapshots else last_good_checkpoint(runner, before)
        if found is not None:
            content = load_checkpoint(found.path, sha256=found.sha256)
            return is_better(partial(Weights().load, runner, content))
        if not snapshots:
            raise CannotAsk(_('there is no earlier state'))
        return False

    def note_good_step(self) -> None:
        """Count a step that was applied."""
        self._good_steps += 1
        if self._good_steps >= self._renewed_after:
            self.spent = self._good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'spent': self.spent, 'good_steps': self._good_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.spent, self._good_steps = state['spent'], state['good_steps']

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


class LearningRateRamp:
    """A warm-up and a cut, both of which rise in a straight line to 1.

    Args:
        length (int): Iterations from a cut back to 1; 0 to stay there.
        start (float): The factor at iteration 0. Defaults to 1.0.
        start_length (int): Iterations from there to 1. Defaults to 0.
        least (float): Cuts end here. Defaults to 1e-3.
    """

    saved = staticmethod(record(cut=within(0, 1), since=count))

    def __init__(
        self,
        length: int,
        start: float = 1.0,
        start_length: int = 0,
        least: float = 1e-3,
    ) -> None:
        self._start, self._start_length = start, start_length
        self.length, self._least = length, least
        self._cut, self._since = 1.0, 0

    def factor(self, iteration: int) -> float:
        """What to multiply the learning rate of an iteration by."""
        warmup = _rise(self._start, iteration, self._start_length)
        return warmup * self._cut_at(iteration)

    def cut(self, iteration: int, by: float) -> float:
        """Lower the factor, and let it rise again from there.

        Args:
            iteration (int): From which one on.
            by (float): What to multiply the factor by.

        Returns:
            float: The factor now.
        """
        self._cut = max(self._cut_at(iteration) * by, self._least)
        self._since = iteration
        return self.factor(iteration)

    def _cut_at(self, iteration: int) -> float:
        return _rise(self._cut, iteration - self._since, self.length)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'cut': self._cut, 'since': self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._cut, self._since = state['cut'], state['since']


def _rise(start: float, done: int, length: int) -> float:
    """From a start to 1 in so many iterations; nowhere if that is 0."""
    if start == 1.0 or length == 0:
        return start
    return start + (1.0 - start) * min(max(done / length, 0.0), 1.0)


_KEY = 'train/stable/lr_factor'


class LearningRateFactor:
    """Multiplies all learning rates while an iteration runs.

    Schedules compute a rate from the one before, so they must not see the
    factor: it is put on before an iteration, and taken off again before the
    schedules step and checkpoints are saved.

    Args:
        ramp (LearningRateRamp): The factor of each iteration.
        cut_by (float): What an incident multiplies that factor by.
    """

    def __init__(self, ramp: LearningRateRamp, cut_by: float) -> None:
        self.ramp = ramp
        self._cut_by = cut_by
        self._scheduled: list[tuple[dict[str, Any], Any]] = []
        # The newest factor in the log; None if nobody knows.
        self._shown: float | None = None

    def put_on(self, runner: Runner, iteration: int) -> None:
        """Multiply; mmengine has logged the rate of the schedule by now.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        factor = self.ramp.factor(iteration)
        if factor != self._shown:
            self._show(runner, factor)
        if factor == 1.0 or self._scheduled:
            return
        for optimizer in runner_view.optimizers(runner).values():
            for group in optimizer.param_groups:
                self._scheduled.append((group, group['lr']))
                group['lr'] = group['lr'] * factor

    def _show(self, runner: Runner, factor: float) -> None:
        hub, self._shown = runner.message_hub, factor
        # A run that always had its full rate has nothing to show; a resumed
        # one may have shown less before.
        if factor != 1.0 or _KEY in hub.log_scalars:
            hub.update_scalar(_KEY, factor)

    def cut(self, iteration: int) -> None:
        """Lower the factor from an iteration on."""
        self.ramp.cut(iteration, self._cut_by)

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
        for name, optimizer in runner_view.optimizers(runner).items():
            is_one_of_many = runner_view.has_many_wrappers(runner)
            state = saved.get(name, {}) if is_one_of_many else saved
            groups = state.get('param_groups', ())
            for group, copied in zip(optimizer.param_groups, groups):
                # An optimizer of somebody else may give its own groups away.
                if copied is not group and id(group) in rates:
                    copied['lr'] = rates[id(group)]


class ConfiguredRate(NamedTuple):
    """A learning rate, and where the config has it.

    Args:
        path (str): E.g. 'optim_wrapper.optimizer.lr'.
        lr (float): What a schedule starts from.
    """

    path: str
    lr: float

    @property
    def half(self) -> str:
        """Half of it, as it is written in a config."""
        return f'{self.lr / 2:g}'

    @property
    def halving_options(self) -> str:
        """What halves it if it is added to the command that resumes."""
        return f'--override-lr-schedule --cfg-options {self.path}={self.half}'


def configured_lr(runner: Runner) -> ConfiguredRate | None:
    """The learning rate in the config of a run; of several, the first.

    The one that an optimizer has at some moment is of no use to somebody who
    wants to change it: that is what the schedule has made of it.
    """
    wrapper = runner.cfg.get('optim_wrapper') or {}
    candidates = {'optim_wrapper': wrapper}
    candidates.update(
        (f'optim_wrapper.{name}', value) for name, value in wrapper.items()
    )
    for path, one in candidates.items():
        optimizer = one.get('optimizer') if isinstance(one, dict) else None
        lr = optimizer.get('lr') if isinstance(optimizer, dict) else None
        if lr is not None and is_number(lr):
            return ConfiguredRate(f'{path}.optimizer.lr', float(lr))
    return None
