"""Go back to the newest good checkpoint of the run, while it runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner

from mmstable.checkpoint.finder import GoodCheckpoint, find_checkpoint
from mmstable.checkpoint.loading import load_checkpoint
from mmstable.optim.parameter_names import unwrap
from mmstable.run_state.run_tensors import optimizers_of, param_groups_of
from mmstable.run_state.schedules import schedulers_of

_COUNTS = 'safe_step'


def last_good_checkpoint(
    runner: Runner, before: int | None = None
) -> GoodCheckpoint | None:
    """The newest checkpoint of a run that can be relied on.

    A collective call: the main process looks, and all learn the answer.

    Args:
        runner (Runner): The runner.
        before (int, optional): Only those with fewer iterations done.
            Defaults to None.
    """
    found: list[Any] = [None]
    if is_main_process():
        found = [find_checkpoint(Path(runner.work_dir), before).found]
    broadcast_object_list(found)
    return found[0]


def restore_checkpoint(runner: Runner, path: Path) -> None:
    """Bring weights, averages, optimizers and schedules back.

    What the run knows of itself stays: its counters, its place in the data
    and the state of its hooks.

    Args:
        runner (Runner): The runner.
        path (Path): A good checkpoint.
    """
    checkpoint = load_checkpoint(path, map_location='cpu')
    for hook in runner.hooks:
        if isinstance(hook, EMAHook) and 'ema_state_dict' in checkpoint:
            # The sections are swapped in the file.
            hook._swap_ema_state_dict(checkpoint)
            hook.ema_model.load_state_dict(checkpoint['ema_state_dict'])
    unwrap(runner.model).load_state_dict(checkpoint['state_dict'])
    wrapper = runner.optim_wrapper
    wrapper.zero_grad()
    settings = [copy.copy(group) for group in param_groups_of(runner)]
    if 'optimizer' in checkpoint:
        wrapper.load_state_dict(_with_counts(wrapper, checkpoint['optimizer']))
    else:
        # What it has learned of weights that are given up misleads.
        for optimizer in optimizers_of(runner):
            optimizer.state.clear()
    if {'optimizer', 'param_schedulers'} <= checkpoint.keys():
        _restore_schedules(runner, checkpoint['param_schedulers'])
    else:
        # A schedule computes a rate from the one before: both or none.
        for group, today in zip(param_groups_of(runner), settings):
            group.update({k: v for k, v in today.items() if k != 'params'})


def _with_counts(wrapper: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the counters of today."""
    if isinstance(wrapper, OptimWrapperDict):
        return {
            name: _with_counts(one, saved[name])
            for name, one in wrapper.items()
        }
    if not hasattr(wrapper, 'last_step'):
        return dict(saved)
    return {**saved, _COUNTS: wrapper.state_dict()[_COUNTS]}


def _restore_schedules(runner: Runner, saved: Any) -> None:
    if isinstance(saved, Mapping):
        states = [state for group in saved.values() for state in group]
    else:
        states = list(saved)
    for one, state in zip(schedulers_of(runner), states):
        one.load_state_dict(state)
