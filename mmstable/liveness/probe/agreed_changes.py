"""Changes that all ranks make after the same iteration."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from typing import Any, Callable

from mmstable.checked_json import integer, list_of, number, record, text
from mmstable.distributed.store import open_store, read_value, write_first

# Iterations between two looks of all ranks into their store.
INTERVAL = 10
_SERIAL = itertools.count()
_MOST_GROUPS = 1 << 14
_CHANGE = record(
    what=text(10), wrapper=text(1000), values=list_of(number, _MOST_GROUPS)
)
_REQUEST = record(after=integer(0), token=text(32), change=_CHANGE)


class AgreedChanges:
    """Lets one rank change something on all of them.

    All ranks look after the same iterations. Ranks that average gradients
    cannot be further apart than that lets them: what one has written at one
    look, all see at the next.

    Args:
        apply (Callable): Makes a change.
    """

    def __init__(self, apply: Callable[[dict[str, Any]], None]) -> None:
        self._apply = apply
        self._store = open_store(f'live_changes/{next(_SERIAL)}')
        self._wanted: deque[dict[str, Any]] = deque()
        self._round = 0

    def request(self, change: dict[str, Any]) -> None:
        """Want a change, from the thread that trains.

        Args:
            change (dict): ``what`` it is, its ``wrapper``, and ``values``.
        """
        token = secrets.token_hex(8)
        self._wanted.append(dict(token=token, change=_CHANGE(change)))

    def look(self, iteration: int) -> None:
        """Make a change that is due, and ask for the next one.

        Args:
            iteration (int): Iterations done, the same on all ranks.
        """
        found = read_value(self._store, self._key, _REQUEST)
        if found is not None and found['after'] < iteration:
            self._round += 1
            if self._wanted and self._wanted[0]['token'] == found['token']:
                self._wanted.popleft()
            self._apply(found['change'])
        if self._wanted:
            wanted = dict(after=iteration, **self._wanted[0])
            write_first(self._store, self._key, wanted, _REQUEST)

    @property
    def _key(self) -> str:
        return f'request/{self._round}'
