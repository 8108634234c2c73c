"""Who comes too close to the end of the range, and was that said before?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmstable.checked_json import (
    Check,
    count,
    list_of,
    number,
    text,
    tuple_of,
)
from mmstable.forensics.headroom_probe import GRADIENT, Place
from mmstable.forensics.headroom_trend import WINDOW, Forecast, forecast

# Places that are more doublings away than that are not followed.
_FAR = -20.0


@dataclass(frozen=True)
class Warned:
    """A place that is close to overflowing.

    Args:
        place (Place): The place that will be the first.
        forecast (Forecast): What is known of it.
        more (int): How many others are close, too.
    """

    place: Place
    forecast: Forecast
    more: int


def _of_place(check: Check) -> Check:
    return list_of(tuple_of(text(), text(), text(), check))


def _points(value: Any) -> list[tuple[int, float]]:
    points = list_of(tuple_of(count, number))(value)
    if not points or any(
        one[0] >= two[0] for one, two in zip(points, points[1:])
    ):
        raise ValueError('must be of one iteration after the other')
    return points


class HeadroomTracks:
    """The samples of all places, and what was said of them.

    Args:
        horizon (float): Warn so many iterations before an overflow.
        max_share (float): Warn of this share of the range in any case.
    """

    checks = dict(points=_of_place(_points), said=_of_place(number))

    def __init__(self, horizon: float, max_share: float) -> None:
        self._horizon = horizon
        self._max_share = max_share
        self._points: dict[Place, list[tuple[int, float]]] = {}
        # Doublings that were left when it was said.
        self._said: dict[Place, float] = {}

    def add(self, iteration: int, shares: Mapping[Place, float]) -> None:
        """Add the samples of one iteration.

        Args:
            iteration (int): The iteration.
            shares (Mapping): Places to their largest values, as shares of
                the range.
        """
        for place, share in shares.items():
            # What is not finite has overflowed, or was meant to be infinite;
            # what has exactly the largest value is a mask.
            if not 0 < share < math.inf or share == 1.0:
                continue
            bits = math.log2(share)
            if bits < _FAR:
                self._points.pop(place, None)
                continue
            points = self._points.setdefault(place, [])
            points.append((iteration, bits))
            del points[:-WINDOW]

    def warn(self, iteration: int) -> Warned | None:
        """The place of this iteration to warn of, if there is one.

        A place is named again when half of what it had left is gone.
        """
        close = {
            place: known
            for place, points in self._points.items()
            if points[-1][0] == iteration
            and self._is_close(known := forecast(points))
        }
        new = [place for place in close if self._is_news(place, close[place])]
        for place in new:
            self._said[place] = -math.log2(close[place].share)
        if not new:
            return None
        first = min(new, key=lambda place: _urgency(close[place]))
        return Warned(first, close[first], len(close) - 1)

    def _is_close(self, known: Forecast) -> bool:
        return known.share >= self._max_share or known.left < self._horizon

    def _is_news(self, place: Place, known: Forecast) -> bool:
        left = -math.log2(known.share)
        return left < 0.5 * self._said.get(place, math.inf)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'points': [[*k, v] for k, v in self._points.items()],
            'said': [[*k, v] for k, v in self._said.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._points = {
            Place(*place): points for *place, points in state['points']
        }
        self._said = {Place(*place): left for *place, left in state['said']}


def shares_of_range(
    peaks: Mapping[Place, float], scale: float, floor: float
) -> dict[Place, float]:
    """The largest values as shares of their ranges.

    A gradient that overflows makes the loss scale smaller, so what counts is
    what it would be at the smallest one.

    Args:
        peaks (Mapping): Places to their largest values.
        scale (float): The loss scale.
        floor (float): The smallest one that it can become.
    """
    return {
        place: peak
        * (floor / scale if place.kind == GRADIENT else 1.0)
        / place.range_end
        for place, peak in peaks.items()
    }


def _urgency(known: Forecast) -> tuple[float, float]:
    return known.left, -known.share
