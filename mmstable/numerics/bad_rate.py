"""How often steps go wrong, and whether that is still normal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any


class BadRate:
    """The share of bad steps among the recent ones.

    Args:
        window (int): How many steps to look back. Defaults to 200.
        max_rate (float): The share from which on it is too many.
            Defaults to 0.05.
        max_consecutive_bad (int): So many bad ones in a row are too many.
            Defaults to 5.
        least (int): Steps that it takes before a share says anything.
            Defaults to 20.
    """

    def __init__(
        self,
        window: int = 200,
        max_rate: float = 0.05,
        max_consecutive_bad: int = 5,
        least: int = 20,
    ) -> None:
        self._recent: deque[bool] = deque(maxlen=window)
        self._max_rate = max_rate
        self._max_consecutive_bad = max_consecutive_bad
        self._least = least
        self._bad = 0
        self.in_a_row = 0

    def add(self, bad: bool) -> None:
        """Hear of a step."""
        if len(self._recent) == self._recent.maxlen:
            self._bad -= self._recent[0]
        self._recent.append(bad)
        self._bad += bad
        self.in_a_row = self.in_a_row + 1 if bad else 0

    @property
    def rate(self) -> float:
        """The share of bad steps."""
        return self._bad / len(self._recent) if self._recent else 0.0

    @property
    def is_too_high(self) -> bool:
        """Whether this is no longer what healthy training does."""
        if self.in_a_row >= self._max_consecutive_bad:
            return True
        return len(self._recent) >= self._least and self.rate > self._max_rate

    def __str__(self) -> str:
        return f'{self._bad} of the last {len(self._recent)} steps'

    def counts(self) -> tuple[int, int]:
        """Bad steps, and all that are remembered."""
        return self._bad, len(self._recent)

    def clear(self) -> None:
        """Forget all steps."""
        self._recent.clear()
        self._bad = 0
        self.in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'recent': list(self._recent), 'in_a_row': self.in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._recent.clear()
        self._recent.extend(state['recent'])
        self._bad = sum(self._recent)
        self.in_a_row = state['in_a_row']
