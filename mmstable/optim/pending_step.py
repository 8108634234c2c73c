"""One optimizer step before its verdict: losses, gradients and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.dist.collectives import Shards
from mmstable.events import Fault
from mmstable.events.saved import Saved
from mmstable.io.schema import count, within
from mmstable.optim import grad_health
from mmstable.optim.clipping import ClipPlan
from mmstable.optim.grad_health import find_nonfinite, gradient_norms

# Parameters, their gradients, and these as the parameters have them.
Live = tuple[list[Tensor], list[Tensor], list[Tensor]]


@dataclass(eq=False)
class PendingStep:
    """One optimizer step, from its first loss to its verdict.

    It gathers the losses of one iteration, or of several that are
    accumulated (its window); :meth:`measure` then adds the gradients with
    their norms, which stay on the device.

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
        iteration (int): Training iterations done, this one included.
        is_first (bool): Whether it is the first step of its iteration.
        time (float): When it was made, in seconds since the epoch.
        kwargs (dict): For ``optimizer.step``.
        loss_scale (float): The scale of the losses.
        loss (Tensor, optional): The average loss, if it is known.
        reported_loss (float, optional): The same on the host, if it is
            finite.
        found_inf (Tensor, optional): Of a step that runs ahead, 1.0 if the
            device has left the weights alone.
        clipped_norm (float, optional): Unscaled norm after clipping value
            by value.
        is_whole (bool): Whether the gradients are all there are, and not
            this rank's part of them.
        grad_scale (float): By what the gradients are larger than the
            average's: the loss scale, less what was dropped.
        params (list[Tensor]): The parameters that have a gradient.
        grads (list[Tensor]): Their gradients, sparse ones coalesced, kept
            so that a huge norm can be distinguished from a NaN.
        given (list[Tensor]): The gradients as the parameters have them:
            optimizers round sparse ones that are coalesced otherwise.
        norms (Tensor): One norm for each gradient, still scaled.
        plan (ClipPlan): Which of them are clipped together.
        part_norms (Tensor): One norm for each part of the plan, still
            scaled.
    """

    kept: int = 0
    dropped: int = 0
    all_iterations: int = 1
    all_dropped: int = 0
    forgotten: int = 0
    is_fresh: bool = False
    had_oom: bool = False
    is_lost: bool = False
    rescale: float = 1.0
    iteration: int = 0
    is_first: bool = True
    time: float = 0.0
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss_scale: float = 1.0
    loss: Tensor | None = None
    reported_loss: float | None = None
    found_inf: Tensor | None = None
    clipped_norm: float | None = None
    is_whole: bool = True
    grad_scale: float = field(init=False)
    params: list[Tensor] = field(init=False)
    grads: list[Tensor] = field(init=False)
    given: list[Tensor] = field(init=False)
    norms: Tensor = field(init=False)
    plan: ClipPlan = field(init=False)
    part_norms: Tensor = field(init=False)
    _losses: list[Tensor] = field(default_factory=list)
    _terms: list[dict[str, Tensor]] = field(default_factory=list)

    def keep(self, loss: Tensor) -> None:
        """Note a loss, which is looked at only if the step is bad."""
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

    def measure(
        self, live: Live, plan: ClipPlan, shards: Shards | None = None
    ) -> None:
        """Measure gradients, on their device.

        Args:
            live (Live): From :func:`live_gradients`.
            plan (ClipPlan): Which of them are clipped together.
            shards (Shards, optional): Which ranks hold parts of them; None
                if they are whole. Defaults to None.
        """
        self.params, self.grads, self.given = live
        self.plan, self.is_whole = plan, shards is None
        self.grad_scale = self.loss_scale * self.rescale
        self.norms = gradient_norms(self.grads, plan.norm_type)
        if shards is None:
            self.part_norms = plan.part_norms(self.norms)
        else:
            counted = shards.count_once(self.params, self.norms)
            self.part_norms = shards.total_norms(
                plan.part_norms(counted), plan.norm_type
            )
        if self._losses:
            # The average, on the device.
            loss = self._losses[0]
            if len(self._losses) > 1 or loss.dim():
                sums = [one.sum().to(loss.device) for one in self._losses]
                loss = torch.stack(sums).sum()
            missing = self.dropped + self.forgotten
            self.loss = loss * (1 + missing / self.kept) if missing else loss

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
        found_inf = False
        # Not `item()`: on a CPU `tolist()` is a plain read of memory.
        if self.found_inf is None and self.part_norms.is_cpu:
            norms: list[float] = self.part_norms.tolist()
            loss: Any = math.nan if self.loss is None else self.loss.tolist()
        else:
            # One copy to the host for all of them.
            device = self.part_norms.device
            extras = [
                one.to(device).reshape(1)
                for one in (self.loss, self.found_inf)
                if one is not None
            ]
            norms = torch.cat([self.part_norms, *extras]).tolist()
            found_inf = self.found_inf is not None and norms.pop() != 0.0
            loss = math.nan if self.loss is None else norms.pop()
        if self.grad_scale != 1.0:
            norms = [norm / self.grad_scale for norm in norms]
        if math.isfinite(loss):
            self.reported_loss = loss
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
        for param, grad in zip(self.params, self.given):
            param.grad = grad
        try:
            yield
        finally:
            for param, original in zip(self.params, present):
                param.grad = original

    def drop_gradients(self) -> None:
        """Clear the judged gradients, but none that came after them."""
        for param, grad in zip(self.params, self.given):
            if param.grad is grad:
                param.grad = None

    def let_write(self) -> None:
        """Have the parameters hold what is going to be written to."""
        if self.given is self.grads:
            return
        for index, param in enumerate(self.params):
            if param.grad is not None and param.grad.is_sparse:
                # Others may have unscaled it in the meantime.
                param.grad = self.grads[index] = param.grad.coalesce()
        self.given = self.grads


def _loss_terms(outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: value.detach()
        for name, value in outputs.items()
        if 'loss' in name and isinstance(value, Tensor)
    }


def live_gradients(optimizer: Optimizer) -> Live:
    """The parameters of an optimizer that have a gradient, and those.

    Sparse gradients are coalesced; as they were given, they come third.
    """
    params: list[Tensor] = []
    given: list[Tensor] = []
    is_sparse = False
    for group in optimizer.param_groups:
        for param in group['params']:
            grad = param.grad
            if grad is None or grad.numel() == 0:
                continue
            is_sparse |= grad.is_sparse
            params.append(param)
            given.append(grad)
    if not is_sparse:
        return params, given, given
    # Values of one index count together, also for overflow.
    grads = [grad.coalesce() if grad.is_sparse else grad for grad in given]
    return params, grads, given


class Peak(Saved):
    """The largest magnitude of a series so far, which fades slowly.

    Args:
        factor (float): A number above so many peaks is suspicious. Defaults
            to 10.0.
        warmup (int): Numbers before any is suspicious. Defaults to 50.
    """

    state = dict(peak=within(0), count=count)
    # What is left of the peak after one more number: a third after 10,000.
    _KEPT = math.exp(-1 / 10_000)

    def __init__(self, factor: float = 10.0, warmup: int = 50) -> None:
        self._factor, self._warmup = factor, warmup
        self.count = 0
        self.peak = 0.0
        # A number above this is suspicious.
        self.limit = math.inf

    def observe(self, value: float) -> None:
        """Take a finite number of the series into account."""
        self.count += 1
        self.peak = max(self.peak * self._KEPT, abs(value))
        if self.count >= self._warmup:
            # A series of zeros has no peak yet.
            self.limit = self._factor * self.peak or math.inf

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        # The peak, observed again, sets the limit and nothing else.
        self.count -= 1
        self.observe(self.peak)


@dataclass
class StepHold:
    """Which steps are held before their update, and what judges them.

    Args:
        loss (Peak): Of the losses.
        norm (Peak): Of the norms of gradients after clipping.
        judge (Callable): Called with the held step, its norm and its loss:
            the fault to skip it for, or None to apply it.
    """

    loss: Peak
    norm: Peak
    judge: Callable[[PendingStep, float, float], Fault | None]


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
        grads = [
            param.grad.coalesce() if param.grad.is_sparse else param.grad
            for param in params
            if param.grad is not None and param.grad.numel()
        ]
        is_finite = not find_nonfinite(grads, gradient_norms(grads).tolist())
    finally:
        for param, grad in zip(params, before):
            if not is_finite or param.grad is None:
                param.grad = grad
            elif grad is not None:
                # As autograd adds them.
                param.grad = grad.add_(param.grad)
    return is_finite
