"""What is left of a run that has failed: can it be saved, is it exact?"""

from __future__ import annotations

import traceback
from typing import Any

from mmengine.dist import get_rank
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.distributed.parallelism import Sharing, find_sharing
from mmstable.messages import _

# What hooks do between two iterations is part of the first one.
_STAGES = ('after_train_iter', 'after_train_epoch', 'after_val_epoch')


def is_half_updated(runner: Runner) -> bool:
    """Whether weights were changed by a step that came to no end."""
    step = _failed_step(runner)
    return step is not None and step.has_updated


def window_was_open(runner: Runner) -> bool:
    """Whether gradients of a window were lost with the iteration."""
    loop: Any = runner.train_loop
    # A failed iteration may have been counted as the last of its window.
    done = loop.resume_meta()['iter'] if hasattr(loop, 'resume_meta') else 0
    return run_view.window_is_open(runner) or any(
        done % run_view.accumulative_counts(wrapper)
        for wrapper in run_view.wrappers(runner).values()
    )


def why_inexact(runner: Runner, exception: BaseException) -> str | None:
    """Why a state is not that between two iterations; None if it is.

    Args:
        runner (Runner): The runner, whose weights are not half updated.
        exception (BaseException): What has ended the run.
    """
    if window_was_open(runner):
        return _('gradients were being accumulated, and are lost')
    if _came_from_hooks(exception):
        return _('not all hooks of the iteration have run')
    step = _failed_step(runner)
    if step is not None and not step.is_undone:
        return _(
            'buffers, as the statistics of BatchNorm, may hold a part of the '
            'failed iteration'
        )
    return None


def why_not_for_all(runner: Runner) -> str | None:
    """Why the state of this rank is not that of all; None if it is."""
    if find_sharing(runner.model) is not Sharing.REDUCED:
        return _('no rank has the whole state of this run')
    if is_half_updated(runner):
        return _('the weights were being updated')
    wrappers = run_view.wrappers(runner).values()
    if any(getattr(wrapper, 'is_behind', False) for wrapper in wrappers):
        return _('this rank has missed the newest update')
    if window_was_open(runner):
        return _('gradients were being accumulated')
    return None


def why_own_buffers(runner: Runner) -> str | None:
    """A note if others hold other buffers than this rank, which saves."""
    if get_rank() == 0 or not run_view.saved_buffers(runner):
        return None
    return _(
        'buffers, as the statistics of BatchNorm, are those of rank {rank}, '
        'not of rank 0',
        rank=get_rank(),
    )


def _failed_step(runner: Runner) -> Any:
    step = getattr(runner.train_loop, 'train_step', None)
    last = getattr(step, 'last', None)
    return None if last is None or last.is_done else last


def _came_from_hooks(exception: BaseException) -> bool:
    for frame, __ in traceback.walk_tb(exception.__traceback__):
        code = frame.f_code
        if code.co_name == 'call_hook' and code is Runner.call_hook.__code__:
            return frame.f_locals.get('fn_name') in _STAGES
    return False
