"""An iteration after which all ranks save or stop, agreed by the store."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from signal import Signals

from mmstable.checked_json import integer, one_of, record
from mmstable.distributed.store import open_store, read_value, write_first

_SERIAL = itertools.count()


class CoordinatedStop:
    """Lets one rank ask all others to obey a signal together with it.

    Ranks that average their gradients cannot be further apart than that
    lets them. So what a rank writes into the store, before it averages the
    next ones, is seen by all who look after that. All ranks look after the
    same iterations: those that complete a step.

    Args:
        names (Collection[str]): The names of the signals that ranks obey.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._check = record(after=integer(0), signal=one_of(*names))
        # The same on all ranks: they train the same runs in the same order.
        self._store = open_store(f'coordinated_stop/{next(_SERIAL)}')
        # One for each signal that all ranks have obeyed, and one more.
        self._round = 0
        self._is_requested = False

    def request(self, iteration: int, number: Signals) -> None:
        """Ask all ranks to obey a signal, after the next step.

        Args:
            iteration (int): The iteration that is done here.
            number (Signals): The signal.
        """
        if not self._is_requested:
            self._is_requested = True
            value = dict(after=iteration, signal=number.name)
            write_first(self._store, self._key, value, self._check)

    def due(self, iteration: int) -> Signals | None:
        """The signal that all ranks obey now, if there is one.

        Args:
            iteration (int): The iteration that has completed a step.
        """
        request = read_value(self._store, self._key, self._check)
        if request is None or request['after'] >= iteration:
            return None
        self._round += 1
        self._is_requested = False
        return Signals[request['signal']]

    @property
    def _key(self) -> str:
        return f'request/{self._round}'
