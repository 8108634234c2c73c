"""How far numbers of a series usually are above its level."""

from __future__ import annotations

import math
from typing import NamedTuple

from mmstable.numerics.sorted_window import SortedWindow

# The distance of the quartiles of a normal distribution, in deviations.
_QUARTILES = 1.349
# The error of a median of n normal numbers, in deviations over sqrt(n).
_MEDIAN_ERROR = 1.25
# Numbers that hardly vary would otherwise make a spike of anything, and those
# of a run that has just begun of nothing.
LEAST_DEVIATION, _MOST_DEVIATION = 0.3, 0.5
# So many times the level is a spike, unless such numbers are known.
_ALWAYS = math.log(1000)
# In a series that varies so much that this is within four deviations, it
# says nothing; what is above five does.
_WIDE, _FAR = _ALWAYS / 4, 5.0
# Keeps `math.exp` in its range.
HIGHEST = 500.0


class Yardstick(NamedTuple):
    """Measures numbers as heights: logarithms of a multiple of a unit.

    Args:
        base (float): Where the unit is counted from.
        unit (float): What a height of 0 is above the base.
        usual (float): A height that is unusual in any series.
        ceiling (float): A height that is a spike unless it is known, below a
            thousand times the level by what the level may be wrong.
        deviation (float): That of the logarithms; 0 where there are none.
    """

    base: float
    unit: float
    usual: float
    ceiling: float
    deviation: float

    @classmethod
    def of(
        cls, window: SortedWindow, threshold: float, spread: float
    ) -> Yardstick:
        """Measure by a window of numbers, none of which is zero.

        Losses and norms vary by factors, so their level is the unit. Where a
        quartile is not positive, as with losses below zero, it is a
        deviation above the median.

        Args:
            window (SortedWindow): The numbers.
            threshold (float): How many deviations are unusual.
            spread (float): The deviation of the logarithms for long.
        """
        low, level, high = map(window.quantile, (0.25, 0.5, 0.75))
        if low <= 0:
            deviation = (high - low) / _QUARTILES
            unit = max(deviation, LEAST_DEVIATION * abs(level))
            return cls(level, unit, math.log(threshold), _ALWAYS, 0.0)
        deviation = math.log(high / low) / _QUARTILES
        if spread > _WIDE:
            usual = min(max(_FAR, threshold / 2) * spread, HIGHEST)
            return cls(0.0, level, usual, usual, deviation)
        error = _MEDIAN_ERROR * deviation / math.sqrt(len(window))
        bounded = min(max(deviation, LEAST_DEVIATION), _MOST_DEVIATION)
        usual = min(threshold * bounded, HIGHEST)
        # Four errors: none of 10,000 levels is further off.
        return cls(0.0, level, usual, _ALWAYS - 4 * error, deviation)

    def height(self, value: float) -> float:
        """How high a number is; 0 for all that are below the unit."""
        multiple = (value - self.base) / self.unit
        return min(math.log(max(multiple, 1.0)), HIGHEST)

    def limit(self, peak: float, margin: float, known: float) -> float:
        """The largest number that is no spike.

        Args:
            peak (float): The height that numbers reach.
            margin (float): How much higher they may get.
            known (float): The height that they are known to reach, whatever
                the ceiling is.
        """
        highest = peak + margin
        if peak < _ALWAYS:
            highest = min(highest, max(self.ceiling, known + margin))
        return self.number(max(self.usual, highest))

    def number(self, height: float) -> float:
        """The number of a height."""
        return self.base + self.unit * math.exp(height)
