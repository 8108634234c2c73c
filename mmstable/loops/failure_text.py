"""What the owner of a run should know about the error that ends it."""

from __future__ import annotations

import traceback

import torch
from mmengine.runner import BaseLoop, Runner

from mmstable.messages import say

# It has another name before torch 2.5.
_OUT_OF_MEMORY: type[BaseException] = getattr(
    torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError
)
_WORDS = ('out of memory', "can't allocate memory")


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory left."""
    if isinstance(error, (_OUT_OF_MEMORY, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(w in text for w in _WORDS)


def _came_from_validation(runner: Runner, error: BaseException) -> bool:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get('self')
        if isinstance(owner, BaseLoop) and owner is not runner.train_loop:
            return True
    return False
