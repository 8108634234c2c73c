"""Learning rates that somebody has changed while the schedule runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable

from torch.optim import Optimizer

from mmstable.optim.before_step import before_step

Group = dict[str, Any]


class LiveRates:
    """Multiplies learning rates while an optimizer steps.

    Schedules compute a rate from the one before, and snapshots and
    checkpoints hold it. None of them sees the factor: it is put on right
    before a step, and taken off right after it.
    """

    def __init__(self) -> None:
        # By wrapper, one for each of its groups.
        self.factors: dict[str, list[float]] = {}
        # Groups that are multiplied right now, their own rates, and those
        # that they have instead.
        self.scheduled: list[tuple[Group, Any, Any]] = []
        self._optimizers: dict[str, Optimizer] = {}
        self._ends: list[Callable[[], Any]] = []

    def bind(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Be called before and after steps, where there is a factor."""
        self.unbind()
        self._optimizers = dict(optimizers)
        self._listen()

    def unbind(self) -> None:
        """Leave the optimizers alone."""
        self.take_off()
        for end in self._ends:
            end()
        self._ends = []

    def rates(self) -> dict[str, list[float]]:
        """The rates that steps are made with, by wrapper and group."""
        # Other threads ask, too: nothing may be written.
        on = {id(group) for group, *_ in tuple(self.scheduled)}
        return {
            name: [
                float(group['lr']) * (1.0 if id(group) in on else factor)
                for group, factor in zip(one.param_groups, self._of(name))
            ]
            for name, one in self._optimizers.items()
        }

    def multiply(self, name: str, ratios: Sequence[float]) -> None:
        """Change the factors of a wrapper.

        Args:
            name (str): The wrapper.
            ratios (Sequence[float]): What to multiply them by; groups beyond
                the last one are left alone.
        """
        old = self._of(name)
        more = [*ratios, *[1.0] * len(old)]
        self.factors[name] = [a * b for a, b in zip(old, more)]
        self._listen()

    @contextmanager
    def shown(self) -> Iterator[list[tuple[Group, Any]]]:
        """Let all groups have the rates that steps are made with.

        Between two steps only. Afterwards they have their own again: those
        that are yielded, and can be replaced.
        """
        own = [
            (group, group['lr'])
            for one in self._optimizers.values()
            for group in one.param_groups
        ]
        for name, one in self._optimizers.items():
            for group, factor in zip(one.param_groups, self._of(name)):
                if factor != 1.0:
                    group['lr'] = group['lr'] * factor
        try:
            yield own
        finally:
            for group, rate in own:
                group['lr'] = rate

    def take_off(self) -> None:
        """Give all groups their own rates."""
        for group, own, product in self.scheduled:
            # Unless somebody else has done so.
            if group['lr'] is product:
                group['lr'] = own
        self.scheduled.clear()

    def _of(self, name: str) -> list[float]:
        known = self.factors.get(name, [])
        count = len(self._optimizers[name].param_groups)
        return [*known, *[1.0] * count][:count]

    def _listen(self) -> None:
        if self._ends or not self.factors:
            return
        for name, one in self._optimizers.items():
            self._ends += [
                before_step(one, partial(self._put_on, name)),
                one.register_step_post_hook(self._after_step).remove,
            ]

    def _after_step(self, *_: Any) -> None:
        self.take_off()

    def _put_on(self, name: str, *_: Any) -> None:
        self.take_off()
        groups = self._optimizers[name].param_groups
        for group, factor in zip(groups, self._of(name)):
            if factor != 1.0:
                own, product = group['lr'], group['lr'] * factor
                group['lr'] = product
                self.scheduled.append((group, own, product))
