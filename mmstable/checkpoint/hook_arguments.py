"""What can be said to a checkpoint hook?"""

from __future__ import annotations

from inspect import signature
from typing import Any, Callable

from mmengine.hooks import CheckpointHook

# What the hook itself gives when it saves, and what it collects the rest in.
_NOT_TO_BE_SET = {'self', 'filename', 'meta', 'kwargs'}


def hook_arguments(save_checkpoint: Callable[..., Any]) -> set[str]:
    """The arguments of mmengine's ``CheckpointHook``, and of saving.

    The hook keeps what it does not know for ``runner.save_checkpoint``, which
    refuses it hours later.

    Args:
        save_checkpoint (Callable): The method of the runner.
    """
    saving = signature(save_checkpoint).parameters
    return {*signature(CheckpointHook).parameters, *saving} - _NOT_TO_BE_SET
