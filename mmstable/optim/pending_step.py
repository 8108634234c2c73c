"""One optimizer step before its verdict: losses, gradients and norms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import time as now
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.dist.collectives import Shards
from mmstable.optim import grad_health
from mmstable.optim.clipping import ClipPlan
from mmstable.optim.grad_health import find_nonfinite, gradient_norms


@dataclass
class AccumulationWindow:
    """Losses of one optimizer step, from one iteration or several.

    Args:
        kept (int): Iterations whose gradients are part of the step.
        dropped (int): Iterations that were dropped from it.
        all_iterations (int): Iterations of all ranks together.
        all_dropped (int): Those of them that were dropped.
        forgotten (int): Iterations whose gradients are gone, on all ranks,
            for no fault.
        is_fresh (bool): Whether it has a loss of the current iteration.
        had_oom (bool): Whether an iteration did not fit in memory.
        is_lost (bool): Whether all of its iterations were dropped.
        rescale (float): Factor by which dropped micro-batches shrank the
            averaged gradient.
    """

    _losses: list[Tensor] = field(default_factory=list)
    _terms: list[dict[str, Tensor]] = field(default_factory=list)
    kept: int = 0
    dropped: int = 0
    all_iterations: int = 1
    all_dropped: int = 0
    forgotten: int = 0
    is_fresh: bool = False
    had_oom: bool = False
    is_lost: bool = False
    rescale: float = 1.0

    def keep(self, loss: Tensor) -> None:
        """Note a loss, which is looked at only if its step is bad."""
        self._losses.append(loss.detach())
        self.kept += 1
        self.is_fresh = True
        self.is_lost = False

    def drop(self, had_oom: bool = False) -> None:
        """Leave out one iteration.

        Args:
            had_oom (bool): Whether it did not fit in memory. Defaults to
                False.
        """
        self.had_oom |= had_oom
        self.dropped += 1
        self.is_fresh = True
        self.is_lost = self.kept == 0

    def reset(self) -> AccumulationWindow:
        """What is left of it when its gradients are thrown away."""
        gone = self.kept + self.dropped + self.forgotten
        return AccumulationWindow(forgotten=gone)

    def close(self, all_dropped: int, ranks: int) -> None:
        """Take account of what all ranks have left out.

        Args:
            all_dropped (int): Iterations, together.
            ranks (int): How many ranks have averaged their gradients.
        """
        self.all_dropped = all_dropped
        iterations = ranks * (self.kept + self.dropped)
        self.all_iterations = max(iterations, 1)
        used = iterations - all_dropped
        lost = all_dropped + ranks * self.forgotten
        if lost and used:
            self.rescale = used / (used + lost)

    def note_terms(self, outputs: Mapping[str, Any]) -> None:
        """Note the losses of an iteration; more are to come."""
        self.is_fresh = False
        self._terms.append(_loss_terms(outputs))

    def all_finite(self) -> bool:
        """Whether every kept loss was finite; waits for the device."""
        return all(bool(torch.isfinite(one).all()) for one in self._losses)

    def mean_loss(self) -> Tensor | None:
        """The average of the kept losses, on their device."""
        if not self._losses:
            return None
        loss = self._losses[0]
        if len(self._losses) > 1 or loss.dim():
            sums = [one.sum().to(loss.device) for one in self._losses]
            loss = torch.stack(sums).sum()
        missing = self.dropped + self.forgotten
        return loss * (1 + missing / self.kept) if missing else loss

    def bad_terms(self, outputs: Any) -> tuple[str, ...]:
        """Names of the losses that were not finite; waits for the device.

        Args:
            outputs (Mapping, optional): Of the last iteration of the window.
        """
        terms = list(self._terms)
        if isinstance(outputs, Mapping):
            terms.append(_loss_terms(outputs))
        bad = {
            name: None
            for one in terms
            for name, value in one.items()
            if not torch.isfinite(value).all()
        }
        # mmengine's name for the sum, which is as bad as its worst part.
        parts = [name for name in bad if name != 'loss']
        return tuple(parts or bad)


def _loss_terms(outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: value.detach()
        for name, value in outputs.items()
        if 'loss' in name and isinstance(value, Tensor)
    }


# Parameters, their gradients, and some of these as they were given.
Live = tuple[list[Tensor], list[Tensor], dict[int, Tensor]]


@dataclass
class PendingStep:
    """The gradients of a step, with norms that are still on the device.

    Args:
        params (list[Tensor]): The parameters that have a gradient.
        grads (list[Tensor]): Their gradients, sparse ones coalesced. They
            are kept until the step is judged, so that a huge norm can be
            distinguished from a NaN.
        norms (Tensor): One norm for each gradient, still scaled.
        plan (ClipPlan): Which of them are clipped together.
        part_norms (Tensor): One norm for each part of the plan, still
            scaled.
        window (AccumulationWindow): The losses that the gradients come from.
        loss_scale (float): The scale of those losses.
        grad_scale (float): By what the gradients are larger than the
            average's: the loss scale, less what was left out of the window.
        iteration (int): Training iterations done, this one included.
        loss (Tensor, optional): The average loss of the window, if it is
            known. Defaults to None.
        step_kwargs (dict): For ``optimizer.step``. Defaults to {}.
        found_inf (Tensor, optional): Of a step that runs ahead, 1.0 if the
            device has left the weights alone. Defaults to None.
        reported_loss (float, optional): What the report says about the loss.
            Defaults to None.
        clipped_norm (float, optional): Unscaled norm after clipping value
            by value. Defaults to None.
        is_whole (bool): Whether the gradients are all there are, and not
            this rank's part of them. Defaults to True.
        as_given (dict[int, Tensor]): The sparse gradients that were not
            coalesced, by index: optimizers round those otherwise. Defaults
            to {}.
        is_first (bool): Whether it is the first step of its iteration.
            Defaults to True.
        time (float): When the gradients were there, in seconds since the
            epoch. Defaults to now.
    """

    params: list[Tensor]
    grads: list[Tensor]
    norms: Tensor
    plan: ClipPlan
    part_norms: Tensor
    window: AccumulationWindow
    loss_scale: float
    grad_scale: float
    iteration: int
    loss: Tensor | None = None
    step_kwargs: dict[str, Any] = field(default_factory=dict)
    found_inf: Tensor | None = None
    reported_loss: float | None = None
    clipped_norm: float | None = None
    is_whole: bool = True
    as_given: dict[int, Tensor] = field(default_factory=dict)
    is_first: bool = True
    time: float = field(default_factory=now)

    @classmethod
    def measure(
        cls,
        live: Live,
        plan: ClipPlan,
        window: AccumulationWindow,
        scale: float,
        shards: Shards | None = None,
        **facts: Any,
    ) -> PendingStep:
        """Measure gradients, on their device.

        Args:
            live (Live): From :func:`live_gradients`.
            plan (ClipPlan): Which of them are clipped together.
            window (AccumulationWindow): The losses that they come from.
            scale (float): The scale of those losses.
            shards (Shards, optional): Which ranks hold parts of them; None
                if they are whole. Defaults to None.
            **facts: Other fields of the step.
        """
        params, grads, as_given = live
        norms = gradient_norms(grads, plan.norm_type)
        if shards is None:
            part_norms = plan.part_norms(norms)
        else:
            counted = plan.part_norms(shards.count_once(params, norms))
            part_norms = shards.total_norms(counted, plan.norm_type)
        return cls(
            params=params,
            grads=grads,
            norms=norms,
            plan=plan,
            part_norms=part_norms,
            window=window,
            loss_scale=scale,
            grad_scale=scale * window.rescale,
            is_whole=shards is None,
            as_given=as_given,
            **facts,
        )

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self.part_norms.device

    @property
    def has_bad_loss(self) -> bool:
        """Whether the loss is known, and was not finite."""
        return self.loss is not None and self.reported_loss is None

    @property
    def is_on_host(self) -> bool:
        """Whether the verdict can be read without waiting for a device."""
        return self.part_norms.is_cpu

    def read(self) -> tuple[list[float], float, bool]:
        """Read the measured values; waits for the device, once.

        Returns:
            tuple: Norms of the unscaled parts; the average loss of the
            window, NaN if unknown; and whether the device has found a value
            that is not finite and left the weights alone.
        """
        # Not `item()`: on a CPU `tolist()` is a plain read of memory.
        if self.found_inf is None and self.part_norms.is_cpu:
            norms: list[float] = self.part_norms.tolist()
            loss: Any = math.nan if self.loss is None else self.loss.tolist()
            found_inf = False
        else:
            # One copy to the host for all of them.
            extras = [
                one for one in (self.loss, self.found_inf) if one is not None
            ]
            norms = torch.cat(
                [
                    self.part_norms,
                    *(one.to(self.device).reshape(1) for one in extras),
                ]
            ).tolist()
            found_inf = self.found_inf is not None and norms.pop() != 0.0
            loss = math.nan if self.loss is None else norms.pop()
        if self.grad_scale != 1.0:
            norms = [norm / self.grad_scale for norm in norms]
        return norms, loss, found_inf

    def wide_part_norms(self) -> Tensor:
        """Scaled norms of the parts in double precision, on the host."""
        return torch.stack(
            [
                grad_health.wide_total_norm(
                    [self.grads[index] for index in part.indices],
                    self.plan.norm_type,
                )
                for part in self.plan.parts
            ]
        )

    def find_culprits(self) -> list[tuple[Tensor, str]]:
        """The parameters whose gradient holds 'NaN' or 'Inf'."""
        found = grad_health.find_nonfinite(self.grads, self.norms.tolist())
        return [(self.params[index], kind) for index, kind in found.items()]

    @contextmanager
    def gradients_in_place(self) -> Iterator[None]:
        """Undo, for a while, a ``zero_grad`` that came before the verdict."""
        present = [param.grad for param in self.params]
        for param, grad in zip(self.params, self._gradients()):
            param.grad = grad
        try:
            yield
        finally:
            for param, original in zip(self.params, present):
                param.grad = original

    def drop_gradients(self) -> None:
        """Clear the judged gradients, but none that came after them."""
        for param, grad in zip(self.params, self._gradients()):
            if param.grad is grad:
                param.grad = None

    def let_write(self) -> None:
        """Have the parameters hold what is going to be written to."""
        for index in self.as_given:
            param = self.params[index]
            if param.grad is not None:
                # Others may have unscaled it in the meantime.
                param.grad = self.grads[index] = param.grad.coalesce()
        self.as_given = {}

    def _gradients(self) -> list[Tensor]:
        """The gradients that the parameters had."""
        if not self.as_given:
            return self.grads
        return [self.as_given.get(i, g) for i, g in enumerate(self.grads)]


def live_gradients(optimizer: Optimizer) -> Live:
    """The parameters of an optimizer that have a gradient, and those.

    Sparse gradients are coalesced; as they were given, by index, they come
    third.
    """
    params: list[Tensor] = []
    grads: list[Tensor] = []
    as_given: dict[int, Tensor] = {}
    for group in optimizer.param_groups:
        for param in group['params']:
            grad = param.grad
            if grad is None or grad.numel() == 0:
                continue
            if grad.is_sparse and not grad.is_coalesced():
                # Values of one index count together, also for overflow.
                as_given[len(grads)] = grad
                grad = grad.coalesce()
            params.append(param)
            grads.append(grad)
    return params, grads, as_given


def scale_gradients(grads: list[Tensor], factor: float) -> None:
    """Multiply gradients in place."""
    if factor != 1.0:
        torch._foreach_mul_(
            [grad_health.stored_values(grad) for grad in grads], factor
        )


def backward_if_finite(
    loss: Tensor, params: Sequence[Tensor], **kwargs: Any
) -> bool:
    """Back-propagate, but leave out gradients that are not finite.

    Takes memory for one more copy of the gradients, and waits for the device.

    Args:
        loss (Tensor): The loss.
        params (Sequence[Tensor]): All that may get a gradient. If any is not
            finite, what they had before stays as it was.
        **kwargs: For ``loss.backward``.

    Returns:
        bool: Whether all of them are finite, and are kept.
    """
    before = [param.grad for param in params]
    for param in params:
        param.grad = None
    is_finite = False
    try:
        loss.backward(**kwargs)
        is_finite = _are_finite(params)
    finally:
        for param, grad in zip(params, before):
            if not is_finite or param.grad is None:
                param.grad = grad
            elif grad is not None:
                # As autograd adds them.
                param.grad = grad.add_(param.grad)
    return is_finite


def _are_finite(params: Sequence[Tensor]) -> bool:
    grads = [
        param.grad.coalesce() if param.grad.is_sparse else param.grad
        for param in params
        if param.grad is not None and param.grad.numel()
    ]
    return not find_nonfinite(grads, gradient_norms(grads).tolist())
