"""Failed, stopped and hanging ranks, exchanged without a collective.

Every rank has a thread that talks to the store, also while the training
itself waits inside a collective for a rank that will never come.
"""

from __future__ import annotations

import itertools
import os
import platform
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size

from mmstable.dist.store import (
    StoreClient,
    StoreGone,
    has_keys,
    leave_value,
    next_name,
    read_value,
    write_first,
)
from mmstable.errors import MMStableError, PeerFailedError
from mmstable.io.process import BackgroundThread
from mmstable.io.schema import (
    Check,
    boolean,
    integer,
    record,
    text,
    within,
)
from mmstable.messages import _, printable

INTERVAL_S, LOST_AFTER_S = 1.0, 60.0
_RANKS_A_SECOND = 1000
_DONE = 'done'
# Seconds that the last call may take: the process is about to end.
_LAST_CALL_S = 2.0
# Seconds to wait for the reason why another rank does not respond.
_GRACE_S = 10.0
# Words of torch's backends for that.
_SECOND_HAND = ('gloo', 'nccl', 'connection', 'broken pipe', 'timed out')
# Characters of what a rank says of its failure, and of its machine's name.
_LONGEST_ERROR, _LONGEST_NODE = 1000, 255
# Seconds of a status: a hundred years. And those between two exchanges.
_LONGEST_WAIT, _PAUSE_S = 3.2e9, 0.1
# The phases of an iteration in which ranks wait for each other.
_ITERATION = ('data', 'forward', 'backward', 'step')
_UNKNOWN = -1


@dataclass(frozen=True)
class PeerFailure:
    """Why a run of several ranks ends.

    Args:
        rank (int): The rank that failed first.
        node (str): Name of its machine; '' if unknown.
        iteration (int): Training iterations it had done; -1 if unknown.
        error (str): What happened.
        decided (bool): Whether all ranks have most likely decided so
            together. Defaults to False.
        saver (int): The rank that saves; -1 if the ranks cannot agree on
            one without the store. Defaults to -1.
        code (int): The exit code of that rank. Defaults to 1.
    """

    rank: int
    node: str
    iteration: int
    error: str
    decided: bool = False
    saver: int = -1
    code: int = 1

    @property
    def is_silent(self) -> bool:
        """Whether the rank was lost, and could report nothing itself."""
        return self.iteration < 0

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


class PeerWatch:
    """Heartbeats, failures and hangs of all ranks.

    Each rank watches the next one only, so the cost does not grow with the
    number of ranks.

    Args:
        interval (float): Seconds between two looks; more with more than a
            thousand ranks. Defaults to 1.0.
        lost_after (float): Seconds without a heartbeat until a rank counts
            as lost, and without a response until the store does. Defaults
            to 60.0.
    """

    def __init__(
        self, interval: float = INTERVAL_S, lost_after: float = LOST_AFTER_S
    ) -> None:
        # All ranks ask one store: more of them come more rarely.
        self.interval = max(interval, get_world_size() / _RANKS_A_SECOND)
        self._lost_after = lost_after
        # Called from another thread, once, with the failure of a rank.
        self.react: Callable[[PeerFailure], None] = _leave
        self._store = StoreClient(next_name('watch'), lost_after)
        self._rank = get_rank()
        self._next = (self._rank + 1) % get_world_size()
        self._thread = BackgroundThread('mmstable peer watch', self._run)
        self._beats = itertools.count()
        self._seen: bytes | None = None
        self._seen_at = time.monotonic()
        # The failure that this rank has reported, or reacts to.
        self._known: PeerFailure | None = None

    def start(self) -> None:
        """Start the thread."""
        self._beat()
        self._thread.start()

    def configure(
        self, react: Callable[[PeerFailure], None], lost_after: float
    ) -> None:
        """Change what is done about a failure, and when a rank is lost."""
        self.react = react
        self._lost_after = self._store.timeout_s = lost_after

    def stop(self) -> None:
        """Stop watching: this rank ends, for whatever reason."""
        self._thread.stop(self.interval)
        self._store.timeout_s = min(_LAST_CALL_S, self._lost_after)
        with suppress(RuntimeError):
            self._store.set(f'beat/{self._rank}', _DONE)
        self._store.close()

    @property
    def is_stopped(self) -> bool:
        """Whether this rank ends."""
        return self._thread.is_stopped

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait until the training of this rank ends, but not for ever."""
        deadline = time.monotonic() + timeout_s
        while not self.is_stopped and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.is_stopped

    def report(
        self,
        iteration: int,
        error: str,
        decided: bool = False,
        saver: int | None = None,
        code: int = 1,
    ) -> PeerFailure:
        """Report the failure of this rank to all others.

        Args:
            iteration (int): Training iterations done.
            error (str): What happened.
            decided (bool): Whether the others are going to report the same.
                Defaults to False.
            saver (int, optional): The rank that has to save; None for this
                one. Defaults to None.
            code (int): The exit code of this rank. Defaults to 1.

        Returns:
            PeerFailure: The failure that counts on all ranks: the first one.
        """
        node, rank = platform.node()[:_LONGEST_NODE], self._rank
        saver = rank if saver is None else saver
        # It knows what to do about its own failure.
        self._known = self._post(
            PeerFailure(
                rank,
                node,
                iteration,
                error[:_LONGEST_ERROR],
                decided,
                saver,
                code,
            )
        )
        return self._known

    def failure(self) -> PeerFailure | None:
        """Return what ends this run, if anything."""
        try:
            return read_value(self._store, 'failure', _read_failure)
        except RuntimeError as error:
            return _store_is_gone(error)

    def await_failure(self, seconds: float) -> PeerFailure | None:
        """Wait for a failure, after a collective has failed.

        Ranks without a heartbeat now count as lost soon.
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

    def find_reason(
        self,
        iteration: int,
        error: BaseException,
        saver: int | None = None,
    ) -> PeerFailure:
        """Return the failure that counts: an error of this rank or its cause.

        Args:
            iteration (int): Training iterations done.
            error (BaseException): The error.
            saver (int, optional): The rank that has to save; None for this
                one. Defaults to None.
        """
        found = self.failure()
        said = str(error).lower()
        if found is None and any(word in said for word in _SECOND_HAND):
            found = self.await_failure(_GRACE_S)
        if found is not None:
            return found
        code = getattr(error, 'exit_code', 1)
        is_decided = isinstance(error, MMStableError)
        text_of = f'{type(error).__name__}: {error}'
        try:
            return self.report(
                iteration, text_of, is_decided, saver, code
            )
        except RuntimeError as gone:
            return self.failure() or _store_is_gone(gone)

    def leave(self, topic: str, word: Any) -> None:
        """Write a value for the others, as JSON can hold it."""
        leave_value(self._store, f'{topic}/{self._rank}', word)

    def read(self, topic: str, rank: int, check: Check) -> Any:
        """Return the value of a rank, if it has written a valid one."""
        return read_value(self._store, f'{topic}/{rank}', check)

    def last_beat(self, rank: int) -> bytes | None:
        """Return the newest heartbeat of a rank: another one each time."""
        key = f'beat/{rank}'
        return self._store.get(key) if has_keys(self._store, [key]) else None

    def leave_status(self, status: RankStatus) -> None:
        """Write the status of this rank for the others."""
        where, beat = status.where[:_LONGEST_ERROR], next(self._beats)
        status = replace(status, where=where, beat=beat)
        self.leave('status', asdict(status))

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
        before = {rank: self.status_of(rank) for rank in others}
        found: dict[int, RankStatus | None] = dict.fromkeys(others)
        deadline = time.monotonic() + seconds
        while None in found.values() and time.monotonic() < deadline:
            # Again and again: others may be waiting for it, too.
            self.leave_status(own)
            time.sleep(_PAUSE_S)
            for rank in [one for one in others if found[one] is None]:
                now = self.status_of(rank)
                found[rank] = None if now == before[rank] else now
        return {**found, own.rank: own}

    def status_of(self, rank: int) -> RankStatus | None:
        """Return the newest status of a rank, if it has written one."""
        return self.read('status', rank, partial(_read_status, rank))

    def await_others(self, seconds: float) -> None:
        """Wait until the others have ended, those that still send beats.

        Rank 0 may keep the store.
        """
        deadline = time.monotonic() + seconds
        seen: dict[int, tuple[bytes | None, float]] = {}
        waiting = set(range(get_world_size())) - {self._rank}
        with suppress(RuntimeError):
            while waiting and time.monotonic() < deadline:
                for rank in sorted(waiting):
                    beat, now = self.last_beat(rank), time.monotonic()
                    if beat != seen.get(rank, (None, 0))[0]:
                        seen[rank] = beat, now
                    silent = now - seen.setdefault(rank, (beat, now))[1]
                    if beat == _DONE.encode() or silent > 2 * self.interval:
                        waiting.discard(rank)
                time.sleep(0.05)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self.interval):
            try:
                self._beat()
                if self._known is None:
                    self._look_after_next()
            except RuntimeError as error:
                if not stopped.is_set() and self._known is None:
                    self.react(_store_is_gone(error))
                return
            failure = None if self._known else self.failure()
            # What this rank has reported itself, it deals with itself.
            if failure and (failure.rank != self._rank or failure.is_silent):
                self._known = failure
                # Beats go on meanwhile: others wait for what this rank saves.
                threading.Thread(
                    target=self.react,
                    args=(failure,),
                    name='mmstable rank failure',
                    daemon=True,
                ).start()

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
                'no heartbeat for {seconds:.0f} s. It was killed (out of '
                'memory? see `dmesg`) or stopped, its machine or the link to '
                'it is down, or it hangs (test that machine with `mmstable '
                'doctor`)',
                seconds=silent,
            )
            self._post(
                PeerFailure(self._next, '', -1, reason, saver=self._rank)
            )

    def _beat(self) -> None:
        self._store.set(f'beat/{self._rank}', str(next(self._beats)))

    def _post(self, failure: PeerFailure) -> PeerFailure:
        return write_first(
            self._store, 'failure', asdict(failure), _read_failure
        )


def _read_failure(value: Any) -> PeerFailure:
    """Check a failure that came out of the store."""
    known = record(
        rank=integer(0, get_world_size() - 1),
        node=text(_LONGEST_NODE),
        iteration=integer(-1),
        error=text(_LONGEST_ERROR),
        decided=boolean,
        saver=integer(-1, get_world_size() - 1),
        code=integer(0, 255),
    )
    return PeerFailure(**known(value))


def _store_is_gone(error: RuntimeError) -> PeerFailure:
    reason = _(
        'the store of this run cannot be reached ({reason}): its process has '
        'ended, or its machine or the link to it is down',
        reason=error
        if isinstance(error, StoreGone)
        else _('the connection is closed'),
    )
    # Launched by Slurm or MPI, rank 0 keeps the store; else its machine does.
    return PeerFailure(0, '', -1, reason)


_current: PeerWatch | None = None


def watch_ranks() -> PeerWatch:
    """Return the watch of this process, started if it is not running."""
    global _current  # noqa: PLW0603
    if _current is None or _current.is_stopped:
        _current = PeerWatch()
        _current.start()
    return _current


def report_failure(error: BaseException) -> PeerFailure | None:
    """Report an error of this rank that came before or after training.

    Returns:
        PeerFailure or None: The failure of another rank behind it, if any.
    """
    watch = _current
    if watch is None or watch.is_stopped:
        return None
    failure = watch.find_reason(0, error)
    watch.stop()
    return None if failure.rank == get_rank() else failure


def _leave(failure: PeerFailure) -> None:
    """End this rank before training has begun."""
    watch = _current
    if watch is None or watch.wait_for_stop(10.0 if failure.decided else 2.0):
        return
    try:
        line = _('{failure}. This rank stops.', failure=failure)
        print(f'mmstable: {line}', file=sys.stderr, flush=True)
        watch.stop()
    finally:
        os._exit(PeerFailedError.exit_code)


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
        where=text(_LONGEST_ERROR),
        begun=integer(-1),
        waits_in=text(100),
        beat=integer(0),
    )
    return RankStatus(**known(value))
