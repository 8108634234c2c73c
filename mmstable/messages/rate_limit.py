"""Not every line of a burst is worth printing; none gets lost silently."""

from __future__ import annotations

from collections import deque


class RateLimit:
    """At most so many lines in so many iterations.

    Args:
        most (int): How many lines.
        per (int): In how many iterations.
    """

    def __init__(self, most: int, per: int) -> None:
        self._per = per
        self._printed: deque[int] = deque(maxlen=most)
        self._left_out: list[int] = []

    def allows(self, iteration: int) -> bool:
        """Whether there is a line left; if not, this one is left out."""
        full = len(self._printed) == self._printed.maxlen
        if full and iteration - self._printed[0] < self._per:
            self._left_out.append(iteration)
            return False
        self._printed.append(iteration)
        return True

    def take_left_out(self) -> tuple[int, int, int] | None:
        """How many were left out since the last call, the first, the last."""
        if not self._left_out:
            return None
        facts = len(self._left_out), self._left_out[0], self._left_out[-1]
        self._left_out = []
        return facts
