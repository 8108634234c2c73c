"""Train with a part of the learning rate that the schedule wants."""

from __future__ import annotations

from typing import Any

from mmengine.runner import Runner

from mmstable.numerics.lr_ramp import LearningRateRamp
from mmstable.run_state.run_tensors import optimizers_of


class LearningRateFactor:
    """Multiplies all learning rates while an iteration runs.

    Schedules compute a rate from the one before, so they must not see the
    factor: it is put on before an iteration, and taken off again before the
    schedules step and checkpoints are saved.

    Args:
        ramp (LearningRateRamp): The factor of each iteration.
    """

    def __init__(self, ramp: LearningRateRamp) -> None:
        self.ramp = ramp
        self._scheduled: list[tuple[dict[str, Any], Any]] = []

    def put_on(self, runner: Runner, iteration: int) -> None:
        """Multiply; mmengine has logged the rate of the schedule by now.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        factor = self.ramp.factor(iteration)
        if factor == 1.0 or self._scheduled:
            return
        runner.message_hub.update_scalar('train/stable/lr_factor', factor)
        for optimizer in optimizers_of(runner):
            for group in optimizer.param_groups:
                self._scheduled.append((group, group['lr']))
                group['lr'] = group['lr'] * factor

    def take_off(self) -> None:
        """Give all groups the rates of the schedule."""
        for group, rate in self._scheduled:
            group['lr'] = rate
        self._scheduled.clear()
