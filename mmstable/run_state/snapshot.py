"""The state of a run in host memory, and two of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Snapshot(NamedTuple):
    """What every part of the state captured, and the memory it took."""

    parts: list[Any]
    memory: dict[str, Tensor]


class Snapshots:
    """The newest, and an older one.

    A rollback goes to the newest one. If that did not help, that is, if the
    next rollback comes before a new one was taken, it goes to the older one.

    Args:
        span (int): How many iterations the older one may be behind.
    """

    COUNT = 2

    def __init__(self, span: int) -> None:
        self._span = span
        self._kept: list[tuple[int, Snapshot]] = []
        self._used: Snapshot | None = None

    def outdated(self, iteration: int) -> Snapshot | None:
        """The one that the next takes the place of, if there are two.

        Args:
            iteration (int): Of the next.
        """
        if len(self._kept) < self.COUNT:
            return None
        return self._kept[self._outdated(iteration)][1]

    def _outdated(self, iteration: int) -> int:
        # What goes wrong slowly is not mended by what is nearly as new.
        return int(iteration - self._kept[0][0] <= self._span)

    def add(self, iteration: int, snapshot: Snapshot) -> None:
        """Keep one, in the place of an outdated one if there are two."""
        if len(self._kept) == self.COUNT:
            del self._kept[self._outdated(iteration)]
        self._kept.append((iteration, snapshot))
        self._used = None

    def choose(self) -> tuple[int, Snapshot] | None:
        """Which to restore, and its iteration; None if there is none."""
        if len(self._kept) > 1 and self._kept[-1][1] is self._used:
            # What did not help is nothing to keep.
            self._kept.pop()
        if not self._kept:
            return None
        self._used = self._kept[-1][1]
        return self._kept[-1]
