"""Follow the schedule of the config instead of the checkpoint's."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, Runner

from mmstable import run_view

_INITIAL = 'initial_'


class ConfiguredSchedule:
    """The schedule that the config asks for.

    Args:
        runner (Runner): A runner that has built its schedule, but has not
            loaded a checkpoint.
    """

    def __init__(self, runner: Runner) -> None:
        self._values = {
            name: [_start_values(group) for group in wrapper.param_groups]
            for name, wrapper in run_view.wrappers(runner).items()
        }

    def move_to(self, runner: Runner) -> None:
        """Replace the runner's schedule by this, at its iteration."""
        for name, wrapper in run_view.wrappers(runner).items():
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
    values = {'lr': group['lr']}
    for key, value in group.items():
        if key.startswith(_INITIAL):
            values[key] = values[key[len(_INITIAL) :]] = value
    return values


def _repeat(runner: Runner) -> None:
    """Take all steps of the past: each builds on the one before it."""
    schedulers = run_view.all_schedulers(runner)
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
