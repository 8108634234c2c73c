"""Bad steps must not leave their traces in running statistics."""

from __future__ import annotations

import logging
from weakref import WeakSet

from mmengine.logging import print_log
from torch.nn import Module

from mmstable.messages import N_, _
from mmstable.optim.buffer_copy import BufferCopy

_SHARED_BUFFERS = N_(
    'mmstable: forward passes of another step have written to the same '
    'running statistics as those of a skipped step, so some of these keep '
    'its traces. Values that are not finite are restored.'
)


class BufferProtection:
    """Undo what forward passes did to buffers, if their step is skipped.

    A NaN or Inf in one batch spoils BatchNorm's running statistics for good,
    whatever becomes of the gradients. The buffers are copied before the
    first forward pass of a step; with gradient accumulation also before
    every other one, because one iteration may be left out alone.

    Forward passes that never lead to a step, as those of a generator while
    only the discriminator is trained, are not undone by a later one.

    Args:
        enabled (bool): Without it nothing is copied.
        accumulates (bool): Whether several iterations make a step.
    """

    def __init__(self, enabled: bool, accumulates: bool) -> None:
        self._enabled = enabled
        self._known: WeakSet[Module] = WeakSet()
        self._modules: dict[int, Module] = {}
        self._step = BufferCopy()
        self._iteration = BufferCopy() if accumulates else None
        # The iteration of the newest forward pass, and whether any loss since
        # the copy was taken is part of a step.
        self._newest: int | None = None
        self.is_used = False
        self._entered = False
        self._warned: set[str] = set()

    def learn(self, model: Module) -> None:
        """Protect the buffers of a model, too."""
        if self._enabled and model not in self._known:
            self._known.add(model)
            for module in model.modules():
                self._modules.setdefault(id(module), module)

    def before_forward(self, iteration: int | None) -> None:
        """Copy what the forward pass is going to change.

        Args:
            iteration (int, optional): The iteration of the run, if known.
        """
        if not self._enabled:
            return
        self._entered = True
        # Several forward passes may lead to one backward pass, but only of
        # the same iteration.
        is_new = iteration != self._newest
        is_stale = not self.is_used and (iteration is None or is_new)
        self._newest = iteration
        self._begin(self._step, is_stale)
        if self._iteration is not None:
            self._begin(self._iteration, is_stale or is_new)

    def _begin(self, copy: BufferCopy, is_stale: bool) -> None:
        if is_stale or not copy.is_taken:
            copy.take(self._modules.values())
        else:
            copy.note_others()

    def after_forward(self) -> None:
        """Note what the forward pass, or a part of it, has changed."""
        if self._step.is_taken:
            self._step.leave()
        if self._iteration is not None and self._iteration.is_taken:
            self._iteration.leave()

    def before_backward(self) -> None:
        """Note what others have changed since the forward pass.

        Modules under ``torch.utils.checkpoint`` run again while the loss is
        back-propagated: :meth:`after_forward` comes again after that.
        """
        if self._step.is_taken:
            self._step.note_others()
        if self._iteration is not None and self._iteration.is_taken:
            self._iteration.note_others()

    def keep_iteration(self) -> None:
        """The iteration counts."""
        if self._iteration is not None:
            self._iteration.is_taken = False

    def undo_iteration(self) -> None:
        """The iteration is left out of its step."""
        if self._iteration is not None and self._iteration.restore():
            self._warn(_(_SHARED_BUFFERS))
        self._warn_without_context()

    def keep_step(self) -> None:
        """The step was applied."""
        self._step.is_taken = self.is_used = False

    def undo_step(self) -> None:
        """The step was skipped."""
        self.is_used = False
        if self._step.restore():
            self._warn(_(_SHARED_BUFFERS))
        self._warn_without_context()

    def _warn_without_context(self) -> None:
        if self._enabled and not self._entered and self._has_statistics():
            self._warn(
                _(
                    'mmstable: running statistics (BatchNorm) are not '
                    'restored after skipped steps, because `train_step` of '
                    'this model does not run its forward pass inside '
                    '`optim_wrapper.optim_context(model)`.'
                )
            )

    def undo_failed(self, iteration: int | None) -> bool:
        """Undo the forward passes of an iteration that came to no end.

        Args:
            iteration (int, optional): The iteration of the run, if known.

        Returns:
            bool: Whether all buffers are what they were before it.
        """
        if not self._enabled:
            return False
        if iteration is None or iteration != self._newest:
            # It has not come to a forward pass.
            return True
        return (self._iteration or self._step).put_back()

    def _has_statistics(self) -> bool:
        return any(
            buffer is not None and buffer.is_floating_point()
            for module in self._modules.values()
            for buffer in module._buffers.values()
        )

    def _warn(self, text: str) -> None:
        """Log a warning, but each only once."""
        if text not in self._warned:
            self._warned.add(text)
            print_log(text, logger='current', level=logging.WARNING)
