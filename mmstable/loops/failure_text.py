"""What the owner of a run should know about the error that ends it."""

from __future__ import annotations

import traceback

from mmengine.runner import BaseLoop, Runner

from mmstable.memory.out_of_memory import is_out_of_memory
from mmstable.messages import say


def explain_failure(runner: Runner, error: BaseException) -> str | None:
    """Where it happened, and what helps, if that is known.

    Args:
        runner (Runner): The runner.
        error (BaseException): What has left the training loop.
    """
    in_validation = _came_from_validation(runner, error)
    if is_out_of_memory(error):
        return say('failure.val_memory' if in_validation else 'failure.memory')
    return say('failure.validation') if in_validation else None


def _came_from_validation(runner: Runner, error: BaseException) -> bool:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get('self')
        if isinstance(owner, BaseLoop) and owner is not runner.train_loop:
            return True
    return False
