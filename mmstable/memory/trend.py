"""Does a number grow steadily?  Told from warm-up, caches and noise."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

# Points that a trend is read from: fewer say little, more are old.
_FEWEST = 12
_MOST = 40
# The share of all pairs of points that have to show growth.
_AGREEING = 0.8
# What is left of early growth in the second half of the points; a cache
# that fills up, or a warm-up, has less.
_LASTING = 0.5
# The noise around the line, as a share of what it rises by.
_LOUDEST = 0.25


class Point(NamedTuple):
    """A measured value.

    Args:
        iteration (int): Iterations done.
        seconds (float): When, by a clock that does not jump.
        value (float): The value.
    """

    iteration: int
    seconds: float
    value: float


class Growth(NamedTuple):
    """How a value grows.

    Args:
        per_iteration (float): In an iteration.
        per_second (float): In a second.
    """

    per_iteration: float
    per_second: float


class Trend:
    """The newest values of one kind, and whether they grow steadily."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=_MOST)

    def add(self, point: Point) -> None:
        """Add the newest value; one for each iteration counts."""
        if not self._points or point.iteration > self._points[-1].iteration:
            self._points.append(point)

    def clear(self) -> None:
        """Forget all: what comes cannot be compared with it."""
        self._points.clear()

    def growth(self) -> Growth | None:
        """The steady growth of the newest values; None if there is none."""
        points = list(self._points)
        if len(points) < _FEWEST:
            return None
        slopes = pairwise_slopes(points)
        growing = sum(slope > 0 for slope in slopes)
        slope = median(slopes)
        if slope <= 0 or growing < _AGREEING * len(slopes):
            return None
        half = len(points) // 2
        early = median(pairwise_slopes(points[:half]))
        late = median(pairwise_slopes(points[half:]))
        if late < _LASTING * max(early, slope):
            return None
        if _scatter(points, slope) > _LOUDEST * slope * _span(points):
            return None
        seconds = points[-1].seconds - points[0].seconds
        per_second = slope * _span(points) / max(seconds, 1e-9)
        return Growth(slope, per_second)


def pairwise_slopes(points: Sequence[Point]) -> list[float]:
    """All slopes between two points; their median is Theil-Sen's slope."""
    return [
        (after.value - before.value) / (after.iteration - before.iteration)
        for number, after in enumerate(points)
        for before in points[:number]
    ]


def _span(points: Sequence[Point]) -> int:
    return points[-1].iteration - points[0].iteration


def _scatter(points: Sequence[Point], slope: float) -> float:
    """How far the points are from the line, in the median."""
    offsets = [point.value - slope * point.iteration for point in points]
    middle = median(offsets)
    return median(abs(offset - middle) for offset in offsets)
