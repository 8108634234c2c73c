"""How measured gradients reach the weights: unscaled, clipped, stepped."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.numerics import grad_health
from mmstable.numerics.clipping import Clip, NormClip, ValueClip
from mmstable.optim.fused_step import (
    reads_verdict_on_device,
    restricted_to,
    split_by_state,
    step_with_verdict,
)
from mmstable.optim.step_attempt import (
    StepAttempt,
    clamp_gradients,
    scale_gradients,
)


class Update:
    """Updates of one optimizer, with unscaling and clipping folded in.

    A fused optimizer divides its gradients by itself, by one tensor that
    holds scale and clipping together. For others the gradients are multiplied
    once.

    Args:
        optimizer (Optimizer): The optimizer.
        clip (Clip, optional): How to clip.
    """

    def __init__(self, optimizer: Optimizer, clip: Clip | None) -> None:
        self.clip = clip
        self._optimizer = optimizer
        self._last_params: tuple[int, ...] = ()

    @property
    def norm_type(self) -> float:
        """Order of the norm that clipping goes by."""
        return self.clip.norm_type if isinstance(self.clip, NormClip) else 2.0

    def clip_coefficient(self, norm: float) -> float | None:
        """What gradients of this norm are multiplied by, if at all."""
        if isinstance(self.clip, NormClip):
            return self.clip.coefficient(norm)
        return None

    def forget(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        self._last_params = ()

    def can_run_ahead(self, attempt: StepAttempt) -> bool:
        """Whether the optimizer can be started before the verdict is read."""
        # A fused optimizer that skips the first step of a parameter leaves
        # its momentum uninitialised; the host has to withhold that one.
        return self._last_params == attempt.param_ids() and self._can_fold()

    def run_ahead(self, attempt: StepAttempt) -> None:
        """Update, unless the device finds the gradients bad."""
        found_inf = grad_health.nonfinite_flag(attempt.total)
        self._step_folded(attempt, found_inf)

    def apply(self, attempt: StepAttempt, norm: float) -> None:
        """Update with gradients that are known to be good.

        Args:
            attempt (StepAttempt): The gradients.
            norm (float): Their norm, unscaled.
        """
        if self._can_fold():
            self._step_in_parts(attempt)
        else:
            self._scale_on_host(attempt, norm)
            self._optimizer.step(**attempt.step_kwargs)
        self._last_params = attempt.param_ids()

    def apply_wide(self, attempt: StepAttempt, norm: float) -> None:
        """The same for a norm that no float32 tensor can hold."""
        self._scale_on_host(attempt, norm)
        with attempt.gradients_in_place():
            self._optimizer.step(**attempt.step_kwargs)

    def _can_fold(self) -> bool:
        return not isinstance(
            self.clip, ValueClip
        ) and reads_verdict_on_device(self._optimizer)

    def _step_in_parts(self, attempt: StepAttempt) -> None:
        # torch's fused SGD cannot step parameters that have momentum
        # together with some that were frozen until now.
        for part in split_by_state(self._optimizer, attempt.params):
            with restricted_to(self._optimizer, part):
                self._step_folded(attempt, found_inf=None)

    def _step_folded(
        self, attempt: StepAttempt, found_inf: Tensor | None
    ) -> None:
        step_with_verdict(
            self._optimizer,
            self._divisor(attempt),
            found_inf,
            **attempt.step_kwargs,
        )

    def _divisor(self, attempt: StepAttempt) -> Tensor | None:
        factor = attempt.magnification
        if isinstance(self.clip, NormClip):
            excess = self.clip.excess(attempt.total / factor)
            return excess.mul_(factor).float()
        if factor == 1.0:
            return None
        return torch.full_like(attempt.total, factor, dtype=torch.float32)

    def _scale_on_host(self, attempt: StepAttempt, norm: float) -> None:
        factor = attempt.magnification
        if isinstance(self.clip, ValueClip):
            clamp_gradients(attempt.grads, self.clip.clip_value * factor)
        coefficient = self.clip_coefficient(norm)
        shrinkage = 1.0 if coefficient is None else coefficient
        scale_gradients(attempt.grads, shrinkage / factor)
