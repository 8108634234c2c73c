"""One optimizer step in the making: measured gradients and their verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.numerics import grad_health
from mmstable.optim.clip_plan import ClipPlan
from mmstable.optim.window import Window


@dataclass
class StepAttempt:
    """The gradients of a step, with norms that are still on the device.

    Args:
        params (list[Tensor]): The parameters that have a gradient.
        grads (list[Tensor]): Their gradients. They are kept until the step
            is judged, so that a huge norm can be told from a NaN.
        norms (Tensor): One norm for each gradient, still scaled.
        plan (ClipPlan): Which of them are clipped together.
        part_norms (Tensor): One norm for each part of the plan, still
            scaled.
        window (Window): The losses that the gradients come from.
        loss_scale (float): The scale of those losses.
        magnification (float): By what the gradients are larger than the
            average's: the loss scale, less what was left out of the window.
        iteration (int): Training iterations done, this one included.
        step_kwargs (dict): For ``optimizer.step``. Defaults to {}.
        clipped_norm (float, optional): Unscaled norm after clipping value
            by value. Defaults to None.
        is_whole (bool): Whether the gradients are all there are, and not
            this rank's part of them. Defaults to True.
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
    step_kwargs: dict[str, Any] = field(default_factory=dict)
    clipped_norm: float | None = None
    is_whole: bool = True

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self.part_norms.device

    @property
    def is_on_host(self) -> bool:
        """Whether the verdict can be read without waiting for a device."""
        return self.part_norms.device.type == 'cpu'

    def read_norms(self) -> list[float]:
        """Norms of the unscaled parts; waits for the device."""
        # Not `item()`: on a CPU `tolist()` is a plain read of memory.
        norms: list[float] = self.part_norms.tolist()
        if self.magnification == 1.0:
            return norms
        return [norm / self.magnification for norm in norms]

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
        for param, grad in zip(self.params, self.grads):
            param.grad = grad
        try:
            yield
        finally:
            for param, original in zip(self.params, present):
                param.grad = original

    def drop_gradients(self) -> None:
        """Clear the judged gradients, but none that came after them."""
        for param, grad in zip(self.params, self.grads):
            if param.grad is grad:
                param.grad = None


def live_gradients(
    optimizer: Optimizer,
) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of an optimizer that have a gradient, and those."""
    params, grads = [], []
    for group in optimizer.param_groups:
        for param in group['params']:
            grad = param.grad
            if grad is None or grad.numel() == 0:
                continue
            if grad.is_sparse and not grad.is_coalesced():
                # Values of one index count together, also for overflow.
                grad = param.grad = grad.coalesce()
            params.append(param)
            grads.append(grad)
    return params, grads


def scale_gradients(grads: list[Tensor], factor: float) -> None:
    """Multiply gradients in place."""
    if factor != 1.0:
        torch._foreach_mul_(
            [grad_health.stored_values(grad) for grad in grads], factor
        )
