"""Bad steps must not leave their traces in running statistics."""

from __future__ import annotations

from weakref import WeakSet

from torch.nn import Module

from mmstable.optim.buffer_copy import BufferCopy


class BufferProtection:
    """Undo what forward passes did to buffers, if their step is skipped.

    A NaN or Inf in one batch spoils BatchNorm's running statistics for good,
    whatever becomes of the gradients. The buffers are copied before the
    first forward pass of a step; with gradient accumulation also before
    every other one, because one iteration may be left out alone.

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

    def learn(self, model: Module) -> None:
        """Protect the buffers of a model, too."""
        if self._enabled and model not in self._known:
            self._known.add(model)
            for module in model.modules():
                self._modules.setdefault(id(module), module)

    def before_forward(self) -> None:
        """Copy what the forward pass is going to change."""
        if not self._enabled:
            return
        modules = self._modules.values()
        # Several forward passes may lead to one backward pass.
        if not self._step.is_taken:
            self._step.take(modules)
        if self._iteration is not None and not self._iteration.is_taken:
            self._iteration.take(modules)

    def keep_iteration(self) -> None:
        """The iteration counts."""
        if self._iteration is not None:
            self._iteration.is_taken = False

    def undo_iteration(self) -> None:
        """The iteration is left out of its step."""
        if self._iteration is not None:
            self._iteration.put_back()

    def keep_step(self) -> None:
        """The step was applied."""
        self._step.is_taken = False

    def undo_step(self) -> None:
        """The step was skipped."""
        self._step.put_back()
