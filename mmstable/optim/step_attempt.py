"""One optimizer step in the making: measured gradients and their verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import time as now
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.numerics import grad_health
from mmstable.optim.clip_plan import ClipPlan
from mmstable.optim.window import Window

# Parameters, their gradients, and some of these as they were given.
Live = tuple[list[Tensor], list[Tensor], dict[int, Tensor]]


class Measured(NamedTuple):
    """What the host knows of a step.

    Args:
        norms (list[float]): Norms of the unscaled parts.
        loss (float): The average loss of the window; NaN if unknown.
        withheld (bool): Whether a step that ran ahead was left out.
    """

    norms: list[float]
    loss: float
    withheld: bool


@dataclass
class StepAttempt:
    """The gradients of a step, with norms that are still on the device.

    Args:
        params (list[Tensor]): The parameters that have a gradient.
        grads (list[Tensor]): Their gradients, sparse ones coalesced. They
            are kept until the step is judged, so that a huge norm can be
            told from a NaN.
        norms (Tensor): One norm for each gradient, still scaled.
        plan (ClipPlan): Which of them are clipped together.
        part_norms (Tensor): One norm for each part of the plan, still
            scaled.
        window (Window): The losses that the gradients come from.
        loss_scale (float): The scale of those losses.
        magnification (float): By what the gradients are larger than the
            average's: the loss scale, less what was left out of the window.
        iteration (int): Training iterations done, this one included.
        loss (Tensor, optional): The average loss of the window, if anybody
            wants to know it. Defaults to None.
        step_kwargs (dict): For ``optimizer.step``. Defaults to {}.
        withheld (Tensor, optional): Of a step that runs ahead, 1.0 if the
            device has left the weights alone. Defaults to None.
        told_loss (float, optional): What the report says about the loss.
            Defaults to None.
        clipped_norm (float, optional): Unscaled norm after clipping value
            by value. Defaults to None.
        is_whole (bool): Whether the gradients are all there are, and not
            this rank's part of them. Defaults to True.
        as_given (dict[int, Tensor]): The sparse gradients that were not
            coalesced, by index: optimizers round those otherwise. Defaults
            to {}.
        time (float): When the gradients were there, in seconds since the
            epoch. Defaults to now.
    """

    params: list[Tensor]
    grads: list[Tensor]
    norms: Tensor
    plan: ClipPlan
    part_norms: Tensor
    window: Window
    loss_scale: float
    magnification: float
    iteration: int
    loss: Tensor | None = None
    step_kwargs: dict[str, Any] = field(default_factory=dict)
    withheld: Tensor | None = None
    told_loss: float | None = None
    clipped_norm: float | None = None
    is_whole: bool = True
    as_given: dict[int, Tensor] = field(default_factory=dict)
    time: float = field(default_factory=now)

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self.part_norms.device

    @property
    def is_on_host(self) -> bool:
        """Whether the verdict can be read without waiting for a device."""
        return self.part_norms.device.type == 'cpu'

    def read(self) -> Measured:
        """What was measured; waits for the device, once."""
        # Not `item()`: on a CPU `tolist()` is a plain read of memory.
        if self.is_on_host:
            norms: list[float] = self.part_norms.tolist()
            loss: float = math.nan
            if self.loss is not None:
                loss = self.loss.tolist()  # type: ignore[assignment]
            withheld = False
        else:
            norms, loss, withheld = self._read_device()
        if self.magnification != 1.0:
            norms = [norm / self.magnification for norm in norms]
        return Measured(norms, loss, withheld)

    def _read_device(self) -> tuple[list[float], float, bool]:
        parts = [self.part_norms]
        for extra in (self.loss, self.withheld):
            if extra is not None:
                parts.append(extra.to(self.device).reshape(1))
        values = torch.cat(parts).tolist() if parts[1:] else parts[0].tolist()
        withheld = self.withheld is not None and values.pop() != 0.0
        loss = math.nan if self.loss is None else values.pop()
        return values, loss, withheld

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
