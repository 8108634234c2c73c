"""Where schedules are, and how they move to where the run is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, Runner

from mmstable import runner_view
from mmstable.io.schema import integer, optional, record, tuple_of


def has_schedules(checkpoint: Mapping[str, Any]) -> bool:
    """Whether schedules can be restored from a checkpoint."""
    # A schedule computes a rate from the one before: both or none.
    return {'optimizer', 'param_schedulers'} <= checkpoint.keys()


def follows_validation(schedulers: Iterable[Any]) -> bool:
    """Whether results of validations decide about the rates of a wrapper.

    What they have decided is not taken back: a rollback leaves these rates
    and all schedules of that wrapper, which change the same numbers, as they
    are.
    """
    return any(getattr(one, 'need_val_args', False) for one in schedulers)


def schedule_positions(runner: Runner) -> list[int]:
    """How many steps each schedule has made."""
    schedulers = runner_view.all_schedulers(runner)
    return [runner_view.schedule_position(one) for one in schedulers]


def catch_up(runner: Runner, before: list[int]) -> None:
    """See that schedules which were set back end with the run.

    Those by epoch move to the present epoch at once. Those by iteration catch
    up slowly, by :class:`SafeParamSchedulerHook`; with mmengine's own hook
    they end that much later.

    Args:
        runner (Runner): The runner.
        before (list[int]): Where they were.
    """
    backlog: dict[str, int] = {}
    positions = iter(before)
    for name, group in runner_view.schedulers(runner).items():
        for one in group:
            behind = next(positions) - runner_view.schedule_position(one)
            if not one.by_epoch:
                backlog[name] = max(behind, 0)
                continue
            for _ in range(behind):
                one.step()
    for hook in runner.hooks:
        if hasattr(hook, 'add_backlog'):
            for name, behind in backlog.items():
                hook.add_backlog(behind, name)


# Each is made up for by a call: more than a run could ever lose.
_STEPS = integer(0, 10**6)


class ScheduleBacklog:
    """The steps that a schedule is behind the run, made up for until its end.

    A schedule has as many steps as the run has iterations. It waits while an
    optimizer step is lost, so that the next one gets the same value. Its
    backlog is spread evenly over the iterations that are left. If the last
    iteration is good, nothing is left of it.
    """

    saved = staticmethod(
        record(
            owed=_STEPS,
            hold=_STEPS,
            plan=optional(tuple_of(_STEPS, integer(1, 2**53))),
            left=integer(0, 2**53),
        )
    )

    def __init__(self) -> None:
        self.steps = 0
        # Iterations that it still waits.
        self.hold = 0
        # The backlog, and the iterations left, when catching up began.
        self._plan: tuple[int, int] | None = None
        self._left = 0

    def add(self, steps: int) -> None:
        """Note that the schedule is behind by so many steps more."""
        self.steps += steps
        self._plan = None

    def advance(self, left: int, lost: int = 0) -> int:
        """How many steps of the schedule to take after an iteration.

        Args:
            left (int): Iterations that come after this one.
            lost (int): If an optimizer step was skipped in this iteration,
                how many iterations it stands for. Defaults to 0.
        """
        # A loop of another project may continue after its end.
        left = max(left, 0)
        if left != self._left - 1:
            # The run has got another length.
            self._plan = None
        self._left = left
        self.hold = max(self.hold, lost)
        # Without a loss it waits only if there is time to catch up.
        if lost or (self.hold and self.steps < left):
            self.hold -= 1
            self.add(1)
            return 0
        self.hold = 0
        return 1 + self._catch_up(left)

    def _catch_up(self, left: int) -> int:
        if self.steps == 0:
            return 0
        if self._plan is None:
            self._plan = (self.steps, left + 1)
        owed, length = self._plan
        # A straight line down to 0, rounded: one step is paid half-way.
        still_owed = (2 * owed * left + length) // (2 * length)
        paid, self.steps = self.steps - still_owed, still_owed
        return paid

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know; nothing if nothing is owed."""
        if self.steps == self.hold == 0:
            return {}
        return dict(
            owed=self.steps,
            hold=self.hold,
            plan=None if self._plan is None else list(self._plan),
            left=self._left,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.steps, self.hold = state['owed'], state['hold']
        self._plan, self._left = state['plan'], state['left']


_INITIAL = 'initial_'


class ConfiguredSchedule:
    """The schedule that the config asks for, and the optimizer's settings.

    Args:
        runner (Runner): A runner that has built its schedule, but has not
            loaded a checkpoint.
    """

    def __init__(self, runner: Runner) -> None:
        self._values = {
            name: [_start_values(group) for group in wrapper.param_groups]
            for name, wrapper in runner_view.wrappers(runner).items()
        }

    def differences(self, runner: Runner) -> list[str]:
        """What the config says otherwise than a checkpoint that was loaded.

        Each as 'lr 0.005 (0.01)', with the checkpoint's in brackets.
        """
        found: list[str] = []
        wrappers = runner_view.wrappers(runner)
        for name, wrapper in wrappers.items():
            prefix = f'{name}: ' if len(wrappers) > 1 else ''
            known = set()
            for group, values in zip(wrapper.param_groups, self._values[name]):
                restored = _start_values(group)
                for key, value in values.items():
                    other = restored.get(key, value)
                    if key.startswith(_INITIAL) or key in known:
                        continue
                    if _numbers(value) != _numbers(other):
                        known.add(key)
                        found.append(
                            f'{prefix}{key} {_show(value)} ({_show(other)})'
                        )
        return found

    def move_to(self, runner: Runner) -> None:
        """Replace the runner's schedule by this, at its iteration."""
        for name, wrapper in runner_view.wrappers(runner).items():
            for group, values in zip(wrapper.param_groups, self._values[name]):
                group.update(values)
        configured = runner.cfg.get('param_scheduler')
        if configured is None:
            return
        with warnings.catch_warnings():
            # Of steps that the optimizer did not take: others took them.
            warnings.simplefilter('ignore')
            runner.param_schedulers = runner.build_param_scheduler(
                copy.deepcopy(configured)
            )
            _repeat(runner)


def _start_values(group: dict[str, Any]) -> dict[str, Any]:
    """Its numbers, those that schedules change as they were at the start."""
    values = {
        key: value
        for key, value in group.items()
        # Others choose how torch computes, not what.
        if key == 'lr'
        or (items := _items(value))
        and set(map(type, items)) <= {int, float}
    }
    for key, value in group.items():
        if key.startswith(_INITIAL):
            values[key] = values[key[len(_INITIAL) :]] = value
    return values


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def _numbers(value: Any) -> list[float]:
    # Also a learning rate that is a tensor.
    return [float(one) for one in _items(value)]


def _show(value: Any) -> str:
    return ', '.join(f'{one:g}' for one in _numbers(value))


def _repeat(runner: Runner) -> None:
    """Take all steps of the past: each builds on the one before it."""
    schedulers = runner_view.all_schedulers(runner)
    by_epoch = [one for one in schedulers if one.by_epoch]
    by_iter = [one for one in schedulers if not one.by_epoch]
    length = 0
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        length = len(runner.train_dataloader)
    for done in range(1, runner.iter + 1):
        for one in by_iter:
            one.step()
        # The last epoch may have all its iterations and not be over.
        if length and done % length == 0 and done // length <= runner.epoch:
            for one in by_epoch:
                one.step()
