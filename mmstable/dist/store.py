"""Words that ranks leave for each other, without a collective.

A collective waits until all ranks call it, and mixes up with another one if
they do not. The store that the ranks were joined by does neither: a rank can
speak while others are busy, blocked or gone.

Every process that can reach its port can write there, too. So all values are
JSON, and every field is checked when it is read. A value that no rank of this
run can have written counts as one that is not there.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size
from mmengine.logging import print_log
from torch.distributed import PrefixStore, Store, distributed_c10d

from mmstable.io.schema import (
    Check,
    integer,
    optional,
    parse_json,
    record,
)
from mmstable.messages import _

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
# Bytes of a value. Random states, the longest, have less than a tenth.
_LONGEST_VALUE = 1 << 20
# Keys whose values were reported, and how many of them at most.
_REPORTED: set[str] = set()
_MOST_REPORTS = 100
# Runs of this process, by part of the store: the same number on all ranks,
# which train the same runs in the same order.
_RUNS: Counter[str] = Counter()
# No JSON, so no value of ours.
_NEVER_STORED = 'mmstable: nothing'


def open_store(name: str) -> Store:
    """A part of the store that the ranks were joined by.

    Args:
        name (str): The part.
    """
    # torch has no public way to ask for it.
    return PrefixStore(
        f'mmstable/{name}', distributed_c10d._get_default_store()
    )


def open_next(name: str) -> Store:
    """Open a part of the store that no earlier run of this process has."""
    _RUNS[name] += 1
    return open_store(f'{name}/{_RUNS[name]}')


def has_keys(store: Store, keys: list[str]) -> bool:
    """Whether there are values under all keys; does not wait for them.

    Args:
        store (Store): The store.
        keys (list[str]): The keys.
    """
    # Before torch 2.3, stores have it in C++ only.
    if hasattr(store, 'check'):
        return store.check(keys)
    # Changes nothing: a key that is not there is said to hold what it was
    # expected to, and one that is there holds something else.
    return all(
        store.compare_set(key, _NEVER_STORED, _NEVER_STORED)
        != _NEVER_STORED.encode()
        for key in keys
    )


def leave_value(store: Store, key: str, value: Any) -> None:
    """Write a value, as JSON can hold it."""
    store.set(key, json.dumps(value))


def read_value(store: Store, key: str, check: Check) -> Any:
    """What is under a key; None if nothing is, or nothing that is valid.

    Args:
        store (Store): The store.
        key (str): The key.
        check (Check): What the value must be.
    """
    if not has_keys(store, [key]):
        return None
    return _accept(key, store.get(key), check)


def write_first(store: Store, key: str, value: Any, check: Check) -> Any:
    """Write a value unless there is a valid one; the one that holds.

    Args:
        store (Store): The store.
        key (str): The key.
        value (Any): The value, as JSON can hold it.
        check (Check): What values under this key must be.
    """
    content = json.dumps(value)
    held = _accept(key, store.compare_set(key, '', content), check)
    if held is not None:
        return held
    store.set(key, content)
    return _accept(key, content.encode(), check)


def _accept(key: str, content: bytes, check: Check) -> Any:
    try:
        return check(parse_json(content, _LONGEST_VALUE))
    except ValueError as error:
        _report(key, error)
        return None


def _report(key: str, error: ValueError) -> None:
    if key in _REPORTED or len(_REPORTED) >= _MOST_REPORTS:
        return
    _REPORTED.add(key)
    print_log(
        _(
            "mmstable: what the store holds under '{key}' was not written by "
            'a rank of this run, and is ignored: {error}. Who can reach the '
            "store's port? See docs/en/distributed.md.",
            key=key,
            error=error,
        ),
        logger='current',
        # Ranks other than 0 log nothing less.
        level=logging.ERROR,
    )


class AgreedRequests:
    """Let all ranks obey a request of one rank after the same iteration.

    All ranks read the store after the same iterations. Ranks that average
    gradients are never more than one of these apart: a request written before
    the next average is seen by all ranks that read after it.

    Args:
        name (str): The part of the store.
        **checks: Checks of the fields of a request.
    """

    def __init__(self, name: str, **checks: Check) -> None:
        self._check = record(after=integer(0), **checks)
        self._store = open_next(name)
        # Requests that all ranks have obeyed.
        self._round = 0

    @property
    def _key(self) -> str:
        return f'request/{self._round}'

    def post(self, iteration: int, **request: Any) -> None:
        """Write a request, unless there is one that is not obeyed yet.

        Args:
            iteration (int): Iterations done by this rank.
            **request: The fields of the request.
        """
        value = dict(after=iteration, **request)
        write_first(self._store, self._key, value, self._check)

    def due(self, iteration: int) -> dict[str, Any] | None:
        """Return the request that all ranks obey now, if there is one.

        Args:
            iteration (int): Iterations done, the same on all ranks.
        """
        request = read_value(self._store, self._key, self._check)
        if request is None or request['after'] >= iteration:
            return None
        self._round += 1
        return request


def gather(
    topic: str,
    value: Any,
    timeout: float,
    check: Check,
    digest: Callable[[dict[int, Any]], Any],
    check_digest: Check,
) -> Any:
    """Gather a value of every rank, if all of them take part.

    The last one to arrive reads all values and writes them into one place, so
    each rank costs the store a few short requests.

    Args:
        topic (str): What the values are about; used once.
        value (Any): That of this rank, as JSON can hold it.
        timeout (float): Seconds to wait for the others.
        check (Check): What values must be.
        digest (Callable): What to keep of all values, by rank, as JSON can
            hold it: every rank is told that. It must not be None.
        check_digest (Check): What a digest must be.

    Returns:
        Any: The digest, checked. None if somebody stayed away or said what
        no rank says: then all who came, and all who still come, are told so.
    """
    store = open_store('gather')
    leave_value(store, f'{topic}/{get_rank()}', value)
    keys = [f'{topic}/{rank}' for rank in range(get_world_size())]
    # Whoever counts wrong, the last one to arrive finds all values.
    if store.add(f'{topic}/arrived', 1) >= len(keys) and has_keys(store, keys):
        words = _read_words(store, keys, check)
        return _decide(store, topic, words and digest(words), check_digest)
    return _await_decision(store, topic, timeout, check_digest)


def _read_words(
    store: Store, keys: list[str], check: Check
) -> dict[int, Any] | None:
    words = [
        _accept(key, content, check)
        for key, content in zip(keys, store.multi_get(keys))
    ]
    return None if None in words else dict(enumerate(words))


def _await_decision(
    store: Store, topic: str, timeout: float, check: Check
) -> Any:
    deadline = time.monotonic() + timeout
    pause = _SHORTEST_PAUSE
    # Not by `wait`, which would keep other threads from the store.
    while not has_keys(store, [f'{topic}/decision']):
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return _decide(store, topic, None, check)


def _decide(store: Store, topic: str, digest: Any, check: Check) -> Any:
    """Write a decision, unless there is one; the one that holds."""
    key = f'{topic}/decision'
    held = store.compare_set(key, '', json.dumps(digest))
    # An invalid one is not overwritten: all ranks have to read the same.
    return _accept(key, held, optional(check))
