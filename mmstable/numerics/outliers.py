"""Do numbers far above the others belong to their series?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from mmstable.checked_json import count, list_of, tuple_of, within
from mmstable.numerics.yardstick import HIGHEST


class Recurrence(NamedTuple):
    """Outliers that have come often enough to be expected.

    Args:
        times (int): How many have come.
        among (int): Among how many numbers.
        height (float): How far they are above the others, but for the
            highest of them.
    """

    times: int
    among: int
    height: float


class Outliers:
    """The newest outliers of a series that has fallen back from them.

    A fault of a moment does not come back; hard batches, wrong labels and
    terms of a loss that are not in every step do.

    Args:
        *rules (tuple[int, int]): So many among so many numbers belong to the
            series.
    """

    saved = staticmethod(list_of(tuple_of(count, within(0, HIGHEST))))

    def __init__(self, *rules: tuple[int, int]) -> None:
        self._rules = rules
        # The place of each in the series, and its height.
        self._newest: deque[tuple[int, float]] = deque(
            maxlen=max(times for times, _ in rules)
        )

    def add(self, place: int, height: float) -> Recurrence | None:
        """Remember one; those that are to be expected from now on, if any.

        Args:
            place (int): How many numbers have come before it.
            height (float): How far it is above the others.
        """
        self._newest.append((place, height))
        found = None
        for times, among in self._rules:
            found = found or self._recurrence(times, among)
        return found

    def _recurrence(self, times: int, among: int) -> Recurrence | None:
        newest = list(self._newest)[-times:]
        came_among = newest[-1][0] - newest[0][0] + 1
        if len(newest) < times or came_among > among:
            return None
        # The highest may be a fault in spite of the others.
        _, height = sorted(newest, key=itemgetter(1))[-2]
        return Recurrence(times, came_among, height)

    def state(self) -> list[list[float]]:
        """What a resumed run has to know."""
        return [[place, height] for place, height in self._newest]

    def load(self, state: Iterable[tuple[int, float]]) -> None:
        """Take over what :meth:`state` gave."""
        self._newest.clear()
        self._newest.extend(state)
