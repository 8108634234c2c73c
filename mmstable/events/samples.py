"""Numbers of a running training, taken without disturbing it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import Any, Callable

import torch
from mmengine.optim import BaseOptimWrapper
from torch import Tensor

from mmstable import run_view
from mmstable.events.records import WrapperSample
from mmstable.events.step_report import StepReport


def read_losses(outputs: Mapping[str, Any] | None) -> dict[str, float]:
    """The losses among the outputs of a training iteration.

    Args:
        outputs (Mapping, optional): ``outputs`` of ``after_train_iter``.
    """
    if not isinstance(outputs, Mapping):
        return {}
    return {
        name: float(value.detach() if isinstance(value, Tensor) else value)
        for name, value in outputs.items()
        if 'loss' in name and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, Real)


def read_lr(wrapper: BaseOptimWrapper) -> float | None:
    """The learning rate of the first parameter group."""
    rates = wrapper.get_lr().get('lr')
    return float(rates[0]) if rates else None


def read_scale(wrapper: BaseOptimWrapper) -> float | None:
    """The loss scale; None if losses are not scaled."""
    scaler = run_view.loss_scaler(wrapper)
    return None if scaler is None else float(scaler.get_scale())


def sample_wrapper(
    wrapper: BaseOptimWrapper,
    newest: StepReport | None,
    norms: Mapping[str, float],
) -> WrapperSample:
    """An optimizer wrapper as it is now.

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


def host_memory() -> int | None:
    """Resident bytes of this process; None without psutil."""
    read = _memory_reader()
    return None if read is None else read()


@cache
def _memory_reader() -> Callable[[], int] | None:
    try:
        import psutil
    except ImportError:
        return None
    return lambda: psutil.Process().memory_info().rss


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

    The first iteration only starts the clock: before it, a resumed run may
    read its data set up to where it stopped.
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._paused_at: float | None = None
        self._iterations = 0

    def count(self) -> None:
        """Note the end of an iteration."""
        if self._start is None:
            self._start = time.perf_counter()
        else:
            self._iterations += 1

    def pause(self) -> None:
        """Leave out the time from now on."""
        self._paused_at = time.perf_counter()

    def go_on(self) -> None:
        """End a pause."""
        if self._start is not None and self._paused_at is not None:
            self._start += time.perf_counter() - self._paused_at
        self._paused_at = None

    def lap(self) -> float | None:
        """Mean seconds for an iteration since the last call, if any."""
        if self._start is None or self._iterations == 0:
            return None
        now = time.perf_counter()
        mean = (now - self._start) / self._iterations
        self._start, self._iterations = now, 0
        return mean
