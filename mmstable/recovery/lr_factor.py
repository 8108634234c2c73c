"""Train with a part of the learning rate that the schedule wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.numerics.lr_ramp import LearningRateRamp

_KEY = 'train/stable/lr_factor'


class LearningRateFactor:
    """Multiplies all learning rates while an iteration runs.

    Schedules compute a rate from the one before, so they must not see the
    factor: it is put on before an iteration, and taken off again before the
    schedules step and checkpoints are saved.

    Args:
        ramp (LearningRateRamp): The factor of each iteration.
        cut_by (float): What an incident multiplies that factor by.
    """

    def __init__(self, ramp: LearningRateRamp, cut_by: float) -> None:
        self.ramp = ramp
        self._cut_by = cut_by
        self._scheduled: list[tuple[dict[str, Any], Any]] = []
        # The newest factor in the log; None if nobody knows.
        self._shown: float | None = None

    def put_on(self, runner: Runner, iteration: int) -> None:
        """Multiply; mmengine has logged the rate of the schedule by now.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        factor = self.ramp.factor(iteration)
        if factor != self._shown:
            self._show(runner, factor)
        if factor == 1.0 or self._scheduled:
            return
        for optimizer in run_view.optimizers(runner).values():
            for group in optimizer.param_groups:
                self._scheduled.append((group, group['lr']))
                group['lr'] = group['lr'] * factor

    def _show(self, runner: Runner, factor: float) -> None:
        hub, self._shown = runner.message_hub, factor
        # A run that always had its full rate has nothing to show; a resumed
        # one may have shown less before.
        if factor != 1.0 or _KEY in hub.log_scalars:
            hub.update_scalar(_KEY, factor)

    def cut(self, iteration: int) -> None:
        """Lower the factor from an iteration on."""
        self.ramp.cut(iteration, self._cut_by)

    def take_off(self) -> None:
        """Give all groups the rates of the schedule."""
        for group, rate in self._scheduled:
            group['lr'] = rate
        self._scheduled.clear()

    def take_off_saved(
        self, runner: Runner, checkpoint: Mapping[str, Any]
    ) -> None:
        """Give a checkpoint the rates of the schedule.

        Any hook may save one while the factor is on. The rates of the run
        stay as they are: the iteration is not over.
        """
        saved = checkpoint.get('optimizer')
        if not self._scheduled or not isinstance(saved, Mapping):
            return
        rates = {id(group): rate for group, rate in self._scheduled}
        for name, optimizer in run_view.optimizers(runner).items():
            is_one_of_many = run_view.has_many_wrappers(runner)
            state = saved.get(name, {}) if is_one_of_many else saved
            groups = state.get('param_groups', ())
            for group, copied in zip(optimizer.param_groups, groups):
                # An optimizer of somebody else may give its own groups away.
                if copied is not group and id(group) in rates:
                    copied['lr'] = rates[id(group)]
