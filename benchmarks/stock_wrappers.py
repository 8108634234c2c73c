"""The optimizer wrappers to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch.nn import Module


class CpuAmpOptimWrapper(AmpOptimWrapper):
    """mmengine's ``AmpOptimWrapper``, allowed to run on a CPU.

    ``backward``, ``step`` and ``zero_grad`` are mmengine's own; the assertion
    for an accelerator is left out and the scaler is torch's for CPUs.
    """

    def __init__(self, init_scale: float, **kwargs: Any) -> None:
        OptimWrapper.__init__(self, **kwargs)
        self._scale_update_param = None
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=init_scale)
        self.cast_dtype = torch.float16

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """Autocast; mmengine's own refuses fp16 on a CPU."""
        with (
            OptimWrapper.optim_context(self, model),
            torch.autocast('cpu', dtype=self.cast_dtype),
        ):
            yield


class CheckingAmpOptimWrapper(CpuAmpOptimWrapper):
    """The same, guarded in the way that many projects write by hand."""

    def step(self, **kwargs: Any) -> None:
        """Look for NaN and Inf in every gradient, then step."""
        for group in self.optimizer.param_groups:
            for param in group['params']:
                if param.grad is None:
                    continue
                if (
                    torch.isnan(param.grad).any()
                    or torch.isinf(param.grad).any()
                ):
                    self.zero_grad()
                    return
        super().step(**kwargs)
