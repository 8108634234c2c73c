"""Schedules of learning rate and momentum, and how they catch up."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.run_state.host_copy import HostMemory
from mmstable.run_state.part import Part


class Schedules(Part):
    """The parameter schedulers of all wrappers."""

    def capture(
        self, runner: Runner, memory: HostMemory
    ) -> list[dict[str, Any]]:
        """The state of each."""
        schedulers = run_view.all_schedulers(runner)
        return [copy.deepcopy(one.state_dict()) for one in schedulers]

    def restore(self, runner: Runner, state: list[dict[str, Any]]) -> None:
        """Set them back, apart from those that follow the validation."""
        states = iter(state)
        for group in run_view.schedulers(runner).values():
            is_kept = follows_validation(group)
            for one, saved in zip(group, states):
                if not is_kept:
                    one.load_state_dict(copy.deepcopy(saved))

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Set them back, if the optimizers were."""
        if not has_schedules(checkpoint):
            return
        saved = checkpoint['param_schedulers']
        if isinstance(saved, Mapping):
            saved = [state for group in saved.values() for state in group]
        self.restore(runner, saved)


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
    schedulers = run_view.all_schedulers(runner)
    return [run_view.schedule_position(one) for one in schedulers]


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
    for name, group in run_view.schedulers(runner).items():
        for one in group:
            behind = next(positions) - run_view.schedule_position(one)
            if not one.by_epoch:
                backlog[name] = max(behind, 0)
                continue
            for _ in range(behind):
                one.step()
    for hook in runner.hooks:
        if hasattr(hook, 'add_backlog'):
            for name, behind in backlog.items():
                hook.add_backlog(behind, name)
