"""Follow the config's learning rates, not those of the checkpoint."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, Runner

from mmstable import run_view

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
            for name, wrapper in run_view.wrappers(runner).items()
        }

    def differences(self, runner: Runner) -> list[str]:
        """What the config says otherwise than a checkpoint that was loaded.

        Each as 'lr 0.005 (0.01)', with the checkpoint's in brackets.
        """
        found: list[str] = []
        wrappers = run_view.wrappers(runner)
        for name, wrapper in wrappers.items():
            prefix = f'{name}: ' if len(wrappers) > 1 else ''
            known = set()
            for group, values in zip(wrapper.param_groups, self._values[name]):
                restored = _start_values(group)
                for key, value in values.items():
                    other = restored.get(key, value)
                    if key.startswith(_INITIAL) or key in known:
                        continue
                    if not _are_equal(value, other):
                        known.add(key)
                        found.append(
                            f'{prefix}{key} {_show(value)} ({_show(other)})'
                        )
        return found

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
    """Its numbers, those that schedules change as they were at the start."""
    values = {
        key: value
        for key, value in group.items()
        if key == 'lr' or _is_numeric(value)
    }
    for key, value in group.items():
        if key.startswith(_INITIAL):
            values[key] = values[key[len(_INITIAL) :]] = value
    return values


def _is_numeric(value: Any) -> bool:
    # Others choose how torch computes, not what.
    items = value if isinstance(value, (tuple, list)) else [value]
    return bool(items) and all(
        isinstance(one, (int, float)) and not isinstance(one, bool)
        for one in items
    )


def _are_equal(one: Any, other: Any) -> bool:
    return _numbers(one) == _numbers(other)


def _show(value: Any) -> str:
    return ', '.join(f'{one:g}' for one in _numbers(value))


def _numbers(value: Any) -> list[float]:
    # Also a learning rate that is a tensor.
    items = value if isinstance(value, (tuple, list)) else [value]
    return [float(one) for one in items]


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
