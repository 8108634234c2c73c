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
        self._unprinted: list[int] = []

    def allows(self, iteration: int) -> bool:
        """Whether a line may be printed; if not, it is counted."""
        full = len(self._printed) == self._printed.maxlen
        if full and iteration - self._printed[0] < self._per:
            self._unprinted.append(iteration)
            return False
        self._printed.append(iteration)
        return True

    def take_unprinted(self) -> tuple[int, int, int] | None:
        """Lines not printed since the last call: count, first, last."""
        if not self._unprinted:
            return None
        facts = len(self._unprinted), self._unprinted[0], self._unprinted[-1]
        self._unprinted = []
        return facts
