"""The average of weights that a skipped step does not touch."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from torch import Tensor

from mmstable.events import Outcome, StepReport
from mmstable.messages import _
from mmstable.optim.observer import monitor_of
from mmstable.registry import HOOKS, register_globally


@register_globally(HOOKS)
class SafeEMAHook(EMAHook):
    """``EMAHook`` that does not average skipped steps.

    A skipped step leaves the average, its buffers and its step counter as if
    the batch had not been there. With gradient accumulation that goes for
    the whole window; this takes memory for one more copy of the average. Of
    several optimizers, one that skips is enough; one that steps several times
    in an iteration skips if it applies none of them. Without skipped
    steps it is exactly ``EMAHook``, and each reads the checkpoints of the
    other. mmengine's own wrappers do not say what became of a step: with
    them every iteration counts, as in ``EMAHook``.

    Args:
        **kwargs: All of ``EMAHook``, e.g. ``momentum`` and ``begin_iter``.
    """

    # It does not obey mmengine's own wrappers.
    observes_stock = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Of this iteration: wrapper to whether all of its steps are skipped.
        self._skipped: dict[str, bool] = {}
        # The wrappers that are obeyed.
        self._obeyed: set[str] = set()
        self._before_window: list[Tensor] | None = None

    def before_train(self, runner: Runner) -> None:
        """Find out whose steps to follow."""
        super().before_train(runner)
        monitor = monitor_of(runner)
        monitor.bind(runner)
        self._obeyed = {
            name
            for name, source in monitor.sources.items()
            if not source.is_stock
        }
        if not self._obeyed:
            runner.logger.warning(
                _(
                    'SafeEMAHook: the optimizer wrapper does not report '
                    'skipped steps, so every iteration is averaged, as by '
                    "EMAHook. Use type='mmstable.SafeOptimWrapper' or "
                    "'mmstable.SafeAmpOptimWrapper' to skip them."
                )
            )
        self.forget_window()

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Note what became of the steps of each wrapper."""
        if name in self._obeyed:
            skipped = report.outcome is Outcome.SKIPPED
            self._skipped[name] = skipped and self._skipped.get(name, True)

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Update the average, unless the step was skipped."""
        steps, self._skipped = self._skipped, {}
        if True in steps.values():
            self._undo_window()
            return
        if steps or not self._obeyed:
            self.forget_window()
        elif self._before_window is None:
            self._before_window = [one.clone() for one in self._tensors()]
        super().after_train_iter(runner, *args, **kwargs)

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
