"""Notice that another rank has failed, or is gone, without a collective.

Every rank has a thread that talks to the store, also while the training
itself waits inside a collective for a rank that will never come.
"""

from __future__ import annotations

import itertools
import platform
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size
from torch.distributed import Store

from mmstable.background import BackgroundThread
from mmstable.checked_json import Check, boolean, integer, record, text
from mmstable.distributed.store import (
    has_keys,
    leave_value,
    open_store,
    read_value,
    write_first,
)
from mmstable.messages import _
from mmstable.messages.printable import printable

_DONE = 'done'
# Characters of what a rank says of its failure, and of its machine's name.
_LONGEST_ERROR, _LONGEST_NODE = 1000, 255
_SERIAL = itertools.count()


@dataclass(frozen=True)
class PeerFailure:
    """Why a run of several ranks ends.

    Args:
        rank (int): The rank that failed first.
        node (str): Name of its machine; '' if nobody knows.
        iteration (int): Training iterations it had done; -1 if nobody knows.
        error (str): What happened.
        decided (bool): Whether all ranks have most likely decided so
            together. Defaults to False.
    """

    rank: int
    node: str
    iteration: int
    error: str
    decided: bool = False

    def __str__(self) -> str:
        when = ''
        if self.iteration >= 0:
            when = _(' after iteration {iteration}', iteration=self.iteration)
        return _(
            'rank {rank}{node} failed{when}: {error}',
            rank=self.rank,
            node=_(' ({node})', node=self.node) if self.node else '',
            when=when,
            error=printable(self.error, _LONGEST_ERROR),
        )


class PeerWatch:
    """Signs of life of all ranks, and the first failure of one of them.

    Each rank looks after the next one only, so the cost does not grow with
    the number of ranks.

    Args:
        react (Callable): Called from the thread, once, with the failure of
            another rank.
        interval (float): Seconds between two looks.
        lost_after (float): Seconds without a sign of life until a rank
            counts as gone.
    """

    def __init__(
        self,
        react: Callable[[PeerFailure], None],
        interval: float,
        lost_after: float,
    ) -> None:
        self.interval = interval
        self._lost_after = lost_after
        self._react = react
        self._store: Store = open_store(f'watch/{next(_SERIAL)}')
        self._rank = get_rank()
        self._next = (self._rank + 1) % get_world_size()
        self._thread = BackgroundThread('mmstable peer watch', self._run)
        self._beats = itertools.count()
        self._seen: bytes | None = None
        self._seen_at = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """This rank has come to its end, in whatever way."""
        self._thread.stop(self.interval)
        try:
            self._store.set(f'beat/{self._rank}', _DONE)
        except RuntimeError:
            # The process that kept the store has ended before this one.
            return

    @property
    def is_stopped(self) -> bool:
        """Whether this rank has come to its end."""
        return self._thread.is_stopped

    def report(
        self, iteration: int, error: str, decided: bool = False
    ) -> PeerFailure:
        """Tell all others that this rank has failed.

        Args:
            iteration (int): Training iterations done.
            error (str): What happened.
            decided (bool): Whether the others are going to say the same.
                Defaults to False.

        Returns:
            PeerFailure: What all ranks are told: the first failure counts.
        """
        return self._post(
            PeerFailure(
                self._rank,
                platform.node()[:_LONGEST_NODE],
                iteration,
                error[:_LONGEST_ERROR],
                decided,
            )
        )

    def failure(self) -> PeerFailure | None:
        """What has ended this run, if anything."""
        try:
            return read_value(self._store, 'failure', _read_failure)
        except RuntimeError as error:
            return _store_is_gone(error)

    def await_failure(self, seconds: float) -> PeerFailure | None:
        """Wait for news, after a collective has failed.

        Ranks that show no sign of life now are taken for gone soon.
        """
        deadline = time.monotonic() + seconds
        try:
            self._store.set('alarm', '1')
        except RuntimeError as error:
            return _store_is_gone(error)
        failure = self.failure()
        while failure is None and time.monotonic() < deadline:
            time.sleep(0.1)
            failure = self.failure()
        return failure

    def leave(self, topic: str, word: Any) -> None:
        """Leave a word for the others, as JSON can hold it."""
        leave_value(self._store, f'{topic}/{self._rank}', word)

    def read(self, topic: str, rank: int, check: Check) -> Any:
        """The word of a rank, if it has left one that passes a check."""
        return read_value(self._store, f'{topic}/{rank}', check)

    def last_beat(self, rank: int) -> bytes | None:
        """The newest sign of life of a rank: another one each time."""
        key = f'beat/{rank}'
        return self._store.get(key) if has_keys(self._store, [key]) else None

    def has_left(self, rank: int) -> bool:
        """Whether a rank has come to its end."""
        return self.last_beat(rank) == _DONE.encode()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self.interval):
            try:
                self._beat()
                self._look_after_next()
            except RuntimeError as error:
                if not stopped.is_set():
                    self._react(_store_is_gone(error))
                return
            failure = self.failure()
            if failure is not None and failure.rank != self._rank:
                self._react(failure)
                return

    def _look_after_next(self) -> None:
        key = f'beat/{self._next}'
        if self._seen is None and not has_keys(self._store, [key]):
            # It has not started yet.
            self._seen_at = time.monotonic()
            return
        beat = self._store.get(key)
        if beat != self._seen:
            self._seen, self._seen_at = beat, time.monotonic()
        silent = time.monotonic() - self._seen_at
        if beat == _DONE.encode() or silent < 2 * self.interval:
            return
        if silent > self._limit():
            self._post(_gone(self._next, silent))

    def _beat(self) -> None:
        self._store.set(f'beat/{self._rank}', str(next(self._beats)))

    def _limit(self) -> float:
        if has_keys(self._store, ['alarm']):
            return min(3 * self.interval, self._lost_after)
        return self._lost_after

    def _post(self, failure: PeerFailure) -> PeerFailure:
        return write_first(
            self._store, 'failure', asdict(failure), _read_failure
        )


def _read_failure(value: Any) -> PeerFailure:
    """A failure that came out of the store."""
    known = record(
        rank=integer(0, get_world_size() - 1),
        node=text(_LONGEST_NODE),
        iteration=integer(-1),
        error=text(_LONGEST_ERROR),
        decided=boolean,
    )
    return PeerFailure(**known(value))


def _gone(rank: int, silent: float) -> PeerFailure:
    return PeerFailure(
        rank,
        '',
        -1,
        _(
            'no sign of life for {seconds:.0f} s. It was killed (out of '
            'memory? see `dmesg`), its machine is gone, or it hangs (test '
            'that machine with `mmstable doctor`)',
            seconds=silent,
        ),
    )


def _store_is_gone(error: RuntimeError) -> PeerFailure:
    # Without torchrun it is rank 0 that keeps the store.
    return PeerFailure(
        0,
        '',
        -1,
        _('the store of this run is gone with it ({error})', error=error),
    )
