"""Schedules that were set back have to catch up."""

from __future__ import annotations

from typing import Any

from mmengine.runner import Runner

from mmstable.optim.new_steps import name_wrappers


def schedulers_of(runner: Runner) -> list[Any]:
    """All parameter schedulers of a run."""
    return [one for group in _by_wrapper(runner).values() for one in group]


def schedule_positions(runner: Runner) -> dict[str, int]:
    """How many steps the schedules by iteration have made, by wrapper."""
    return {
        name: one.last_step
        for name, group in _by_wrapper(runner).items()
        for one in group
        if not one.by_epoch
    }


def catch_up(runner: Runner, before: dict[str, int]) -> None:
    """Tell the hook that moves the schedules how far they were set back.

    mmengine's own cannot catch up: with it schedules end that much later.

    Args:
        runner (Runner): The runner.
        before (dict): Where they were.
    """
    now = schedule_positions(runner)
    for hook in runner.hooks:
        if hasattr(hook, 'owe'):
            for name, position in before.items():
                hook.owe(max(position - now[name], 0), name)


def _by_wrapper(runner: Runner) -> dict[str, list[Any]]:
    schedulers = runner.param_schedulers or {}
    if isinstance(schedulers, dict):
        return schedulers
    (name, *_) = name_wrappers(runner.optim_wrapper)
    return {name: schedulers}
