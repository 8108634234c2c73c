"""How measured gradients reach the weights: unscaled, clipped, stepped."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.events import ClipRecord
from mmstable.numerics import grad_health
from mmstable.numerics.clip_settings import Clip
from mmstable.numerics.clipping import NormClip, coefficient, excess
from mmstable.optim.clip_plan import ClipPlan, Part, make_plan
from mmstable.optim.fused_step import (
    reads_verdict_on_device,
    restricted_to,
    split_by_state,
    step_with_verdict,
)
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.step_attempt import StepAttempt, scale_gradients


class Update:
    """Updates of one optimizer, with unscaling and clipping folded in.

    A fused optimizer divides its gradients by itself, by a tensor that holds
    scale and clipping together; where parts are clipped apart it steps part
    by part. For others the gradients are multiplied once.

    Args:
        optimizer (Optimizer): The optimizer.
        names (ParameterNames): Names of its parameters.
        clip (Clip, optional): How to clip.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        names: ParameterNames,
        clip: Clip | None,
    ) -> None:
        self._optimizer = optimizer
        self._names = names
        self._clip = clip
        self._plan: tuple[tuple[int, ...], ClipPlan] | None = None
        self._last_params: tuple[int, ...] = ()

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped."""
        return self._clip

    @clip.setter
    def clip(self, clip: Clip) -> None:
        self._clip = clip
        self._plan = None

    def plan_for(self, params: list[Tensor]) -> ClipPlan:
        """Which of these parameters are clipped together."""
        ids = tuple(map(id, params))
        if self._plan is None or self._plan[0] != ids:
            names = [self._names[param] for param in params]
            self._plan = ids, make_plan(self._clip, names)
        return self._plan[1]

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
        whole = len(attempt.plan.parts) == 1
        for part, norm in zip(attempt.plan.parts, attempt.part_norms):
            ids = None if whole else attempt.param_ids_of(part)
            self._step_folded(attempt, part, norm, ids, found_inf)

    def apply(self, attempt: StepAttempt, norms: list[float]) -> None:
        """Update with gradients that are known to be good.

        Args:
            attempt (StepAttempt): The gradients.
            norms (list[float]): Unscaled norms of its parts.
        """
        if self._can_fold():
            for part, norm in zip(attempt.plan.parts, attempt.part_norms):
                for ids in self._steppable_together(attempt, part):
                    self._step_folded(attempt, part, norm, ids, None)
        else:
            self._scale_on_host(attempt, norms)
            self._optimizer.step(**attempt.step_kwargs)
        self._last_params = attempt.param_ids()

    def apply_wide(self, attempt: StepAttempt, norms: list[float]) -> None:
        """The same for norms that no float32 tensor can hold."""
        with attempt.gradients_in_place():
            self._scale_on_host(attempt, norms)
            self._optimizer.step(**attempt.step_kwargs)

    def records(
        self, attempt: StepAttempt, norms: list[float]
    ) -> tuple[ClipRecord, ...]:
        """How far each limited part of an applied step was clipped."""
        return tuple(
            ClipRecord(part.group.name, norm, coefficient(norm, part.limit()))
            for part, norm in zip(attempt.plan.parts, norms)
            if part.group is not None
        )

    def observe(self, attempt: StepAttempt, norms: list[float]) -> None:
        """Let adaptive limits learn from an applied step."""
        for part, norm in zip(attempt.plan.parts, norms):
            if part.group is not None:
                part.group.limit.observe(norm)

    def _can_fold(self) -> bool:
        by_norm = self._clip is None or isinstance(self._clip, NormClip)
        return by_norm and reads_verdict_on_device(self._optimizer)

    def _steppable_together(
        self, attempt: StepAttempt, part: Part
    ) -> Iterator[set[int]]:
        # torch's fused SGD cannot step parameters that have momentum
        # together with some that were frozen until now.
        params = [attempt.params[index] for index in part.indices]
        yield from split_by_state(self._optimizer, params)

    def _step_folded(
        self,
        attempt: StepAttempt,
        part: Part,
        norm: Tensor,
        ids: set[int] | None,
        found_inf: Tensor | None,
    ) -> None:
        divisor = _divisor(norm, part.limit(), attempt.magnification)
        with restricted_to(self._optimizer, ids):
            step_with_verdict(
                self._optimizer, divisor, found_inf, **attempt.step_kwargs
            )

    def _scale_on_host(self, attempt: StepAttempt, norms: list[float]) -> None:
        if self._clip is not None and not isinstance(self._clip, NormClip):
            names = [self._names[param] for param in attempt.params]
            self._clip.shrink_(
                names, attempt.params, attempt.grads, attempt.magnification
            )
        for part, norm in zip(attempt.plan.parts, norms):
            factor = coefficient(norm, part.limit()) / attempt.magnification
            scale_gradients([attempt.grads[i] for i in part.indices], factor)


def _divisor(
    norm: Tensor, limit: float | None, magnification: float
) -> Tensor | None:
    if limit is not None:
        shrink = excess(norm / magnification, limit)
        return shrink.mul_(magnification).float()
    if magnification == 1.0:
        return None
    return torch.full_like(norm, magnification, dtype=torch.float32)
