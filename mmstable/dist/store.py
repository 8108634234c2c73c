"""Values that ranks exchange through the store, without a collective.

A collective waits until all ranks call it, and mixes up with another one if
they do not. The store that joined the ranks does neither: a rank can write
while others are busy, blocked or gone.

A call to the store blocks for as long as TCP does, a quarter of an hour after
a cut link, and holds a lock of its client meanwhile. So the training thread
uses the client that torch made, and every other thread a
:class:`StoreClient`, whose calls have a time limit.

Every process that can reach the store's port can write there. So all values
are JSON, and every field is checked when it is read. An invalid value counts
as missing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Callable, Union

from mmengine.dist import get_rank, get_world_size
from mmengine.logging import print_log
from torch.distributed import PrefixStore, Store, TCPStore, distributed_c10d

from mmstable.events.log import restarts
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


def _part(name: str, whole: Store) -> Store:
    # Every attempt has its own part: the failure that ended the attempt
    # before must not end this one.
    return PrefixStore(f'mmstable/{restarts()}/{name}', whole)


def open_store(name: str) -> Store:
    """Return a part of the store, for the training thread.

    Args:
        name (str): The part.
    """
    # torch has no public way to ask for it.
    return _part(name, distributed_c10d._get_default_store())


def next_name(name: str) -> str:
    """Return a name that no earlier run of this process has used."""
    _RUNS[name] += 1
    return f'{name}/{_RUNS[name]}'


class StoreGone(RuntimeError):
    """The store did not respond within the time limit."""


class StoreClient:
    """A connection to the store whose calls have a time limit.

    A thread makes the calls. While one of them is stuck, further ones fail
    at once; if the link comes back, the client works again.

    Args:
        name (str): The part of the store.
        timeout_s (float): Seconds that a call may take; time in which this
            process is suspended does not count.
        address (tuple, optional): Host and port of the store; None for the
            one that joined the ranks. Defaults to None.
    """

    _SLICE_S = 0.25

    def __init__(
        self,
        name: str,
        timeout_s: float,
        address: tuple[str, int] | None = None,
    ) -> None:
        self._name, self.timeout_s, self._address = name, timeout_s, address
        self._default: Store | None = None
        if address is None:
            self._default = distributed_c10d._get_default_store()
        self._work: SimpleQueue = SimpleQueue()
        self._is_stuck = False
        threading.Thread(
            target=self._serve, name=f'mmstable store {name}', daemon=True
        ).start()

    def check(self, keys: list[str]) -> bool:
        """Return whether there are values under all keys."""
        return self._call(lambda store: has_keys(store, keys))

    def get(self, key: str) -> bytes:
        """Return the value under a key, which must exist."""
        return self._call(lambda store: store.get(key))

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._call(lambda store: store.set(key, value))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write a value if the present one is as expected."""
        return self._call(
            lambda store: store.compare_set(key, expected, value)
        )

    def close(self) -> None:
        """End the thread, unless it is stuck."""
        self._work.put(None)

    def _call(self, work: Callable[[Store], Any]) -> Any:
        if self._is_stuck:
            raise StoreGone(self._reason())
        answer: Future = Future()
        self._work.put((work, answer))
        waited, last = 0.0, time.monotonic()
        while waited < self.timeout_s:
            with suppress(NotYet):
                return answer.result(min(self._SLICE_S, self.timeout_s))
            now = time.monotonic()
            waited += min(now - last, 2 * self._SLICE_S)
            last = now
        self._is_stuck = True
        raise StoreGone(self._reason())

    def _reason(self) -> str:
        return _('no response for {seconds:.0f} s', seconds=self.timeout_s)

    def _serve(self) -> None:
        store: Store | None = None
        while (job := self._work.get()) is not None:
            work, answer = job
            try:
                if store is None:
                    store = self._connect()
                answer.set_result(work(store))
            except Exception as error:
                answer.set_exception(error)
            self._is_stuck = False

    def _connect(self) -> Store:
        store = self._default
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        if isinstance(store, TCPStore):
            self._address = store.host, store.port
        if self._address is not None:
            store = TCPStore(
                *self._address,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=self.timeout_s),
            )
        assert store is not None
        return _part(self._name, store)


AnyStore = Union[Store, StoreClient]


def has_keys(store: AnyStore, keys: list[str]) -> bool:
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


def leave_value(store: AnyStore, key: str, value: Any) -> None:
    """Write a value, as JSON can hold it."""
    store.set(key, json.dumps(value))


def read_value(store: AnyStore, key: str, check: Check) -> Any:
    """What is under a key; None if nothing is, or nothing that is valid.

    Args:
        store (Store): The store.
        key (str): The key.
        check (Check): What the value must be.
    """
    if not has_keys(store, [key]):
        return None
    return _accept(key, store.get(key), check)


def write_first(store: AnyStore, key: str, value: Any, check: Check) -> Any:
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
        self._store = open_store(next_name(name))
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
    store, key, decision = open_store('gather'), f'{topic}/decision', None
    leave_value(store, f'{topic}/{get_rank()}', value)
    keys = [f'{topic}/{rank}' for rank in range(get_world_size())]
    # Whoever counts wrong, the last one to arrive finds all values.
    if store.add(f'{topic}/arrived', 1) >= len(keys) and has_keys(store, keys):
        words = [
            _accept(key, content, check)
            for key, content in zip(keys, store.multi_get(keys))
        ]
        if None not in words:
            decision = digest(dict(enumerate(words)))
    else:
        deadline, pause = time.monotonic() + timeout, _SHORTEST_PAUSE
        # Not by `wait`, which would keep other threads from the store.
        while not has_keys(store, [key]) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    # The first decision holds. An invalid one is not overwritten: all ranks
    # have to read the same.
    held = store.compare_set(key, '', json.dumps(decision))
    return _accept(key, held, optional(check_digest))
