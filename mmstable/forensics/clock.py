"""How long may it take?"""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """The time for an investigation is over."""


class Clock:
    """Counts the seconds of an investigation.

    Args:
        limit (float): How many there are.
    """

    def __init__(self, limit: float) -> None:
        self._start = time.monotonic()
        self.limit = limit

    @property
    def seconds(self) -> float:
        """How many are over."""
        return time.monotonic() - self._start

    def check(self) -> None:
        """Raise if all are over.

        Raises:
            OutOfTime: If they are.
        """
        if self.seconds > self.limit:
            raise OutOfTime
