"""Changes that all ranks make after the same iteration."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Callable

from mmstable.checked_json import (
    integer,
    list_of,
    number_in,
    one_of,
    record,
    text,
)
from mmstable.distributed.store import open_store, read_value, write_first

# Iterations between two looks of all ranks into their store.
INTERVAL = 10
_SERIAL = itertools.count()
# Far beyond what a learning rate is multiplied by, or a norm clipped at.
_LARGEST = 1e12
_VALUE = number_in(1 / _LARGEST, _LARGEST)


def check_change(value: Any, groups: Mapping[str, int]) -> dict[str, Any]:
    """Check a change, whoever asks for it.

    Args:
        value (Any): The change: ``what`` it is, its ``wrapper``, ``values``.
        groups (Mapping): The number of parameter groups of each wrapper.

    Raises:
        ValueError: If it is nothing that can be applied.
    """
    change = record(
        what=one_of('lr', 'clip'),
        wrapper=one_of(*groups),
        values=list_of(_VALUE, max(groups.values(), default=0) + 1),
    )(value)
    # A factor for each group; one limit for all of them.
    count = groups[change['wrapper']] if change['what'] == 'lr' else 1
    if len(change['values']) != count:
        raise ValueError(
            f'`values`: must have {count} entries, has {len(change["values"])}'
        )
    return change


class AgreedChanges:
    """Lets one rank change something on all of them.

    All ranks look after the same iterations. Ranks that average gradients
    cannot be further apart than that lets them: what one has written at one
    look, all see at the next.

    Args:
        apply (Callable): Makes a change.
        groups (Callable): Gives the number of parameter groups of each
            wrapper. Defaults to ``dict``: none that could be changed.
    """

    def __init__(
        self,
        apply: Callable[[dict[str, Any]], None],
        groups: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._apply, self._groups = apply, groups
        self._check_request = record(
            after=integer(0), token=text(32), change=self._check
        )
        self._store = open_store(f'live_changes/{next(_SERIAL)}')
        self._wanted: deque[dict[str, Any]] = deque()
        self._round = 0

    def request(self, change: dict[str, Any]) -> None:
        """Want a change, from the thread that trains.

        Args:
            change (dict): What passes :func:`check_change`.
        """
        token = secrets.token_hex(8)
        self._wanted.append(dict(token=token, change=self._check(change)))

    def look(self, iteration: int) -> None:
        """Make a change that is due, and ask for the next one.

        Args:
            iteration (int): Iterations done, the same on all ranks.
        """
        found = read_value(self._store, self._key, self._check_request)
        if found is not None and found['after'] < iteration:
            self._round += 1
            if self._wanted and self._wanted[0]['token'] == found['token']:
                self._wanted.popleft()
            self._apply(found['change'])
        if self._wanted:
            wanted = dict(after=iteration, **self._wanted[0])
            write_first(self._store, self._key, wanted, self._check_request)

    def _check(self, change: Any) -> dict[str, Any]:
        return check_change(change, self._groups())

    @property
    def _key(self) -> str:
        return f'request/{self._round}'
