"""An iteration after which all ranks stop, agreed on without a collective."""

from __future__ import annotations

import itertools

from mmstable.checked_json import integer
from mmstable.distributed.store import open_store, read_value, write_first

_SERIAL = itertools.count()
_ITERATION = integer(0)


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
        self._store = open_store(f'coordinated_stop/{next(_SERIAL)}')
        self._is_requested = False

    def request(self, iteration: int) -> None:
        """Ask all ranks to stop, after an iteration that is done here."""
        if not self._is_requested:
            self._is_requested = True
            looks = -(-(iteration + self._window) // self._interval)
            at = looks * self._interval
            write_first(self._store, 'at', at, _ITERATION)

    def is_due(self, iteration: int) -> bool:
        """Whether all ranks stop after this iteration."""
        if iteration % self._interval:
            return False
        at = read_value(self._store, 'at', _ITERATION)
        return at is not None and at <= iteration
