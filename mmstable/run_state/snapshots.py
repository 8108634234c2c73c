"""The two newest snapshots of a run, and which of them to go back to."""

from __future__ import annotations

from mmengine.runner import Runner

from mmstable.run_state.snapshot import Snapshot


class Snapshots:
    """A rolling two.

    A rollback goes to the newest one. If that did not help, that is, if the
    next rollback comes before a new one was taken, it goes to the older one.
    """

    def __init__(self) -> None:
        self._kept: list[Snapshot] = []
        self._used: Snapshot | None = None

    def take(self, runner: Runner, iteration: int) -> None:
        """Take one, in the memory of the oldest if there are two."""
        oldest = self._kept.pop(0) if len(self._kept) == 2 else Snapshot()
        oldest.take(runner, iteration)
        self._kept.append(oldest)
        self._used = None

    def choose(self) -> Snapshot | None:
        """Where to go back to; None if there is nothing."""
        if len(self._kept) == 2 and self._kept[1] is self._used:
            # What did not help is nothing to keep.
            self._kept.pop()
        self._used = self._kept[-1] if self._kept else None
        return self._used
