"""The newest numbers of a series, also in order of size."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable, Iterator


class SortedWindow:
    """Remembers the newest numbers and knows their quantiles.

    Args:
        maxlen (int): How many to remember.
    """

    def __init__(self, maxlen: int) -> None:
        self._values: deque[float] = deque(maxlen=maxlen)
        self._ordered: list[float] = []

    @property
    def maxlen(self) -> int | None:
        """How many are remembered at most."""
        return self._values.maxlen

    def append(self, value: float) -> int:
        """Remember one more, and forget the oldest if there are too many.

        Returns:
            int: How many are remembered now.
        """
        values = self._values
        if len(values) == values.maxlen:
            del self._ordered[bisect.bisect_left(self._ordered, values[0])]
        values.append(value)
        bisect.insort(self._ordered, value)
        return len(values)

    def extend(self, values: Iterable[float]) -> None:
        """Remember several."""
        for value in values:
            self.append(value)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._ordered.clear()

    def lower_median(self) -> float:
        """The median, or the value below it; NaN if nothing is there."""
        ordered = self._ordered
        return ordered[(len(ordered) - 1) // 2] if ordered else math.nan

    def quantile(self, share: float) -> float:
        """The value that so large a share of all is below, interpolated."""
        place = (len(self._ordered) - 1) * share
        below = int(place)
        above = min(below + 1, len(self._ordered) - 1)
        rest = place - below
        return self._ordered[below] * (1 - rest) + self._ordered[above] * rest

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)
