"""What the owner of a run should know about the error that ends it."""

from __future__ import annotations

import traceback

from mmengine.runner import BaseLoop, Runner

from mmstable.memory.out_of_memory import is_out_of_memory
from mmstable.messages import say

# What torch says of a loss that nothing can be learned from.
_NO_GRAD = 'does not require grad and does not have a grad_fn'


def explain_failure(runner: Runner, error: BaseException) -> str | None:
    """Where it happened, and what helps, if that is known.

    Args:
        runner (Runner): The runner.
        error (BaseException): What has left the training loop.
    """
    in_validation = _came_from_validation(runner, error)
    if is_out_of_memory(error):
        return say('failure.val_memory' if in_validation else 'failure.memory')
    if in_validation:
        return say('failure.validation')
    return say('failure.no_grad') if _NO_GRAD in str(error) else None


def _came_from_validation(runner: Runner, error: BaseException) -> bool:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get('self')
        if isinstance(owner, BaseLoop) and owner is not runner.train_loop:
            return True
    return False
