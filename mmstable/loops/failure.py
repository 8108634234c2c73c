"""The end of a run that fails: what failed, and what is saved of it.

One death, station by station::

    loops/failure.py: end_run             undoes the failed step
    loops/failure.py: explain             says where, and what helps
    hooks/event_log_hook.py: on_exception records the end
    hooks/emergency_checkpoint_hook.py: on_exception
    loops/failure.py: why_inexact         is this the state before the step?
    checkpoint/writer.py: write           saves it
    hooks/fault_forensics_hook.py: explain_exception
    hooks/event_log_hook.py: after_exception

The exception, or the one that names it better, leaves the loop then, with the
exit code of ``errors.py``.
"""

from __future__ import annotations

import traceback
from enum import Enum
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.errors import (
    DeviceLost,
    MMStableError,
    add_note,
    is_device_lost,
)
from mmstable.messages import N_, _
from mmstable.oom.report import OPTIMIZER, failed_phase, is_out_of_memory

if TYPE_CHECKING:
    from mmstable.loops.train import SafeLoop
    from mmstable.loops.train_step import StepRecord


class Phase(Enum):
    """What a train loop is doing."""

    DATA = 'data'
    BEFORE_STEP = 'before_step'
    STEP = 'step'
    # The hooks of these phases are part of the iteration before them.
    AFTER_STEP = 'after_step'
    VALIDATION = 'validation'
    AFTER_VALIDATION = 'after_validation'


# Stages of hooks: save, explain, and draw what happened.
_STAGES = ('on_exception', 'explain_exception', 'after_exception')
# What torch says of a loss that nothing can be learned from.
_NO_GRAD = 'does not require grad and does not have a grad_fn'
_OOM = {
    Phase.VALIDATION: N_(
        'mmstable: out of memory in validation, not in training. Lower '
        'val_dataloader.batch_size, or validate on smaller inputs; '
        '--no-validate trains without.'
    ),
    Phase.STEP: N_(
        'mmstable: out of memory in training. Lower '
        'train_dataloader.batch_size, and raise '
        'optim_wrapper.accumulative_counts by as much to keep the effective '
        'batch; train in mixed precision (--amp); or use smaller inputs.'
    ),
    OPTIMIZER: N_(
        'mmstable: out of memory in the optimizer step, not in the model. '
        'AdamW keeps two more copies of all weights, from the first step on, '
        'and the foreach kernels one more for a moment. Use an optimizer '
        'with less state (SGD), optimizer=dict(foreach=False, ...), or more '
        'GPUs with FSDP; a smaller batch helps only if activations are still '
        'in memory.'
    ),
}
_OOM_HOOK = N_(
    'mmstable: out of memory in a hook ({place}), not in the training step. '
    'A smaller batch does not help if the hook keeps tensors: let it keep '
    'less, run less often, or keep them on the CPU.'
)


def end_run(loop: SafeLoop, error: BaseException) -> MMStableError | None:
    """Undo the failed step, explain the error, and call all hooks.

    Args:
        loop (SafeLoop): The loop that the error leaves.
        error (BaseException): The error.

    Returns:
        MMStableError: A better name for the error, if there is one.
    """
    is_lost = is_device_lost(error)
    if not is_lost:
        # Nothing may touch a lost device: every call fails.
        loop.train_step.undo_failed()
    text = explain(loop, error)
    if text is not None:
        # For the log now, and after the traceback.
        loop.runner.logger.error(text)
        add_note(error, text)
    better: MMStableError | None = None
    for stage in _STAGES:
        # Not by `call_hook`: the failure of one hook would silence others.
        for hook in loop.runner.hooks:
            call = getattr(hook, stage, None)
            if call is None:
                continue
            try:
                call(loop.runner, exception=better or error)
            except MMStableError as named:
                better = named
            except Exception:
                loop.runner.logger.exception(
                    _(
                        '{hook}.{stage} failed; the error that it was called '
                        'for follows.',
                        hook=type(hook).__name__,
                        stage=stage,
                    )
                )
    return _device_lost(error) if better is None and is_lost else better


def explain(loop: SafeLoop, error: BaseException) -> str | None:
    """Say where an error happened, and what helps, if that is known.

    Args:
        loop (SafeLoop): The loop that the error leaves.
        error (BaseException): The error.
    """
    if isinstance(error, MMStableError) or not isinstance(error, Exception):
        return None
    if is_out_of_memory(error):
        phase: Any = loop.phase
        if phase is Phase.STEP and failed_phase(error) == OPTIMIZER:
            phase = OPTIMIZER
        if phase in _OOM:
            return _(_OOM[phase])
        last = traceback.extract_tb(error.__traceback__)[-1]
        return _(_OOM_HOOK, place=f'{last.filename}:{last.lineno}')
    if loop.phase is Phase.VALIDATION:
        return _('mmstable: this happened in validation, not in training.')
    if _NO_GRAD in str(error):
        return _(
            'mmstable: the loss depends on no parameter that can be trained. '
            'Is every parameter frozen (requires_grad=False), or is the loss '
            'detached or computed under torch.no_grad()?'
        )
    return None


def _device_lost(error: BaseException) -> DeviceLost:
    """Name the error, with its traceback for the log of the process."""
    traceback.print_exception(type(error), error, error.__traceback__)
    named = DeviceLost(
        _(
            'the device is lost: {error}. Only a new process can use it again',
            error=str(error).partition('\n')[0],
        )
    )
    for note in getattr(error, '__notes__', []):
        add_note(named, note)
    return named


def failed_step(runner: Runner) -> StepRecord | None:
    """Return the newest training step, if it came to no end."""
    step = getattr(runner.train_loop, 'train_step', None)
    last = getattr(step, 'last', None)
    return None if last is None or last.is_done else last


def is_half_updated(runner: Runner) -> bool:
    """Whether weights were changed by a step that came to no end."""
    step = failed_step(runner)
    return step is not None and step.has_updated


def window_was_open(runner: Runner) -> bool:
    """Whether gradients of a window were lost with the iteration."""
    loop: Any = runner.train_loop
    # A failed iteration may have been counted as the last of its window.
    done = loop.resume_meta()['iter'] if hasattr(loop, 'resume_meta') else 0
    return runner_view.window_is_open(runner) or any(
        done % runner_view.accumulative_counts(wrapper)
        for wrapper in runner_view.wrappers(runner).values()
    )


def why_inexact(runner: Runner, exception: BaseException) -> str | None:
    """Say why a state is not that between two iterations; None if it is.

    Args:
        runner (Runner): The runner, whose weights are not half updated.
        exception (BaseException): What has ended the run; one that was never
            raised if another thread ends it.
    """
    if window_was_open(runner):
        return _('gradients were being accumulated, and are lost')
    phase = getattr(runner.train_loop, 'phase', None)
    if exception.__traceback__ is not None and (
        phase in (Phase.AFTER_STEP, Phase.AFTER_VALIDATION)
    ):
        return _('not all hooks of the iteration have run')
    step = failed_step(runner)
    if step is not None and not step.is_undone:
        return _(
            'buffers, as the statistics of BatchNorm, may hold a part of the '
            'failed iteration'
        )
    return None


def why_not_for_all(runner: Runner) -> str | None:
    """Say why the state of this rank is not that of all; None if it is."""
    if find_sharing(runner.model) is not Sharing.REDUCED:
        return _('no rank has the whole state of this run')
    if is_half_updated(runner):
        return _('the weights were being updated')
    wrappers = runner_view.wrappers(runner).values()
    if any(getattr(wrapper, 'is_behind', False) for wrapper in wrappers):
        return _('this rank has missed the newest update')
    if window_was_open(runner):
        return _('gradients were being accumulated')
    return None


def why_own_buffers(runner: Runner) -> str | None:
    """Return a note if other ranks hold other buffers than this one."""
    if get_rank() == 0 or not runner_view.saved_buffers(runner):
        return None
    return _(
        'buffers, as the statistics of BatchNorm, are those of rank {rank}, '
        'not of rank 0',
        rank=get_rank(),
    )
