"""Schedules that were set back have to catch up."""

from __future__ import annotations

from typing import Any

from mmengine.runner import Runner

from mmstable.optim.new_steps import wrappers_of


def schedulers_of(runner: Runner) -> list[Any]:
    """All parameter schedulers of a run."""
    return [one for group in _by_wrapper(runner).values() for one in group]


def schedule_positions(runner: Runner) -> list[int]:
    """How many steps each schedule has made."""
    return [one._global_step for one in schedulers_of(runner)]


def catch_up(runner: Runner, before: list[int]) -> None:
    """See that schedules which were set back end with the run.

    Those by epoch go on with the epoch at once. Those by iteration catch up
    slowly, by the hook that moves them; mmengine's own cannot do that, with
    it they end that much later.

    Args:
        runner (Runner): The runner.
        before (list[int]): Where they were.
    """
    owed: dict[str, int] = {}
    positions = iter(before)
    for name, group in _by_wrapper(runner).items():
        for one in group:
            behind = max(next(positions) - one._global_step, 0)
            if not one.by_epoch:
                owed[name] = behind
                continue
            for _ in range(behind):
                one.step()
    for hook in runner.hooks:
        if hasattr(hook, 'owe'):
            for name, behind in owed.items():
                hook.owe(behind, name)


def _by_wrapper(runner: Runner) -> dict[str, list[Any]]:
    schedulers = runner.param_schedulers or {}
    if isinstance(schedulers, dict):
        return schedulers
    (name, *_) = wrappers_of(runner.optim_wrapper)
    return {name: schedulers}
