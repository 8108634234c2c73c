"""The methods of torch's ``GradScaler``, for code that calls them itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.numerics.grad_health import (
    find_nonfinite,
    gradient_norms,
    stored_values,
)
from mmstable.numerics.scale_policy import ScalePolicy
from mmstable.settings import number


@dataclass
class _Progress:
    """How far a step of one optimizer is.

    Args:
        is_bad (bool): Whether a gradient is NaN or Inf.
        is_stepped (bool): Whether :meth:`step` was called. Defaults to False.
    """

    is_bad: bool
    is_stepped: bool = False


class GradScalerInterface(ABC):
    """Unscale, step and update as ``torch.amp.GradScaler`` does.

    The wrappers do not need it: they unscale and judge by themselves.

    Args:
        policy (ScalePolicy): How the scale moves.
        enabled (bool): Without it the scale is 1 for good.
    """

    def __init__(self, policy: ScalePolicy, enabled: bool) -> None:
        self.policy = policy
        self._enabled = enabled
        # By the id of the optimizer; all since the last update.
        self._progress: dict[int, _Progress] = {}

    @abstractmethod
    def get_scale(self) -> float:
        """The current scale; 1.0 if scaling is off."""

    @abstractmethod
    def set_scale(self, scale: float) -> None:
        """Set the scale to the nearest value that the policy allows."""

    @abstractmethod
    def note_clean_step(self) -> None:
        """Record a step with finite gradients."""

    @abstractmethod
    def note_bad_gradients(self) -> None:
        """Record a step with NaN or Inf gradients."""

    def is_enabled(self) -> bool:
        """Whether losses are scaled at all."""
        return self._enabled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place."""
        if not self._enabled:
            return
        progress = self._progress.get(id(optimizer))
        if progress is not None:
            when = 'step()' if progress.is_stepped else 'unscale_()'
            raise RuntimeError(
                f'LossScaler.unscale_: {when} was called for this optimizer '
                'already since the last update().'
            )
        grads = _gradients(optimizer)
        bad = find_nonfinite(grads, gradient_norms(grads).tolist())
        self._progress[id(optimizer)] = _Progress(is_bad=bool(bad))
        if grads:
            # Rounded as torch does it.
            factor = torch.tensor(1 / self.get_scale()).item()
            torch._foreach_mul_([stored_values(g) for g in grads], factor)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step an optimizer, unless a gradient is NaN or Inf.

        Args:
            optimizer (Optimizer): Its gradients are unscaled first, if they
                are not.
            *args: For ``optimizer.step``.
            **kwargs: For ``optimizer.step``.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if 'closure' in kwargs:
            raise RuntimeError(
                'LossScaler.step: a `closure` cannot be used with a loss '
                'scale.'
            )
        if id(optimizer) not in self._progress:
            self.unscale_(optimizer)
        progress = self._progress[id(optimizer)]
        if progress.is_stepped:
            raise RuntimeError(
                'LossScaler.step: step() was called for this optimizer '
                'already since the last update().'
            )
        progress.is_stepped = True
        return None if progress.is_bad else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Move the scale by what the steps since the last call have shown.

        Args:
            new_scale (float or Tensor, optional): Set the scale to this
                instead. Defaults to None.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self.set_scale(_checked_scale(new_scale))
        elif any(progress.is_bad for progress in self._progress.values()):
            self.note_bad_gradients()
        elif self._progress:
            self.note_clean_step()
        self._progress.clear()

    def get_growth_factor(self) -> float:
        """What the scale grows by."""
        return self.policy.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Choose what the scale grows by."""
        self.policy = replace(self.policy, growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        """What an overflow multiplies the scale by."""
        return self.policy.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Choose what an overflow multiplies the scale by."""
        self.policy = replace(self.policy, backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        """Clean steps in a row before the scale grows."""
        return self.policy.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Choose how many clean steps it takes before the scale grows."""
        self.policy = replace(self.policy, growth_interval=new_interval)


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    grads = []
    for group in optimizer.param_groups:
        for param in group['params']:
            if param.grad is None:
                continue
            if param.grad.is_sparse:
                # Values of one index count together, also for overflow.
                param.grad = param.grad.coalesce()
            grads.append(param.grad)
    return grads


def _checked_scale(new_scale: float | Tensor) -> float:
    return number('LossScaler.update', 'new_scale', float(new_scale), above=0)
