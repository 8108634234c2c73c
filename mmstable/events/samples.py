"""Losses, rates, memory and times of a running training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from numbers import Real
from typing import Any

import psutil
import torch
from mmengine.optim import BaseOptimWrapper
from torch import Tensor

from mmstable import runner_view
from mmstable.events.records import StepReport, WrapperSample


def read_losses(outputs: Mapping[str, Any] | None) -> dict[str, float]:
    """Read the losses among the outputs of a training iteration.

    Args:
        outputs (Mapping, optional): ``outputs`` of ``after_train_iter``.
    """
    if not isinstance(outputs, Mapping):
        return {}
    losses = {}
    for name, value in outputs.items():
        if 'loss' not in name:
            continue
        if isinstance(value, Tensor) and value.numel() == 1:
            losses[name] = float(value.detach())
        elif isinstance(value, Real):
            losses[name] = float(value)
    return losses


def read_lr(wrapper: BaseOptimWrapper) -> float | None:
    """Read the learning rate of the first parameter group."""
    rates = wrapper.get_lr().get('lr')
    return float(rates[0]) if rates else None


def read_scale(wrapper: BaseOptimWrapper) -> float | None:
    """Read the loss scale; None if losses are not scaled."""
    scaler = runner_view.loss_scaler(wrapper)
    return None if scaler is None else float(scaler.get_scale())


def sample_wrapper(
    wrapper: BaseOptimWrapper,
    newest: StepReport | None,
    norms: Mapping[str, float],
) -> WrapperSample:
    """Sample an optimizer wrapper.

    Args:
        wrapper (BaseOptimWrapper): The wrapper.
        newest (StepReport, optional): Its newest step, if it has one.
        norms (Mapping): Norms of its gradients by module.
    """
    return WrapperSample(
        lr=read_lr(wrapper),
        grad_norm=None if newest is None else newest.grad_norm,
        loss_scale=read_scale(wrapper),
        clipped_norm=None if newest is None else newest.clipped_norm,
        module_norms=norms,
    )


def host_memory() -> int:
    """Resident bytes of this process."""
    return psutil.Process().memory_info().rss


def device_memory(device: torch.device) -> tuple[int | None, int | None]:
    """Allocated bytes on a device now and at most; None on a CPU."""
    # torch.cuda, torch.npu, torch.xpu, ... agree on these names, and
    # torch.accelerator has them only from torch 2.9 on.
    module = getattr(torch, device.type, None)
    now = getattr(module, 'memory_allocated', None)
    peak = getattr(module, 'max_memory_allocated', None)
    return (
        None if now is None else int(now(device)),
        None if peak is None else int(peak(device)),
    )


class IterationTimer:
    """Mean time of the iterations between two heartbeats.

    Args:
        iteration (int): The iteration that has just ended.
    """

    def __init__(self, iteration: int) -> None:
        self._iteration = iteration
        self._start = time.perf_counter()
        self._paused_at: float | None = None

    def pause(self) -> None:
        """Leave out the time from now on."""
        self._paused_at = time.perf_counter()

    def go_on(self) -> None:
        """End a pause."""
        if self._paused_at is not None:
            self._start += time.perf_counter() - self._paused_at
        self._paused_at = None

    def lap(self, iteration: int) -> float | None:
        """Mean seconds for an iteration since the last call, if any."""
        count = iteration - self._iteration
        if count == 0:
            return None
        now = time.perf_counter()
        mean = (now - self._start) / count
        self._start, self._iteration = now, iteration
        return mean
