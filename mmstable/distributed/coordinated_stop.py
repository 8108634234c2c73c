"""An iteration after which all ranks stop, agreed on without a collective."""

from __future__ import annotations

import itertools

from mmstable.distributed.store import open_store

_SERIAL = itertools.count()


class CoordinatedStop:
    """Lets one rank ask all others to stop together with it.

    Ranks that average their gradients cannot be further apart than that
    lets them. So a rank that writes into the store, before it averages the
    next ones, is heard by all who look after that.

    Args:
        interval (int): Iterations between two looks.
        window (int): Iterations between two averages.
    """

    def __init__(self, interval: int, window: int) -> None:
        self._interval = interval
        self._window = window
        # The same on all ranks: they train the same runs in the same order.
        self._store = open_store(f'appointment/{next(_SERIAL)}')
        self._is_made = False

    def make(self, iteration: int) -> None:
        """Ask all ranks to stop, after an iteration that is done here."""
        if not self._is_made:
            self._is_made = True
            looks = -(-(iteration + self._window) // self._interval)
            at = str(looks * self._interval)
            self._store.compare_set('at', '', at)

    def is_now(self, iteration: int) -> bool:
        """Whether all ranks stop after this iteration."""
        if iteration % self._interval or not self._store.check(['at']):
            return False
        return int(self._store.get('at')) <= iteration
