"""How measured gradients reach the weights: unscaled, clipped, stepped.

A step is withheld if a gradient would overflow the optimizer's state.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, is_tensor
from torch.optim import (
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    SparseAdam,
)

from mmstable.dist.collectives import is_dtensor
from mmstable.errors import ConfigError
from mmstable.events import ClipRecord
from mmstable.optim import grad_health
from mmstable.optim.clipping import (
    Clip,
    ClipPlan,
    NormClip,
    Part,
    UnitClip,
    ValueClip,
    excess,
    make_plan,
)
from mmstable.optim.grad_health import (
    ParameterNames,
    combined_norm,
    first_parameter,
    stored_values,
)
from mmstable.optim.pending_step import PendingStep, scale_gradients


def reads_verdict_on_device(optimizer: Optimizer) -> bool:
    """Whether ``step`` obeys ``grad_scale`` and ``found_inf`` tensors.

    torch's fused optimizers do; a loaded checkpoint can have switched a
    parameter group back to an implementation that does not.
    """
    if not getattr(optimizer, '_step_supports_amp_scaling', False):
        return False
    cls: Any = type(optimizer)
    if _takes_a_scaler(cls):
        return False
    return all(group.get('fused', True) for group in optimizer.param_groups)


@cache
def _takes_a_scaler(cls: type[Optimizer]) -> bool:
    # An older contract, in which the scaler itself is handed over. Looking
    # at a signature takes longer than all the rest of a small step.
    return 'grad_scaler' in inspect.signature(cls.step).parameters


def step_with_verdict(
    optimizer: Optimizer,
    divisor: Tensor | None,
    found_inf: Tensor | None,
    **kwargs: Any,
) -> None:
    """Step with gradients divided by a tensor, unless a tensor says no.

    Args:
        optimizer (Optimizer): One that reads its verdict on the device.
        divisor (Tensor, optional): What to divide the gradients by.
        found_inf (Tensor, optional): Where it is 1.0 nothing is updated.
        **kwargs: For ``optimizer.step``.
    """
    optimizer.grad_scale = divisor  # type: ignore[attr-defined]
    optimizer.found_inf = found_inf  # type: ignore[attr-defined]
    try:
        optimizer.step(**kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def split_by_state(
    optimizer: Optimizer, params: list[Tensor]
) -> list[set[int]]:
    """Ids of the parameters that have optimizer state, and of the others.

    Returns:
        list[set[int]]: One or two sets; none of them is empty.
    """
    known = {
        id(param)
        for param in params
        if any(map(is_tensor, optimizer.state.get(param, {}).values()))
    }
    new = {id(param) for param in params} - known
    return [part for part in (known, new) if part]


@contextmanager
def restricted_to(optimizer: Optimizer, params: set[int]) -> Iterator[None]:
    """Let an optimizer see no parameters but those of these ids.

    Args:
        optimizer (Optimizer): The optimizer.
        params (set[int]): The ids.
    """
    everything = [group['params'] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group['params'] = [p for p in group['params'] if id(p) in params]
    try:
        yield
    finally:
        for group, original in zip(optimizer.param_groups, everything):
            group['params'] = original


class _Squares(NamedTuple):
    """Where an optimizer keeps squares of gradients, and how.

    Args:
        key (str): What its state calls them.
        kept (float): What they are multiplied by in a step.
        share (float): What the new square is multiplied by.
    """

    key: str
    kept: float
    share: float


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
        optimizer (Optimizer): The optimizer. A parameter that has no state
            yet counts by its own dtype, as torch's optimizers create it. All
            parameters are looked at: keep the result until the state is
            replaced.
    """
    dtypes = {
        dtype
        for param, squares in _with_squares(optimizer)
        for dtype in [_state_dtype(optimizer, param, squares.key)]
        if dtype.is_floating_point
    }
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
    squares_of = {id(param): s for param, s in _with_squares(optimizer)}
    for param, grad in zip(params, grads):
        squares = squares_of.get(id(param))
        if squares is None or not stored_values(grad).numel():
            continue
        dtype = _state_dtype(optimizer, param, squares.key)
        if dtype.is_floating_point:
            state = optimizer.state.get(param, {}).get(squares.key)
            if _overflows(squares, state, grad, factor, dtype):
                return True
    return False


def _overflows(
    squares: _Squares,
    state: Tensor | None,
    grad: Tensor,
    factor: float,
    dtype: torch.dtype,
) -> bool:
    most = torch.finfo(dtype).max
    highest = float(stored_values(grad).abs().max()) * factor
    # Half precision is squared in float32.
    wide = dtype if dtype is torch.float64 else torch.float32
    if highest > largest_squarable(wide):
        return True
    if squares.share * highest**2 > most:
        return True
    if state is None:
        return False
    before = stored_values(state)
    old = float(before.max()) if before.numel() else 0.0
    if not squares.kept * old + squares.share * highest**2 > most:
        return False
    # The largest of both need not be in one place.
    values = grad.to_dense() if grad.is_sparse else stored_values(grad)
    new = values.double().mul_(factor).square_().mul_(squares.share)
    new.add_(before.double(), alpha=squares.kept)
    # What was Inf before is not the doing of this gradient.
    return bool(((new > most) & before.isfinite()).any())


def _with_squares(optimizer: Optimizer) -> Iterator[tuple[Tensor, _Squares]]:
    """The parameters whose squares are kept; none of unknown optimizers."""
    for group in optimizer.param_groups:
        squares = _squares_of(optimizer, group)
        if squares is not None:
            for param in group['params']:
                yield param, squares


def _squares_of(
    optimizer: Optimizer, group: Mapping[str, Any]
) -> _Squares | None:
    if isinstance(optimizer, (Adam, AdamW, NAdam, RAdam, SparseAdam)):
        kept, key = float(group['betas'][1]), 'exp_avg_sq'
    elif isinstance(optimizer, RMSprop):
        kept, key = float(group['alpha']), 'square_avg'
    elif isinstance(optimizer, Adadelta):
        kept, key = float(group['rho']), 'square_avg'
    elif isinstance(optimizer, Adagrad):
        # A sum.
        return _Squares('sum', 1.0, 1.0)
    else:
        return None
    return _Squares(key, kept, 1 - kept)


def _state_dtype(optimizer: Optimizer, param: Tensor, key: str) -> torch.dtype:
    state = optimizer.state.get(param, {}).get(key)
    return state.dtype if isinstance(state, Tensor) else param.dtype


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
        self._clip = clip
        self._plan: tuple[tuple[int, ...], ClipPlan] | None = None
        # The plan of the last applied step: one for each list of parameters.
        self._last_plan: ClipPlan | None = None
        # Whether the optimizer unscales and clips inside its kernel.
        self._folds = False
        # The norm up to which no gradient can harm the optimizer's state.
        self.safe_norm = math.inf
        # Whether both have to be found again.
        self._is_changed = True

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped."""
        return self._clip

    @clip.setter
    def clip(self, clip: Clip) -> None:
        self._clip = clip
        self._plan, self._is_changed = None, True

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
        plan = self._plan[1]
        if self._is_changed or plan is not self._last_plan:
            self._is_changed = False
            self._look_at_optimizer(plan)
        return plan

    def _look_at_optimizer(self, plan: ClipPlan) -> None:
        """Find out what the optimizer can do, and what harms its state."""
        is_elementwise = self._is_elementwise()
        # A plain divisor does not mix with distributed parameters.
        self._folds = (
            not is_elementwise
            and reads_verdict_on_device(self._optimizer)
            and not is_dtensor(first_parameter(self._optimizer))
        )
        is_clipped = is_elementwise or all(
            part.max_norm() is not None for part in plan.parts
        )
        self.safe_norm = (
            math.inf if is_clipped else largest_safe_norm(self._optimizer)
        )

    def check_shards(self) -> None:
        """Refuse a clip that parts of parameters cannot be clipped by."""
        if isinstance(self._clip, UnitClip):
            raise ConfigError(
                f'Clipping {self._clip} needs whole parameters, but FSDP '
                'cuts them in parts. Clip by norm or by value.'
            )

    def reset(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        self._last_plan, self._is_changed = None, True

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
        if self._is_elementwise():
            return 0.0
        limits = [
            None if part.limit is None else part.limit.current()
            for part in plan.parts
        ]
        if None in limits:
            return math.inf
        return combined_norm(cast(list[float], limits), plan.norm_type)

    def harms_state(self, pending: PendingStep, norms: list[float]) -> bool:
        """Whether finite gradients would overflow the optimizer's state.

        Args:
            pending (PendingStep): The gradients.
            norms (list[float]): Unscaled norms of its parts.
        """
        coefs = self.coefficients(pending.plan, norms)
        for part, coef in zip(pending.plan.parts, coefs):
            factor = coef / pending.grad_scale
            params = [pending.params[index] for index in part.indices]
            grads = [pending.grads[index] for index in part.indices]
            if overflows_state(self._optimizer, params, grads, factor):
                return True
        return False

    def can_step_async(self, pending: PendingStep) -> bool:
        """Whether the optimizer can be started before the verdict is read."""
        # A fused optimizer that skips the first step of a parameter leaves
        # its momentum uninitialised; the host has to withhold that one.
        return self._last_plan is pending.plan and self._folds

    def step_async(
        self, pending: PendingStep, norm_limit: float, loss_limit: float
    ) -> None:
        """Update, unless the device finds anything not finite or too large.

        Args:
            pending (PendingStep): The gradients.
            norm_limit (float): The largest unscaled norm of all gradients.
            loss_limit (float): The largest loss.
        """
        norm = pending.part_norms[0]
        if len(pending.plan.parts) > 1:
            order = pending.plan.norm_type
            norm = grad_health.total_norm(pending.part_norms, order)
        good = grad_health.within(norm, norm_limit * pending.grad_scale)
        if pending.loss is not None and loss_limit < math.inf:
            loss = pending.loss.to(norm.device, non_blocking=True)
            good.logical_and_(grad_health.within(loss, loss_limit))
        pending.found_inf = grad_health.flag_unless(good)
        self._step_parts(pending, pending.found_inf)

    def apply(self, pending: PendingStep, coefs: list[float]) -> None:
        """Update with gradients that are known to be good.

        Args:
            pending (PendingStep): The gradients.
            coefs (list[float]): From :meth:`coefficients`.
        """
        # The divisor of fused optimizers is a float32.
        divides = self._folds and pending.part_norms.dtype is not torch.float64
        if not divides:
            self.clip_gradients(pending, coefs, pending.grad_scale)
        # A divisor makes the optimizer write its gradients, too: without one
        # if the host knows that it is 1.
        is_plain = not divides or pending.grad_scale == min(coefs) == 1
        if is_plain and (self._last_plan is pending.plan or not self._folds):
            self._optimizer.step(**pending.step_kwargs)
        else:
            self._step_parts(pending, None, coefs, divides)
        if self._last_plan is not pending.plan:
            self._last_plan = pending.plan
            # The optimizer may have state only now.
            self._is_changed = True

    def apply_late(self, pending: PendingStep, coefs: list[float]) -> None:
        """The same for gradients that the device did not want.

        Also for norms that no float32 tensor can hold.
        """
        with pending.gradients_in_place():
            self.clip_gradients(pending, coefs, pending.grad_scale)
            self._optimizer.step(**pending.step_kwargs)

    def clip_gradients(
        self, pending: PendingStep, coefs: list[float], divisor: float = 1.0
    ) -> None:
        """Clip good gradients in place, and divide them.

        Args:
            pending (PendingStep): The gradients.
            coefs (list[float]): From :meth:`coefficients`.
            divisor (float): What to divide by. Defaults to 1.0.
        """
        if self._is_elementwise():
            pending.let_write()
            self._shrink_elements(pending)
        for part, coef in zip(pending.plan.parts, coefs):
            factor = coef / divisor
            if factor != 1.0:
                pending.let_write()
                grads = [pending.grads[i] for i in part.indices]
                scale_gradients(grads, factor)

    def note_applied(
        self, pending: PendingStep, norms: list[float], coefs: list[float]
    ) -> dict[str, Any]:
        """Let adaptive limits learn from an applied step, and describe it.

        Args:
            pending (PendingStep): The gradients.
            norms (list[float]): Unscaled norms of its parts.
            coefs (list[float]): What they were multiplied by.

        Returns:
            dict: What the report of the step says about its norms.
        """
        order = pending.plan.norm_type
        total = norms[0] if len(norms) == 1 else combined_norm(norms, order)
        if not isinstance(self._clip, NormClip):
            clipped = None if self._clip is None else pending.clipped_norm
            return {'grad_norm': total, 'clipped_norm': clipped}
        clips, after = [], []
        for part, norm, coef in zip(pending.plan.parts, norms, coefs):
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
        pending: PendingStep,
        found_inf: Tensor | None,
        coefs: list[float] | None = None,
        divides: bool = True,
    ) -> None:
        parts = pending.plan.parts
        for index, part in enumerate(parts):
            limit, divisor = None, None
            if coefs is None or coefs[index] != 1.0:
                limit = part.max_norm()
            if divides and (limit is not None or pending.grad_scale != 1):
                divisor = _divisor(
                    pending.part_norms[index], limit, pending.grad_scale
                )
            kwargs = pending.step_kwargs
            if pending.plan is self._last_plan and len(parts) == 1:
                step_with_verdict(
                    self._optimizer, divisor, found_inf, **kwargs
                )
                continue
            for ids in self._steppable_together(pending, part):
                with restricted_to(self._optimizer, ids):
                    step_with_verdict(
                        self._optimizer, divisor, found_inf, **kwargs
                    )

    def _steppable_together(
        self, pending: PendingStep, part: Part
    ) -> list[set[int]]:
        params = [pending.params[index] for index in part.indices]
        if pending.plan is self._last_plan:
            return [set(map(id, params))]
        # torch's fused SGD cannot step parameters that have momentum
        # together with some that were frozen until now.
        return split_by_state(self._optimizer, params)

    def _is_elementwise(self) -> bool:
        return isinstance(self._clip, (ValueClip, UnitClip))

    def _shrink_elements(self, pending: PendingStep) -> None:
        assert isinstance(self._clip, (ValueClip, UnitClip))
        names = [self._names[param] for param in pending.params]
        self._clip.shrink_(
            names, pending.params, pending.grads, pending.grad_scale
        )
        if not pending.is_whole:
            return
        norms = grad_health.gradient_norms(pending.grads)
        total = grad_health.total_norm(norms).item()
        pending.clipped_norm = total / pending.grad_scale


def _divisor(norm: Tensor, limit: float | None, grad_scale: float) -> Tensor:
    if limit is not None:
        shrink = excess(norm / grad_scale, limit)
        return shrink.mul_(grad_scale).float()
    return torch.full_like(norm, grad_scale, dtype=torch.float32)
