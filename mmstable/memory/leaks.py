"""Find resources that leak, the process that leaks, and the time left.

The trend separates steady growth from warm-up, caches and noise. A thread
reads the process tree at intervals.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Callable, NamedTuple

from mmstable.io.process import BackgroundThread
from mmstable.memory.host import SOURCES, Prefetch, Reading, Room
from mmstable.messages import N_, _, readable, readable_time

# Points of a trend: fewer are too few, more are too old.
_FEWEST = 12
_MOST = 40
# The share of all pairs of points that have to show growth.
_AGREEING = 0.8
# The share of early growth that the second half of the points must show; a
# cache that fills up, or a warm-up, shows less.
_LASTING = 0.5
# The noise around the line, as a share of its rise.
_LOUDEST = 0.25


class Point(NamedTuple):
    """A measured value.

    Args:
        iteration (int): Iterations done.
        seconds (float): Monotonic time.
        value (float): The value.
    """

    iteration: int
    seconds: float
    value: float


class Growth(NamedTuple):
    """How a value grows.

    Args:
        per_iteration (float): In an iteration. Defaults to 0.0.
        per_second (float): In a second. Defaults to 0.0.
    """

    per_iteration: float = 0.0
    per_second: float = 0.0


class Trend:
    """The newest values of one kind, and whether they grow steadily."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=_MOST)

    def add(self, point: Point) -> None:
        """Add the newest value; ignore a second one of an iteration."""
        if not self._points or point.iteration > self._points[-1].iteration:
            self._points.append(point)

    def clear(self) -> None:
        """Drop all values: later ones cannot be compared with them."""
        self._points.clear()

    def growth(self) -> Growth:
        """Return the steady growth, 0 if there is none."""
        points = list(self._points)
        if len(points) < _FEWEST:
            return Growth()
        slopes = pairwise_slopes(points)
        slope, half = median(slopes), len(points) // 2
        early = median(pairwise_slopes(points[:half]))
        late = median(pairwise_slopes(points[half:]))
        rise = slope * (points[-1].iteration - points[0].iteration)
        offsets = [point.value - slope * point.iteration for point in points]
        middle = median(offsets)
        noise = median(abs(offset - middle) for offset in offsets)
        if (
            slope <= 0
            or sum(one > 0 for one in slopes) < _AGREEING * len(slopes)
            or late < _LASTING * max(early, slope)
            or noise > _LOUDEST * rise
        ):
            return Growth()
        seconds = points[-1].seconds - points[0].seconds
        return Growth(slope, rise / max(seconds, 1e-9))


def pairwise_slopes(points: Sequence[Point]) -> list[float]:
    """List the slopes of all pairs; their median is Theil-Sen's slope."""
    return [
        (after.value - before.value) / (after.iteration - before.iteration)
        for number, after in enumerate(points)
        for before in points[:number]
    ]


HOST, FILES, SHARED = 'host', 'descriptors', 'shared_memory'
MAIN, WORKERS = 'main_process', 'workers'
# Readings at the start of a run that count for no trend.
_WARM_UP = 2
# Share of a limit that must be left, even without growth.
_LEAST = 0.01
# Readings ahead of the limit at which something has to be done.
_READINGS_AHEAD = 2
# A warning comes again when this share of the time is left.
_AGAIN = 0.5


class Forecast(NamedTuple):
    """A resource that may run out.

    Args:
        resource (str): 'host', 'descriptors' or 'shared_memory'.
        holder (str): Whose use grows most: 'main_process' or 'workers'; ''
            without growth, or if unknown.
        room (Room): The limit, and what is left: bytes, or descriptors of
            one process.
        growth (Growth): Its growth.
    """

    resource: str
    holder: str
    room: Room
    growth: Growth

    @property
    def iterations_left(self) -> float:
        """Iterations to the limit; infinite without growth."""
        return _divide(self.room.left, self.growth.per_iteration)

    @property
    def seconds_left(self) -> float:
        """Seconds to the limit; infinite without growth."""
        return _divide(self.room.left, self.growth.per_second)


def _divide(left: float, rate: float) -> float:
    return left / rate if rate > 0 else math.inf


class LeakDetector:
    """Watch the readings of a process tree.

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
        # Time of the newest reading, and seconds since the one before.
        self._seconds, self._gap = math.inf, 0.0
        # By resource: seconds left at the last warning; and whether it was
        # known to run out when it was reported as critical.
        self._warned: dict[str, float] = {}
        self._critical: dict[str, bool] = {}

    def add(
        self, iteration: int, reading: Reading, is_training: bool = True
    ) -> list[Forecast]:
        """Add a reading, and return the forecasts.

        Args:
            iteration (int): Iterations done.
            reading (Reading): The reading.
            is_training (bool): Whether it was taken in training. Those of
                validation count for no trend. Defaults to True.
        """
        self._gap = max(0.0, reading.seconds - self._seconds)
        self._seconds = reading.seconds
        if is_training:
            self._seen += 1
            if self._seen > _WARM_UP:
                self._add_to_trends(iteration, reading)
        return list(self._forecasts(reading))

    def is_new(self, forecast: Forecast, iteration: int) -> bool:
        """Whether to warn of it, for the first time or again."""
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

        True once more if it turns out later that growth will reach it.
        """
        room, growth = forecast.room, forecast.growth
        margin = max(
            _LEAST * room.limit,
            _READINGS_AHEAD * self._gap * growth.per_second,
            growth.per_iteration,
        )
        name = forecast.resource
        if room.left > margin:
            if room.left > 2 * margin:
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
            # Growth in the first pass may have been a cache.
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
        main, workers = (
            self._trend(HOST, one).growth() for one in (MAIN, WORKERS)
        )
        total = Growth(*map(sum, zip(main, workers)))
        yield _forecast(
            HOST, WORKERS if workers > main else MAIN, reading.room, total
        )
        if limit := reading.max_files:
            counts = {MAIN: reading.main_files, WORKERS: reading.worker_files}
            found = [
                _forecast(
                    FILES,
                    holder,
                    Room(limit, max(0, limit - used), 'setting'),
                    self._trend(FILES, holder).growth(),
                )
                for holder, used in counts.items()
            ]
            # That of the process with the least time left.
            yield min(found, key=lambda o: (o.iterations_left, o.room.left))
        if reading.shared is not None:
            growth = self._trend(SHARED, '').growth()
            yield Forecast(SHARED, '', reading.shared, growth)


def _forecast(
    resource: str, holder: str, room: Room, growth: Growth
) -> Forecast:
    who = holder if growth.per_iteration else ''
    return Forecast(resource, who, room, growth)


# A reading takes at most this share of the time.
_MAX_SHARE = 0.005


class TreeSampler:
    """Read the process tree in the background.

    Args:
        read (Callable): Returns a reading.
        interval (float): Seconds between two readings; longer if a reading
            takes more than 0.5 % of it.
    """

    def __init__(self, read: Callable[[], Reading], interval: float) -> None:
        self._read, self._interval = read, interval
        self._thread: BackgroundThread | None = None
        # The newest reading, or the exception that ended the thread.
        self.news: deque[Reading | Exception] = deque(maxlen=1)

    def start(self, is_over: Callable[[], bool]) -> None:
        """Start; the first reading comes after one interval.

        Args:
            is_over (Callable): Whether the run has ended; called before each
                reading.
        """
        self.stop()
        self.news.clear()
        self._thread = BackgroundThread(
            'mmstable memory', partial(self._run, is_over)
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop, after the reading that is under way."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _run(
        self, is_over: Callable[[], bool], stopped: threading.Event
    ) -> None:
        pause = self._interval
        while not stopped.wait(pause) and not is_over():
            start = time.thread_time()
            try:
                self.news.append(self._read())
            except Exception as error:
                # Training continues; the hook logs it.
                self.news.append(error)
                return
            spent = time.thread_time() - start
            pause = max(self._interval, spent / _MAX_SHARE)


_HOLDERS = {
    'main_process': N_('the training process'),
    'workers': N_('a dataloader worker'),
}
_RESOURCES = {
    'host': N_('host RAM is'),
    'descriptors': N_('file descriptors are'),
    'shared_memory': N_('shared memory is'),
}
_ACTIONS = {
    'warn': N_("No action is taken, since `action` is 'warn'."),
    'save': N_('A checkpoint is saved after this step.'),
    'restart': N_(
        'After this step a checkpoint is saved and the run exits with code '
        '22, to be restarted.'
    ),
}
_SHARED_ADVICE = N_(
    'Batches from workers are not freed: lower num_workers x '
    'prefetch_factor, keep no reference to batches, or give the container '
    'more shared memory (--shm-size).'
)
_FILES_ADVICE = N_(
    'Files are opened and not closed, such as HDF5, LMDB or zip handles: '
    'open them once in each worker, or in a `with` statement.'
)
_ADVICE = {
    (HOST, WORKERS): N_(
        'Workers leak: look for growing lists, caches and open files in the '
        'dataset or a transform; fewer num_workers, a lower prefetch_factor '
        'and persistent_workers=False delay the end.'
    ),
    (HOST, MAIN): N_(
        'The training process leaks: look for losses kept with their graph '
        '(use .item()), and for growing lists in a hook, metric or logger.'
    ),
    (FILES, WORKERS): _FILES_ADVICE,
    (FILES, MAIN): _FILES_ADVICE,
}
_GROWTH = {
    HOST: N_(
        'Iter {iteration}: host RAM grows {growth} per 100 iterations, '
        '{time} to the limit of {limit} ({source}); {holders}. {advice}'
    ),
    FILES: N_(
        'Iter {iteration}: open files of {holder} grow by {growth} per 100 '
        'iterations, {time} to the limit of {limit} (ulimit -n). {advice}'
    ),
    SHARED: N_(
        'Iter {iteration}: shared memory (/dev/shm) grows {growth} per 100 '
        'iterations, {time} to the limit of {limit}; {loading}. {advice}'
    ),
}


def describe_growth(
    iteration: int, forecast: Forecast, reading: Reading, loading: Prefetch
) -> str:
    """Describe growth, its rate, the time left, and advice.

    Args:
        iteration (int): Iterations done.
        forecast (Forecast): The resource.
        reading (Reading): The newest reading.
        loading (Prefetch): Settings of the training data loader.
    """
    shown = _(
        '{workers:worker|workers} x {prefetch} prefetch', **loading._asdict()
    )
    holders = _('the training process holds all of it')
    if reading.worker_pids:
        holders = _(
            'dataloader workers hold {share:.0%}; {loading}',
            share=reading.workers / max(1, reading.tree),
            loading=shown,
        )
    resource, holder, room, growth = forecast
    # Not every text uses all of them.
    facts = dict(
        iteration=iteration,
        growth=_amount(resource, 100 * growth.per_iteration),
        time=readable_time(forecast.seconds_left),
        limit=_amount(resource, room.limit),
        source=_(SOURCES[room.source]),
        holder=_(_HOLDERS.get(holder, '')),
        holders=holders,
        loading=shown,
        advice=_(_ADVICE.get((resource, holder), _SHARED_ADVICE)),
    )
    return _(_GROWTH[resource], **facts)


def describe_critical(iteration: int, forecast: Forecast, action: str) -> str:
    """Describe how little is left, and the action.

    Args:
        iteration (int): Iterations done.
        forecast (Forecast): The resource.
        action (str): 'warn', 'save' or 'restart'.
    """
    resource, room = forecast.resource, forecast.room
    return _(
        'Iter {iteration}: {resource} nearly used up: {left} of {limit} '
        'left. {action}',
        iteration=iteration,
        resource=_(_RESOURCES[resource]),
        left=_amount(resource, room.left),
        limit=_amount(resource, room.limit),
        action=_(_ACTIONS[action]),
    )


def _amount(resource: str, count: float) -> str:
    if resource == FILES:
        return f'{count:.3g}' if count < 100 else f'{count:.0f}'
    return readable(count)
