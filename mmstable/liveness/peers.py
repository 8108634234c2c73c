"""The status that ranks exchange when they make no progress."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from mmengine.dist import get_world_size

from mmstable.checked_json import integer, number_in, record, text
from mmstable.distributed.store import leave_value, open_store, read_value

_SERIAL = itertools.count()
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
        self._store = open_store(f'status/{next(_SERIAL)}')
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
    (first, order, rank), (second, other, _) = places[:2]
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
        seconds=number_in(0, _LONGEST_WAIT),
        where=text(_LONGEST),
        begun=integer(-1),
        waits_in=text(100),
        beat=integer(0),
    )
    return RankStatus(**known(value))
