"""Which resource leaks, who leaks it, and how long can that go on?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mmstable.memory.process_tree import Reading
from mmstable.memory.trend import Growth, Point, Trend

HOST, FILES, SHARED = 'host', 'descriptors', 'shared_memory'
MAIN, WORKERS = 'main_process', 'workers'
# Readings that are not looked at: the start of a run is no trend.
_WARM_UP = 2
# Of a limit: what has to be left, whether it shrinks or not.
_LEAST = 0.01
# Readings ahead of the limit at which something has to be done.
_READINGS_AHEAD = 2
# A warning comes again when this share of the time is left.
_AGAIN = 0.5


@dataclass(frozen=True)
class Forecast:
    """A resource that runs out.

    Args:
        resource (str): 'host', 'descriptors' or 'shared_memory'.
        holder (str): Whose use grows most: 'main_process', 'workers', or ''
            if nobody's does, or nobody knows.
        used (int): What is used: bytes, or descriptors of one process.
        limit (int): What may be used.
        left (int): What is left.
        source (str): Who sets the limit.
        per_iteration (float): Growth in an iteration.
        per_second (float): Growth in a second.
    """

    resource: str
    holder: str
    used: int
    limit: int
    left: int
    source: str
    per_iteration: float = 0.0
    per_second: float = 0.0

    @property
    def iterations_left(self) -> float:
        """Iterations to the limit; infinite without growth."""
        grows = self.per_iteration > 0
        return self.left / self.per_iteration if grows else math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds to the limit; infinite without growth."""
        return self.left / self.per_second if self.per_second > 0 else math.inf


class LeakDetector:
    """Watches the readings of a process tree.

    A resource is about to run out if its steady growth reaches the limit
    before the run ends, or, in the first pass over the data, before that
    pass ends: until then growth may be a cache that fills up.

    Args:
        last (int): The last iteration of the run.
        first_pass_ends (int): The iteration that ends the first pass of this
            process over the data, if that is known. Defaults to 0.
    """

    def __init__(self, last: int, first_pass_ends: int = 0) -> None:
        self._last, self._first_pass_ends = last, first_pass_ends
        self._trends: dict[tuple[str, str], Trend] = {}
        self._pids: frozenset[int] = frozenset()
        self._seen = 0
        self._iteration = 0
        # When the newest reading was, and how long after the one before.
        self._seconds, self._gap = math.inf, 0.0
        # Seconds left when it was last warned of; what is critical, and
        # whether it was known to run out when that was told.
        self._warned: dict[str, float] = {}
        self._critical: dict[str, bool] = {}

    def add(
        self, iteration: int, reading: Reading, is_training: bool = True
    ) -> list[Forecast]:
        """Take a reading, and tell what would run out.

        Args:
            iteration (int): Iterations done.
            reading (Reading): The reading.
            is_training (bool): Whether it is one of training. One of
                validation has nothing to do with a trend. Defaults to True.
        """
        self._gap = max(0.0, reading.seconds - self._seconds)
        self._seconds = reading.seconds
        if is_training:
            self._seen += 1
            if self._seen > _WARM_UP:
                self._add_to_trends(iteration, reading)
        return list(self._forecasts(reading))

    def is_new(self, forecast: Forecast, iteration: int) -> bool:
        """Whether to warn of it, for the first time or once more."""
        if not self.runs_out(forecast, iteration):
            return False
        before = self._warned.get(forecast.resource, math.inf)
        if not forecast.seconds_left < _AGAIN * before:
            return False
        self._warned[forecast.resource] = forecast.seconds_left
        return True

    def runs_out(self, forecast: Forecast, iteration: int) -> bool:
        """Whether growth uses it up before the run, or first pass, ends."""
        ends = self._last
        if iteration < self._first_pass_ends:
            ends = min(ends, self._first_pass_ends)
        return forecast.iterations_left <= ends - iteration

    def becomes_critical(self, forecast: Forecast, iteration: int) -> bool:
        """Whether the limit has just come within reach.

        Once more if it only turns out then that growth will reach it.
        """
        margin = max(
            _LEAST * forecast.limit,
            _READINGS_AHEAD * self._gap * forecast.per_second,
            forecast.per_iteration,
        )
        name = forecast.resource
        if forecast.left > margin:
            if forecast.left > 2 * margin:
                self._critical.pop(name, None)
            return False
        runs_out = self.runs_out(forecast, iteration)
        is_told = name in self._critical
        if is_told and (self._critical[name] or not runs_out):
            return False
        self._critical[name] = runs_out
        return True

    def _add_to_trends(self, iteration: int, reading: Reading) -> None:
        if iteration >= self._first_pass_ends > self._iteration:
            # What grew in the first pass may have been a cache.
            self._trends.clear()
        self._iteration = iteration
        if reading.worker_pids != self._pids:
            self._pids = reading.worker_pids
            for resource in (HOST, FILES):
                self._trend(resource, WORKERS).clear()
        values = {
            (HOST, MAIN): reading.main,
            (HOST, WORKERS): reading.workers,
            (FILES, MAIN): reading.main_files,
            (FILES, WORKERS): reading.worker_files,
        }
        if reading.shared is not None:
            used = reading.shared.limit - reading.shared.left
            values[SHARED, ''] = used
        for key, value in values.items():
            point = Point(iteration, reading.seconds, value)
            self._trend(*key).add(point)

    def _trend(self, resource: str, holder: str) -> Trend:
        return self._trends.setdefault((resource, holder), Trend())

    def _forecasts(self, reading: Reading) -> Iterator[Forecast]:
        yield self._of_host(reading)
        if reading.max_files:
            yield self._of_files(reading)
        if reading.shared is not None:
            grows = self._trend(SHARED, '').growth() or Growth(0.0, 0.0)
            limit, left, source = reading.shared
            yield Forecast(
                SHARED, '', limit - left, limit, left, source, *grows
            )

    def _of_host(self, reading: Reading) -> Forecast:
        grows = {
            holder: growth
            for holder in (MAIN, WORKERS)
            if (growth := self._trend(HOST, holder).growth()) is not None
        }
        holder = max(
            grows, key=lambda name: grows[name].per_iteration, default=''
        )
        limit, left, source = reading.room
        return Forecast(
            resource=HOST,
            holder=holder,
            used=limit - left,
            limit=limit,
            left=left,
            source=source,
            per_iteration=sum(g.per_iteration for g in grows.values()),
            per_second=sum(g.per_second for g in grows.values()),
        )

    def _of_files(self, reading: Reading) -> Forecast:
        """Of the process that has the least time left."""
        found = []
        for holder, used in (
            (MAIN, reading.main_files),
            (WORKERS, reading.worker_files),
        ):
            growth = self._trend(FILES, holder).growth()
            left = max(0, reading.max_files - used)
            found.append(
                Forecast(
                    FILES,
                    holder if growth else '',
                    used,
                    reading.max_files,
                    left,
                    'setting',
                    *(growth or Growth(0.0, 0.0)),
                )
            )
        return min(found, key=lambda one: (one.iterations_left, one.left))
