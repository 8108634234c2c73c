"""How far is a value from the end of its range, and for how long still?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

# Samples that are kept, and the fewest that make a trend.
WINDOW = 8
FEWEST = 4
# The share of pairs of samples in which the later one is larger, and the
# doublings from the first to the last: less than that may be chance.
_AGREEMENT = 0.9
_LEAST_GROWTH = 1.0

# An iteration, and log2 of the largest value there as a share of the range.
Point = tuple[int, float]


@dataclass(frozen=True)
class Forecast:
    """What samples of one place tell.

    Args:
        share (float): The largest value, as a share of the range.
        doubling (float, optional): Iterations in which it doubles; None if
            it does not grow steadily. Defaults to None.
        left (float): Iterations until it leaves the range, if that goes on.
            Defaults to infinity.
    """

    share: float
    doubling: float | None = None
    left: float = math.inf


def forecast(points: Sequence[Point]) -> Forecast:
    """Tell from samples, of which the newest is the last, what is to come.

    The growth is the median of the slopes of all pairs (Theil and Sen): one
    sample that is far off does not move it.

    Args:
        points (Sequence[Point]): At least one.
    """
    now, newest = points[-1]
    slope = _slope(points)
    if slope is None:
        return Forecast(_power(newest))
    level = median(bits + slope * (now - when) for when, bits in points)
    return Forecast(_power(level), 1 / slope, max(0.0, -level) / slope)


def _slope(points: Sequence[Point]) -> float | None:
    """Doublings in an iteration; None if there is no steady growth."""
    if len(points) < FEWEST:
        return None
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2)]
    slope = median(slopes)
    growing = sum(one > 0 for one in slopes) / len(slopes)
    growth = slope * (points[-1][0] - points[0][0])
    if growing < _AGREEMENT or growth < _LEAST_GROWTH:
        return None
    return slope


def _power(bits: float) -> float:
    return 2.0 ** min(bits, 64.0)
