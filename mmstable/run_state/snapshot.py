"""The state of a run in host memory, and the two newest of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Snapshot(NamedTuple):
    """What every part of the state captured, and the memory it took."""

    parts: list[Any]
    memory: dict[str, Tensor]


class Snapshots:
    """The two newest.

    A rollback goes to the newest one. If that did not help, that is, if the
    next rollback comes before a new one was taken, it goes to the older one.
    """

    COUNT = 2

    def __init__(self) -> None:
        self._kept: list[tuple[int, Snapshot]] = []
        self._used: Snapshot | None = None

    def oldest(self) -> Snapshot | None:
        """The one to be dropped for the next, if there are two."""
        return self._kept[0][1] if len(self._kept) == self.COUNT else None

    def add(self, iteration: int, snapshot: Snapshot) -> None:
        """Keep one, in the place of the oldest if there are two."""
        self._kept = [*self._kept[1 - self.COUNT :], (iteration, snapshot)]
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
