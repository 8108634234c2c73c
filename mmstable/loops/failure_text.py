"""What the owner of a run should know about the error that ends it."""

from __future__ import annotations

import traceback

from mmengine.runner import BaseLoop, Runner

from mmstable.memory.out_of_memory import is_out_of_memory
from mmstable.messages import _

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
        return _(
            (
                'mmstable: out of memory in validation, not in training. '
                'Lower val_dataloader.batch_size, or validate on smaller '
                'inputs; --no-validate trains without.'
            )
            if in_validation
            else (
                'mmstable: out of memory in training. Lower '
                'train_dataloader.batch_size, and raise '
                'optim_wrapper.accumulative_counts by as much to keep the '
                'effective batch; train in mixed precision (--amp); or use '
                'smaller inputs.'
            )
        )
    if in_validation:
        return _('mmstable: this happened in validation, not in training.')
    return (
        _(
            'mmstable: the loss depends on no parameter that can be trained. '
            'Is every parameter frozen (requires_grad=False), or is the loss '
            'detached or computed under torch.no_grad()?'
        )
        if _NO_GRAD in str(error)
        else None
    )


def _came_from_validation(runner: Runner, error: BaseException) -> bool:
    for frame, __ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get('self')
        if isinstance(owner, BaseLoop) and owner is not runner.train_loop:
            return True
    return False
