"""How measured gradients reach the weights: unscaled, clipped, stepped."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.distributed.parallelism import is_dtensor
from mmstable.errors import ConfigError
from mmstable.events import ClipRecord
from mmstable.numerics import grad_health
from mmstable.numerics.clip_settings import Clip
from mmstable.numerics.clipping import (
    NormClip,
    ValueClip,
    coefficient,
    excess,
)
from mmstable.numerics.grad_health import combined_norm
from mmstable.numerics.state_range import largest_safe_norm, overflows_state
from mmstable.numerics.unit_clip import UnitClip
from mmstable.optim.clip_plan import ClipPlan, Part, make_plan
from mmstable.optim.fused_step import (
    reads_verdict_on_device,
    restricted_to,
    split_by_state,
    step_with_verdict,
)
from mmstable.optim.parameter_names import ParameterNames, first_parameter
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
        # The plan of the last applied step: one for each list of parameters.
        self._last_plan: ClipPlan | None = None
        self._folds: bool | None = None
        # The norm up to which gradients do no harm to the optimizer's state.
        self._safe_norm: float | None = None

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped."""
        return self._clip

    @clip.setter
    def clip(self, clip: Clip) -> None:
        self._clip = clip
        self._plan = self._folds = self._safe_norm = None

    def plan_for(
        self, params: list[Tensor], keep_empty: bool = False
    ) -> ClipPlan:
        """Which of these parameters are clipped together.

        Args:
            params (list[Tensor]): The parameters.
            keep_empty (bool): Whether to count groups of which none is
                here, because other ranks hold them. Defaults to False.
        """
        ids = tuple(map(id, params))
        if self._plan is None or self._plan[0] != ids:
            names = [self._names[param] for param in params]
            self._plan = ids, make_plan(self._clip, names, keep_empty)
        return self._plan[1]

    def check_shards(self) -> None:
        """Refuse a clip that parts of parameters cannot be clipped by."""
        if isinstance(self._clip, UnitClip):
            raise ConfigError(
                f'Clipping {self._clip} needs whole parameters, but FSDP '
                'cuts them in parts. Clip by norm or by value.'
            )

    def forget(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        self._last_plan = self._folds = self._safe_norm = None

    def safe_norm(self, plan: ClipPlan) -> float:
        """The norm up to which no gradient can harm the optimizer's state.

        Args:
            plan (ClipPlan): How the gradients are clipped before.
        """
        if self._safe_norm is None or plan is not self._last_plan:
            is_clipped = self._is_elementwise() or all(
                part.limit() is not None for part in plan.parts
            )
            self._safe_norm = (
                math.inf if is_clipped else largest_safe_norm(self._optimizer)
            )
        return self._safe_norm

    def harms_state(self, attempt: StepAttempt, norms: list[float]) -> bool:
        """Whether finite gradients would overflow the optimizer's state.

        Args:
            attempt (StepAttempt): The gradients.
            norms (list[float]): Unscaled norms of its parts.
        """
        for part, norm in zip(attempt.plan.parts, norms):
            factor = coefficient(norm, part.limit()) / attempt.magnification
            params = [attempt.params[index] for index in part.indices]
            grads = [attempt.grads[index] for index in part.indices]
            if overflows_state(self._optimizer, params, grads, factor):
                return True
        return False

    def can_run_ahead(self, attempt: StepAttempt) -> bool:
        """Whether the optimizer can be started before the verdict is read."""
        # A fused optimizer that skips the first step of a parameter leaves
        # its momentum uninitialised; the host has to withhold that one.
        return self._last_plan is attempt.plan and self._can_fold()

    def run_ahead(
        self, attempt: StepAttempt, norm_limit: float, loss_limit: float
    ) -> None:
        """Update, unless the device finds anything not finite or too large.

        Args:
            attempt (StepAttempt): The gradients.
            norm_limit (float): The largest unscaled norm of all gradients.
            loss_limit (float): The largest loss.
        """
        norm = attempt.part_norms[0]
        if len(attempt.plan.parts) > 1:
            order = attempt.plan.norm_type
            norm = grad_health.total_norm(attempt.part_norms, order)
        good = grad_health.within(norm, norm_limit * attempt.magnification)
        if attempt.loss is not None and loss_limit < math.inf:
            loss = attempt.loss.to(norm.device, non_blocking=True)
            good.logical_and_(grad_health.within(loss, loss_limit))
        attempt.withheld = grad_health.flag_unless(good)
        self._step_parts(attempt, attempt.withheld)

    def apply(self, attempt: StepAttempt, norms: list[float]) -> None:
        """Update with gradients that are known to be good.

        Args:
            attempt (StepAttempt): The gradients.
            norms (list[float]): Unscaled norms of its parts.
        """
        # The divisor of fused optimizers is a float32.
        divides = attempt.part_norms.dtype is not torch.float64
        if self._can_fold():
            if not divides:
                self.clip_gradients(attempt, norms, attempt.magnification)
            self._step_parts(attempt, None, norms, divides)
        else:
            self.clip_gradients(attempt, norms, attempt.magnification)
            self._optimizer.step(**attempt.step_kwargs)
        if self._last_plan is not attempt.plan:
            self._last_plan = attempt.plan
            # The optimizer may have state only now.
            self._safe_norm = None

    def apply_late(self, attempt: StepAttempt, norms: list[float]) -> None:
        """The same for gradients that the device did not want.

        Also for norms that no float32 tensor can hold.
        """
        with attempt.gradients_in_place():
            self.clip_gradients(attempt, norms, attempt.magnification)
            self._optimizer.step(**attempt.step_kwargs)

    def clip_gradients(
        self, attempt: StepAttempt, norms: list[float], divisor: float = 1.0
    ) -> None:
        """Clip good gradients in place, and divide them.

        Args:
            attempt (StepAttempt): The gradients.
            norms (list[float]): Unscaled norms of its parts.
            divisor (float): What to divide by. Defaults to 1.0.
        """
        if self._is_elementwise():
            attempt.let_write()
            self._shrink_elements(attempt)
        for part, norm in zip(attempt.plan.parts, norms):
            factor = coefficient(norm, part.limit()) / divisor
            if factor != 1.0:
                attempt.let_write()
                grads = [attempt.grads[i] for i in part.indices]
                scale_gradients(grads, factor)

    def note_applied(
        self, attempt: StepAttempt, norms: list[float]
    ) -> dict[str, Any]:
        """Let adaptive limits learn from an applied step, and describe it.

        Args:
            attempt (StepAttempt): The gradients.
            norms (list[float]): Unscaled norms of its parts.

        Returns:
            dict: What the report of the step says about its norms.
        """
        order = attempt.plan.norm_type
        total = norms[0] if len(norms) == 1 else combined_norm(norms, order)
        if not isinstance(self._clip, NormClip):
            clipped = None if self._clip is None else attempt.clipped_norm
            return {'grad_norm': total, 'clipped_norm': clipped}
        clips, after = [], []
        for part, norm in zip(attempt.plan.parts, norms):
            limit = None
            if part.group is not None:
                limit = part.group.limit.current()
                part.group.limit.observe(norm)
            coef = coefficient(norm, limit)
            clips.append(ClipRecord(part.name, norm, coef))
            after.append(norm * coef)
        return {
            'grad_norm': total,
            'clips': tuple(clips),
            'clip_coef': min(clip.coef for clip in clips),
            'clipped_norm': combined_norm(after, order),
        }

    def _can_fold(self) -> bool:
        """Whether the optimizer can unscale and clip by itself."""
        if self._folds is None:
            # A plain divisor does not mix with distributed parameters.
            self._folds = (
                not self._is_elementwise()
                and reads_verdict_on_device(self._optimizer)
                and not is_dtensor(first_parameter(self._optimizer))
            )
        return self._folds

    def _step_parts(
        self,
        attempt: StepAttempt,
        found_inf: Tensor | None,
        norms: list[float] | None = None,
        divides: bool = True,
    ) -> None:
        parts = attempt.plan.parts
        for index, part in enumerate(parts):
            limit, divisor = part.limit(), None
            # A divisor makes the optimizer write its gradients, too: without
            # one if the host knows that it is 1.
            if limit is not None and norms is not None:
                is_cut = coefficient(norms[index], limit) != 1.0
                limit = limit if is_cut else None
            if divides and (limit is not None or attempt.magnification != 1):
                divisor = _divisor(
                    attempt.part_norms[index], limit, attempt.magnification
                )
            kwargs = attempt.step_kwargs
            if attempt.plan is self._last_plan and len(parts) == 1:
                step_with_verdict(
                    self._optimizer, divisor, found_inf, **kwargs
                )
                continue
            for ids in self._steppable_together(attempt, part):
                with restricted_to(self._optimizer, ids):
                    step_with_verdict(
                        self._optimizer, divisor, found_inf, **kwargs
                    )

    def _steppable_together(
        self, attempt: StepAttempt, part: Part
    ) -> list[set[int]]:
        params = [attempt.params[index] for index in part.indices]
        if attempt.plan is self._last_plan:
            return [set(map(id, params))]
        # torch's fused SGD cannot step parameters that have momentum
        # together with some that were frozen until now.
        return split_by_state(self._optimizer, params)

    def _is_elementwise(self) -> bool:
        return isinstance(self._clip, (ValueClip, UnitClip))

    def _shrink_elements(self, attempt: StepAttempt) -> None:
        assert isinstance(self._clip, (ValueClip, UnitClip))
        names = [self._names[param] for param in attempt.params]
        self._clip.shrink_(
            names, attempt.params, attempt.grads, attempt.magnification
        )
        if not attempt.is_whole:
            return
        norms = grad_health.gradient_norms(attempt.grads)
        total = grad_health.total_norm(norms).item()
        attempt.clipped_norm = total / attempt.magnification


def _divisor(
    norm: Tensor, limit: float | None, magnification: float
) -> Tensor:
    if limit is not None:
        shrink = excess(norm / magnification, limit)
        return shrink.mul_(magnification).float()
    return torch.full_like(norm, magnification, dtype=torch.float32)
