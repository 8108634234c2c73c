"""A factor on the learning rate that finds its way back to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.checked_json import count, record, within


class LearningRateRamp:
    """A warm-up and a cut, both of which rise in a straight line to 1.

    Args:
        length (int): Iterations from a cut back to 1; 0 to stay there.
        start (float): The factor at iteration 0. Defaults to 1.0.
        start_length (int): Iterations from there to 1. Defaults to 0.
        least (float): Cuts end here. Defaults to 1e-3.
    """

    saved = staticmethod(record(cut=within(0, 1), since=count))

    def __init__(
        self,
        length: int,
        start: float = 1.0,
        start_length: int = 0,
        least: float = 1e-3,
    ) -> None:
        self._start, self._start_length = start, start_length
        self.length, self._least = length, least
        self._cut, self._since = 1.0, 0

    def factor(self, iteration: int) -> float:
        """What to multiply the learning rate of an iteration by."""
        warmup = _rise(self._start, iteration, self._start_length)
        return warmup * self._cut_at(iteration)

    def cut(self, iteration: int, by: float) -> float:
        """Lower the factor, and let it rise again from there.

        Args:
            iteration (int): From which one on.
            by (float): What to multiply the factor by.

        Returns:
            float: The factor now.
        """
        self._cut = max(self._cut_at(iteration) * by, self._least)
        self._since = iteration
        return self.factor(iteration)

    def _cut_at(self, iteration: int) -> float:
        return _rise(self._cut, iteration - self._since, self.length)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'cut': self._cut, 'since': self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._cut, self._since = state['cut'], state['since']


def _rise(start: float, done: int, length: int) -> float:
    """From a start to 1 in so many iterations; nowhere if that is 0."""
    if start == 1.0 or length == 0:
        return start
    return start + (1.0 - start) * min(max(done / length, 0.0), 1.0)
