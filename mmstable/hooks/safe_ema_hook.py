"""The average of weights that a skipped step does not touch."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from torch import Tensor

from mmstable.messages import say
from mmstable.optim.new_steps import NewSteps, reporting_wrappers
from mmstable.registry import HOOKS, register_globally


@register_globally(HOOKS)
class SafeEMAHook(EMAHook):
    """``EMAHook`` that does not average skipped steps.

    A skipped step leaves the average, its buffers and its step counter as if
    the batch had not been there. With gradient accumulation that goes for
    the whole window; this takes memory for one more copy of the average. Of
    several optimizers, one that skips its step is enough. Without skipped
    steps it is exactly ``EMAHook``, and each reads the checkpoints of the
    other. mmengine's own wrappers do not say what became of a step: with
    them every iteration counts, as in ``EMAHook``.

    Args:
        **kwargs: All of ``EMAHook``, e.g. ``momentum`` and ``begin_iter``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._steps = NewSteps({})
        self._is_told = False
        self._before_window: list[Tensor] | None = None

    def before_train(self, runner: Runner) -> None:
        """Find out whose steps to follow."""
        super().before_train(runner)
        sources = reporting_wrappers(runner)
        self._is_told = bool(sources)
        if not self._is_told:
            runner.logger.warning(say('ema.every_iteration'))
        self._steps = NewSteps(sources)
        self.forget_window()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Update the average, unless the step was skipped."""
        new = [report for _, report in self._steps]
        if any(report.skipped for report in new):
            self._undo_window()
            return
        if new or not self._is_told:
            self.forget_window()
        elif self._before_window is None:
            self._before_window = [one.clone() for one in self._tensors()]
        super().after_train_iter(runner, batch_idx, data_batch, outputs)

    def forget_window(self) -> None:
        """Keep what is there: to be called after a change from outside."""
        self._before_window = None

    def _undo_window(self) -> None:
        if self._before_window is not None:
            with torch.no_grad():
                for now, before in zip(self._tensors(), self._before_window):
                    now.copy_(before)
        self.forget_window()

    def _tensors(self) -> list[Tensor]:
        """All that an update changes, the step counter too."""
        return [*self.ema_model.parameters(), *self.ema_model.buffers()]
