"""A factor on the learning rate that finds its way back to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LearningRateRamp:
    """A factor that rises in a straight line from a low value to 1.

    Args:
        length (int): Iterations from a cut back to 1; 0 to stay there.
        start (float): The factor at iteration 0. Defaults to 1.0.
        start_length (int): Iterations from there to 1. Defaults to 0.
        least (float): Cuts end here. Defaults to 1e-3.
    """

    def __init__(
        self,
        length: int,
        start: float = 1.0,
        start_length: int = 0,
        least: float = 1e-3,
    ) -> None:
        self._recovery = length
        self._least = least
        self._from, self._begin, self._length = start, 0, start_length

    def factor(self, iteration: int) -> float:
        """What to multiply the learning rate of an iteration by."""
        if self._from == 1.0 or self._length == 0:
            return self._from
        share = (iteration - self._begin) / self._length
        return self._from + (1.0 - self._from) * min(max(share, 0.0), 1.0)

    def cut(self, iteration: int, by: float) -> float:
        """Lower the factor, and let it rise again from there.

        Args:
            iteration (int): From which one on.
            by (float): What to multiply the factor by.

        Returns:
            float: The factor now.
        """
        self._from = max(self.factor(iteration) * by, self._least)
        self._begin, self._length = iteration, self._recovery
        return self._from

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'from': self._from,
            'begin': self._begin,
            'length': self._length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._from = state['from']
        self._begin = state['begin']
        self._length = state['length']
