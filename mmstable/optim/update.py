"""How measured gradients reach the weights: unscaled, clipped, stepped.

A step is withheld if a gradient would overflow the optimizer's state.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, is_tensor, optim
from torch.optim import Optimizer

from mmstable.dist.collectives import is_dtensor
from mmstable.errors import ConfigError
from mmstable.events import ClipRecord
from mmstable.optim import grad_health
from mmstable.optim.clipping import (
    Clip,
    ClipPlan,
    NormClip,
    UnitClip,
    excess,
    make_plan,
)
from mmstable.optim.grad_health import (
    ParameterNames,
    combined_norm,
    first_parameter,
    stored_values,
)
from mmstable.optim.pending_step import PendingStep


def reads_verdict_on_device(optimizer: Optimizer) -> bool:
    """Whether ``step`` obeys ``grad_scale`` and ``found_inf`` tensors.

    torch's fused optimizers do; a loaded checkpoint can have switched a
    parameter group back to an implementation that does not.
    """
    cls: Any = type(optimizer)
    return (
        getattr(optimizer, '_step_supports_amp_scaling', False)
        and not _takes_a_scaler(cls)
        and all(group.get('fused', True) for group in optimizer.param_groups)
    )


@cache
def _takes_a_scaler(cls: Any) -> bool:
    # An older contract, in which the scaler itself is handed over. Looking
    # at a signature takes longer than all the rest of a small step.
    return 'grad_scaler' in inspect.signature(cls.step).parameters


@contextmanager
def _restricted_to(
    optimizer: Optimizer, params: Collection[int]
) -> Iterator[None]:
    """Let an optimizer see no parameters but those of these ids."""
    everything = [group['params'] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group['params'] = [p for p in group['params'] if id(p) in params]
    try:
        yield
    finally:
        for group, original in zip(optimizer.param_groups, everything):
            group['params'] = original


class _Squares(NamedTuple):
    """Where an optimizer keeps the square of a gradient, and how.

    Args:
        state (Tensor, optional): What it has so far.
        dtype (torch.dtype): In which type.
        kept (float): What that is multiplied by in a step.
        share (float): What the new square is multiplied by.
    """

    state: Tensor | None
    dtype: torch.dtype
    kept: float
    share: float


# By class: the name of the squares, and the setting that says what is kept.
_SQUARES: dict[Any, tuple[str, str]] = {
    optim.Adam: ('exp_avg_sq', 'betas'),
    optim.AdamW: ('exp_avg_sq', 'betas'),
    optim.NAdam: ('exp_avg_sq', 'betas'),
    optim.RAdam: ('exp_avg_sq', 'betas'),
    optim.SparseAdam: ('exp_avg_sq', 'betas'),
    optim.RMSprop: ('square_avg', 'alpha'),
    optim.Adadelta: ('square_avg', 'rho'),
    # A sum.
    optim.Adagrad: ('sum', ''),
}


def _find_squares(optimizer: Optimizer) -> dict[int, _Squares]:
    """The squares by the id of their parameter; none of other optimizers."""
    found: dict[int, _Squares] = {}
    for cls in type(optimizer).__mro__:
        if cls not in _SQUARES:
            continue
        key, setting = _SQUARES[cls]
        for group in optimizer.param_groups:
            value: Any = group[setting] if setting else 1.0
            kept = float(value[1] if setting == 'betas' else value)
            for param in group['params']:
                state = optimizer.state.get(param, {}).get(key)
                # One that has no state yet gets it in its own type.
                dtype = param.dtype if state is None else state.dtype
                if dtype.is_floating_point:
                    share = 1 - kept if setting else 1.0
                    found[id(param)] = _Squares(state, dtype, kept, share)
        break
    return found


def largest_squarable(dtype: torch.dtype) -> float:
    """The largest number whose square is finite in a floating-point dtype."""
    return math.sqrt(torch.finfo(dtype).max)


def largest_safe_norm(optimizer: Optimizer) -> float:
    """The largest norm of gradients that no state can overflow by.

    Adam and its like keep squares of gradients; one that overflows to Inf
    stays for good. No value is above the norm of all gradients, and no
    average of squares above the largest of them, so nothing overflows up to
    this norm: about 1.8e19 for a state in float32 or bfloat16, 255 in
    float16. What is above it has to be looked at. Inf for an optimizer that
    is not known to keep squares, as SGD.

    Args:
        optimizer (Optimizer): The optimizer. All parameters are looked at:
            keep the result until the state is replaced.
    """
    dtypes = {one.dtype for one in _find_squares(optimizer).values()}
    return min(map(largest_squarable, dtypes), default=math.inf)


def overflows_state(
    optimizer: Optimizer,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    factor: float,
) -> bool:
    """Whether a gradient makes a square overflow that the state keeps.

    It looks at every value: for gradients above :func:`largest_safe_norm`.

    Args:
        optimizer (Optimizer): The optimizer.
        params (Sequence[Tensor]): Parameters of it.
        grads (Sequence[Tensor]): Their gradients, which are finite.
        factor (float): What gradients are multiplied by before their step.
    """
    squares_of = _find_squares(optimizer)
    return any(
        _overflows(squares_of[id(param)], grad, factor)
        for param, grad in zip(params, grads)
        if id(param) in squares_of and stored_values(grad).numel()
    )


def _overflows(squares: _Squares, grad: Tensor, factor: float) -> bool:
    state, dtype, kept, share = squares
    most = torch.finfo(dtype).max
    highest = float(stored_values(grad).abs().max()) * factor
    # Half precision is squared in float32.
    wide = dtype if dtype is torch.float64 else torch.float32
    if highest > largest_squarable(wide) or share * highest**2 > most:
        return True
    if state is None or not stored_values(state).numel():
        return False
    before = stored_values(state)
    if kept * float(before.max()) + share * highest**2 <= most:
        return False
    # The largest of both need not be in one place.
    values = grad.to_dense() if grad.is_sparse else stored_values(grad)
    new = values.double().mul_(factor).square_().mul_(share)
    new.add_(before.double(), alpha=kept)
    # What was Inf before is not the doing of this gradient.
    return bool(((new > most) & before.isfinite()).any())


class Update:
    """Updates of one optimizer, with unscaling and clipping folded in.

    A fused optimizer divides its gradients by a tensor that holds scale and
    clipping together; where parts are clipped apart it steps part
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
        self.clip = clip

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped."""
        return self._clip

    @clip.setter
    def clip(self, clip: Clip | None) -> None:
        self._clip = clip
        # Value by value, or unit by unit.
        self._is_elementwise = not (clip is None or isinstance(clip, NormClip))
        self._plan: tuple[tuple[int, ...], ClipPlan] | None = None
        self.reset()

    def reset(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        # The plan of the last applied step: one for each list of parameters.
        self._last_plan: ClipPlan | None = None
        # Whether the optimizer unscales and clips inside its kernel, and the
        # norm up to which no gradient can harm its state: to be found again.
        self._folds, self.safe_norm = False, math.inf
        self._is_changed = True

    def plan_for(
        self, params: list[Tensor], is_sharded: bool = False
    ) -> ClipPlan:
        """Which of these parameters are clipped together.

        Args:
            params (list[Tensor]): The parameters.
            is_sharded (bool): Whether other ranks hold parts of them, and
                groups of which none is here. Defaults to False.
        """
        if is_sharded and isinstance(self._clip, UnitClip):
            raise ConfigError(
                f'Clipping {self._clip} needs whole parameters, but FSDP '
                'cuts them in parts. Clip by norm or by value.'
            )
        ids = tuple(map(id, params))
        if self._plan is None or self._plan[0] != ids:
            names = [self._names[param] for param in params]
            self._plan = ids, make_plan(self._clip, names, is_sharded)
        plan = self._plan[1]
        if self._is_changed or plan is not self._last_plan:
            self._is_changed = False
            # A plain divisor does not mix with distributed parameters.
            self._folds = (
                not self._is_elementwise
                and reads_verdict_on_device(self._optimizer)
                and not is_dtensor(first_parameter(self._optimizer))
            )
            is_clipped = self.bound(plan) < math.inf
            self.safe_norm = (
                math.inf if is_clipped else largest_safe_norm(self._optimizer)
            )
        return plan

    def coefficients(self, plan: ClipPlan, norms: list[float]) -> list[float]:
        """What clipping multiplies the gradients of each part by.

        Args:
            plan (ClipPlan): The parts.
            norms (list[float]): Their unscaled norms.
        """
        return [
            1.0 if part.limit is None else part.limit.coefficient(norm)
            for part, norm in zip(plan.parts, norms)
        ]

    def bound(self, plan: ClipPlan) -> float:
        """The largest norm that clipping lets through; Inf for any.

        Clipping value by value, or unit by unit, bounds what gradients do,
        whatever their norm: they count as 0.

        Args:
            plan (ClipPlan): How the gradients are clipped.
        """
        if self._is_elementwise:
            return 0.0
        limits = [part.max_norm() for part in plan.parts]
        if None in limits:
            return math.inf
        return combined_norm(cast(list[float], limits), plan.norm_type)

    def harms_state(self, step: PendingStep, norms: list[float]) -> bool:
        """Whether finite gradients would overflow the optimizer's state.

        Args:
            step (PendingStep): The gradients.
            norms (list[float]): Unscaled norms of its parts.
        """
        coefs = self.coefficients(step.plan, norms)
        return any(
            overflows_state(
                self._optimizer,
                [step.params[index] for index in part.indices],
                [step.grads[index] for index in part.indices],
                coef / step.grad_scale,
            )
            for part, coef in zip(step.plan.parts, coefs)
        )

    def can_step_async(self, step: PendingStep) -> bool:
        """Whether the optimizer can be started before the verdict is read."""
        # A fused optimizer that skips the first step of a parameter leaves
        # its momentum uninitialised; the host has to withhold that one.
        return self._last_plan is step.plan and self._folds

    def step_async(
        self, step: PendingStep, norm_limit: float, loss_limit: float
    ) -> None:
        """Update, unless the device finds anything not finite or too large.

        Args:
            step (PendingStep): The gradients.
            norm_limit (float): The largest unscaled norm of all gradients.
            loss_limit (float): The largest loss.
        """
        norm = step.part_norms[0]
        if len(step.plan.parts) > 1:
            norm = grad_health.total_norm(step.part_norms, step.plan.norm_type)
        good = grad_health.within(norm, norm_limit * step.grad_scale)
        if step.loss is not None and loss_limit < math.inf:
            loss = step.loss.to(norm.device, non_blocking=True)
            good.logical_and_(grad_health.within(loss, loss_limit))
        step.found_inf = grad_health.flag_unless(good)
        self._step_parts(step)

    def apply(self, step: PendingStep, coefs: list[float]) -> None:
        """Update with gradients that are known to be good.

        Args:
            step (PendingStep): The gradients.
            coefs (list[float]): From :meth:`coefficients`.
        """
        # The divisor of fused optimizers is a float32.
        divides = self._folds and step.part_norms.dtype is not torch.float64
        if not divides:
            self.clip_gradients(step, coefs, step.grad_scale)
        # A divisor makes the optimizer write its gradients, too: without one
        # if the host knows that it is 1.
        is_plain = not divides or step.grad_scale == min(coefs) == 1
        if is_plain and (self._last_plan is step.plan or not self._folds):
            self._optimizer.step(**step.kwargs)
        else:
            self._step_parts(step, coefs, divides)
        if self._last_plan is not step.plan:
            self._last_plan = step.plan
            # The optimizer may have state only now.
            self._is_changed = True

    def apply_late(self, step: PendingStep, coefs: list[float]) -> None:
        """The same for gradients that the device did not want.

        Also for norms that no float32 tensor can hold.
        """
        with step.gradients_in_place():
            self.clip_gradients(step, coefs, step.grad_scale)
            self._optimizer.step(**step.kwargs)

    def clip_gradients(
        self, step: PendingStep, coefs: list[float], divisor: float = 1.0
    ) -> None:
        """Clip good gradients in place, and divide them.

        Args:
            step (PendingStep): The gradients.
            coefs (list[float]): From :meth:`coefficients`.
            divisor (float): What to divide by. Defaults to 1.0.
        """
        if not (self._clip is None or isinstance(self._clip, NormClip)):
            step.let_write()
            names = [self._names[param] for param in step.params]
            self._clip.shrink_(names, step.params, step.grads, step.grad_scale)
            if step.is_whole:
                norms = grad_health.gradient_norms(step.grads)
                total = grad_health.total_norm(norms).item()
                step.clipped_norm = total / step.grad_scale
        for part, coef in zip(step.plan.parts, coefs):
            if coef != divisor:
                step.let_write()
                torch._foreach_mul_(
                    [stored_values(step.grads[i]) for i in part.indices],
                    coef / divisor,
                )

    def note_applied(
        self, step: PendingStep, norms: list[float], coefs: list[float]
    ) -> dict[str, Any]:
        """Let adaptive limits learn from an applied step, and describe it.

        Args:
            step (PendingStep): The gradients.
            norms (list[float]): Unscaled norms of its parts.
            coefs (list[float]): What they were multiplied by.

        Returns:
            dict: What the report of the step says about its norms.
        """
        order = step.plan.norm_type
        total = norms[0] if len(norms) == 1 else combined_norm(norms, order)
        if not isinstance(self._clip, NormClip):
            return {'grad_norm': total, 'clipped_norm': step.clipped_norm}
        clips, after = [], []
        for part, norm, coef in zip(step.plan.parts, norms, coefs):
            if part.limit is not None and part.limit.is_adaptive:
                part.limit.observe(norm)
            clips.append(ClipRecord(part.name, norm, coef))
            after.append(norm * coef)
        clipped = after[0] if len(after) == 1 else combined_norm(after, order)
        return {
            'grad_norm': total,
            'clips': tuple(clips),
            'clip_coef': min(coefs),
            'clipped_norm': clipped,
        }

    def _step_parts(
        self,
        step: PendingStep,
        coefs: list[float] | None = None,
        divides: bool = True,
    ) -> None:
        """Step each part with a divisor of its own, as the flag allows."""
        optimizer: Any = self._optimizer
        is_known = step.plan is self._last_plan
        for index, part in enumerate(step.plan.parts):
            limit = None
            if coefs is None or coefs[index] != 1.0:
                limit = part.max_norm()
            optimizer.grad_scale = None
            optimizer.found_inf = step.found_inf
            if divides and (limit is not None or step.grad_scale != 1):
                optimizer.grad_scale = _divisor(
                    step.part_norms[index], limit, step.grad_scale
                )
            try:
                if is_known and len(step.plan.parts) == 1:
                    optimizer.step(**step.kwargs)
                    continue
                params = [step.params[index] for index in part.indices]
                # torch's fused SGD cannot step parameters that have momentum
                # together with some that were frozen until now.
                new = {
                    id(param)
                    for param in params
                    if not is_known
                    and not any(
                        map(is_tensor, optimizer.state.get(param, {}).values())
                    )
                }
                for ids in (set(map(id, params)) - new, new):
                    if ids:
                        with _restricted_to(optimizer, ids):
                            optimizer.step(**step.kwargs)
            finally:
                del optimizer.grad_scale, optimizer.found_inf


def _divisor(norm: Tensor, limit: float | None, grad_scale: float) -> Tensor:
    if limit is not None:
        shrink = excess(norm / grad_scale, limit)
        return shrink.mul_(grad_scale).float()
    return torch.full_like(norm, grad_scale, dtype=torch.float32)
