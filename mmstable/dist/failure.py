"""Failed, stopped and hanging ranks, exchanged without a collective.

Every rank has a thread that talks to the store, also while the training
itself waits inside a collective for a rank that will never come.
"""

from __future__ import annotations

import itertools
import platform
import threading
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from signal import Signals
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size
from mmstable.dist.store import (
    AgreedRequests,
    has_keys,
    leave_value,
    open_next,
    read_value,
    write_first,
)
from mmstable.io.process import BackgroundThread
from mmstable.io.schema import (
    Check,
    boolean,
    integer,
    within,
    one_of,
    record,
    text,
)
from mmstable.messages import _, printable

_DONE = 'done'
# Characters of what a rank says of its failure, and of its machine's name.
_LONGEST_ERROR, _LONGEST_NODE = 1000, 255


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
        saver (int): The rank that saves, if it is not the one that failed;
            else -1. Defaults to -1.
    """

    rank: int
    node: str
    iteration: int
    error: str
    decided: bool = False
    saver: int = -1

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
        self._store = open_next('watch')
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
        self,
        iteration: int,
        error: str,
        decided: bool = False,
        saver: int = -1,
    ) -> PeerFailure:
        """Tell all others that this rank has failed.

        Args:
            iteration (int): Training iterations done.
            error (str): What happened.
            decided (bool): Whether the others are going to say the same.
                Defaults to False.
            saver (int): The rank that has to save; -1 for this one.
                Defaults to -1.

        Returns:
            PeerFailure: What all ranks are told: the first failure counts.
        """
        node = platform.node()[:_LONGEST_NODE]
        error = error[:_LONGEST_ERROR]
        return self._post(
            PeerFailure(self._rank, node, iteration, error, decided, saver)
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
        beat = self.last_beat(self._next)
        if beat is None or beat != self._seen:
            # Without one, it has not started yet.
            self._seen, self._seen_at = beat, time.monotonic()
        silent = time.monotonic() - self._seen_at
        if beat == _DONE.encode() or silent < 2 * self.interval:
            return
        limit = self._lost_after
        if has_keys(self._store, ['alarm']):
            limit = min(3 * self.interval, limit)
        if silent > limit:
            reason = _(
                'no sign of life for {seconds:.0f} s. It was killed (out of '
                'memory? see `dmesg`), its machine is gone, or it hangs '
                '(test that machine with `mmstable doctor`)',
                seconds=silent,
            )
            self._post(PeerFailure(self._next, '', -1, reason))

    def _beat(self) -> None:
        self._store.set(f'beat/{self._rank}', str(next(self._beats)))

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
        saver=integer(-1, get_world_size() - 1),
    )
    return PeerFailure(**known(value))


def _store_is_gone(error: RuntimeError) -> PeerFailure:
    reason = _('the store of this run is gone with it ({error})', error=error)
    # Without torchrun it is rank 0 that keeps the store.
    return PeerFailure(0, '', -1, reason)


class CoordinatedStop:
    """Let one rank ask all others to obey a signal together with it.

    All ranks look after the iterations that complete a step.

    Args:
        names (Collection[str]): The names of the signals that ranks obey.
    """

    def __init__(self, names: Collection[str]) -> None:
        signal = one_of(*names)
        self._requests = AgreedRequests('coordinated_stop', signal=signal)
        self._is_requested = False

    def request(self, iteration: int, number: Signals) -> None:
        """Ask all ranks to obey a signal, after the next step.

        Args:
            iteration (int): The iteration that is done here.
            number (Signals): The signal.
        """
        if not self._is_requested:
            self._is_requested = True
            self._requests.post(iteration, signal=number.name)

    def due(self, iteration: int) -> Signals | None:
        """The signal that all ranks obey now, if there is one.

        Args:
            iteration (int): The iteration that has completed a step.
        """
        request = self._requests.due(iteration)
        if request is None:
            return None
        self._is_requested = False
        return Signals[request['signal']]


_LONGEST = 1000
# Seconds: a hundred years.
_LONGEST_WAIT = 3.2e9
# Seconds between two exchanges of a status.
_PAUSE = 0.1
# The phases of an iteration in which ranks wait for each other.
_ITERATION = ('data', 'forward', 'backward', 'step')
_UNKNOWN = -1


@dataclass(frozen=True)
class RankStatus:
    """A rank that makes no progress.

    Args:
        rank (int): The rank.
        iteration (int): Iterations of training done.
        phase (str): What it does.
        seconds (float): For how long.
        where (str): Where it is, in words. Defaults to ''.
        begun (int): Its newest collective call; -1 if unknown. Defaults to
            -1.
        waits_in (str): The collective call that it waits in. Defaults to ''.
        beat (int): Another one each time. Defaults to 0.
    """

    rank: int
    iteration: int
    phase: str
    seconds: float
    where: str = ''
    begun: int = -1
    waits_in: str = ''
    beat: int = 0


class StatusBoard:
    """Where all ranks leave their status, without a collective call."""

    def __init__(self) -> None:
        self._store = open_next('status')
        self._beats = itertools.count(1)

    def leave(self, status: RankStatus) -> None:
        """Write the status of this rank for the others."""
        word = asdict(status)
        word['where'] = status.where[:_LONGEST]
        word['beat'] = next(self._beats)
        leave_value(self._store, f'{status.rank}', word)

    def exchange(
        self, own: RankStatus, seconds: float
    ) -> dict[int, RankStatus | None]:
        """Write the status of this rank, and read that of the others.

        Args:
            own (RankStatus): The status of this rank.
            seconds (float): How long to wait for a new status: an old one
                does not count.

        Returns:
            dict: The status by rank; None for those that wrote none.
        """
        others = [r for r in range(get_world_size()) if r != own.rank]
        before = {rank: self._read(rank) for rank in others}
        found: dict[int, RankStatus | None] = dict.fromkeys(others)
        deadline = time.monotonic() + seconds
        while None in found.values() and time.monotonic() < deadline:
            # Again and again: others may be waiting for it, too.
            self.leave(own)
            time.sleep(_PAUSE)
            for rank in [one for one in others if found[one] is None]:
                now = self._read(rank)
                found[rank] = None if now == before[rank] else now
        return {**found, own.rank: own}

    def _read(self, rank: int) -> RankStatus | None:
        return read_value(self._store, f'{rank}', partial(_read_status, rank))


def behind(statuses: list[RankStatus]) -> int | None:
    """The rank that the others wait for, if that can be told.

    By the number of its newest collective call, or by its phase where torch
    does not count those.
    """
    places = sorted((*_place(one), one.rank) for one in statuses)
    if len(places) < 2:
        return None
    (first, order, rank), (second, other, __) = places[:2]
    # One that is in no such phase may be before or after the others.
    if first == second and order in (other, _UNKNOWN):
        return None
    return rank


def _place(status: RankStatus) -> tuple[int, int]:
    order = status.begun
    if order < 0:
        is_known = status.phase in _ITERATION
        order = _ITERATION.index(status.phase) if is_known else _UNKNOWN
    return status.iteration, order


def _read_status(rank: int, value: Any) -> RankStatus:
    known = record(
        rank=integer(rank, rank),
        iteration=integer(0),
        phase=text(100),
        seconds=within(0, _LONGEST_WAIT),
        where=text(_LONGEST),
        begun=integer(-1),
        waits_in=text(100),
        beat=integer(0),
    )
    return RankStatus(**known(value))
