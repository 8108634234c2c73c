"""A call before an optimizer steps, also where torch forgets its hooks."""

from __future__ import annotations

from types import MethodType
from typing import Any, Callable

import torch
from mmengine.utils import digit_version
from torch.optim import Optimizer

Hook = Callable[[Optimizer, tuple, dict], None]


def before_step(optimizer: Optimizer, hook: Hook) -> Callable[[], None]:
    """Call a hook before each step of an optimizer.

    Before torch 2.3, whatever is compiled in a process takes the hooks of
    all optimizers out; there, the ``step`` of this one is replaced.

    Args:
        optimizer (Optimizer): The optimizer.
        hook (Callable): Called as a step pre-hook of torch is, but it cannot
            change the arguments.

    Returns:
        Callable: Ends it.
    """
    if digit_version(torch.__version__) < digit_version('2.3'):
        return _replace_step(optimizer, hook)
    return optimizer.register_step_pre_hook(hook).remove


def _replace_step(optimizer: Any, hook: Hook) -> Callable[[], None]:
    hooks = [hook]
    previous = optimizer.step
    was_replaced = 'step' in vars(optimizer)

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        for one in hooks:
            one(self, args, kwargs)
        return previous(*args, **kwargs)

    # Schedulers mark the function to know that they have replaced it.
    vars(step).update(vars(previous))
    # Bound, because schedulers take a method apart to replace it.
    optimizer.step = replaced = MethodType(step, optimizer)

    def end() -> None:
        hooks.clear()
        # Somebody may have replaced it since, and calls this one.
        if vars(optimizer).get('step') is not replaced:
            return
        if was_replaced:
            optimizer.step = previous
        else:
            del optimizer.step

    return end
