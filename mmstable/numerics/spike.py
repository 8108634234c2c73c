"""Is this number far above those of late?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmstable.numerics.sorted_window import SortedWindow

# The distance of the quartiles of a normal distribution, in deviations.
_QUARTILES = 1.349


class SpikeDetector:
    """Tells numbers that jump above their recent level.

    The level is the median of the window, and what is usual is judged by its
    quartiles, so that a few outliers change neither. Both are taken of the
    logarithm: losses and norms vary by factors. (Where a quartile is not
    positive, as with losses below zero, they are taken as they are.) Only
    finite numbers that are no spikes are remembered. Where nothing but spikes
    comes any more, the level has moved: they become the new window.

    Args:
        window (int): How many numbers to remember. Defaults to 100.
        threshold (float): How many deviations above the median are too many.
            Defaults to 10.0.
        warmup (int): How many numbers it takes before any can be a spike.
            Defaults to 50.
        patience (int): So many spikes in a row are a new level. Defaults to
            20.
    """

    # Numbers that hardly vary would otherwise make a spike of anything, and
    # those of a run that has just begun of nothing.
    _LEAST_DEVIATION, _MOST_DEVIATION = 0.3, 0.5

    def __init__(
        self,
        window: int = 100,
        threshold: float = 10.0,
        warmup: int = 50,
        patience: int = 20,
    ) -> None:
        self._window = SortedWindow(window)
        self._threshold = threshold
        self._warmup = min(warmup, window)
        self._patience = patience
        self._spikes: list[float] = []
        # What the newest spike was compared with.
        self.exceeded = math.nan
        # No limit is below the median times this, if that is positive.
        self._surely_normal = 1.0 + threshold * self._LEAST_DEVIATION

    @property
    def level(self) -> float:
        """The median of what is remembered; NaN if that is nothing."""
        return self._window.quantile(0.5) if len(self._window) else math.nan

    @property
    def limit(self) -> float:
        """What is above this is a spike."""
        if len(self._window) < self._warmup:
            return math.inf
        level = self.level
        low, high = self._window.quantile(0.25), self._window.quantile(0.75)
        if low > 0:
            deviation = math.log(high / low) / _QUARTILES
            deviation = min(
                max(deviation, self._LEAST_DEVIATION), self._MOST_DEVIATION
            )
            return level * math.exp(self._threshold * deviation)
        deviation = max(
            (high - low) / _QUARTILES, self._LEAST_DEVIATION * abs(level)
        )
        return level + self._threshold * deviation

    def is_spike(self, value: float) -> bool:
        """Whether a number is one, without remembering it."""
        return math.isfinite(value) and value > self.limit

    def observe(self, value: float) -> bool:
        """Remember a number; whether it is a spike."""
        if not math.isfinite(value):
            return False
        median = self._window.lower_median()
        is_normal = value <= median * self._surely_normal and median > 0
        if is_normal or not self.is_spike(value):
            self._spikes.clear()
            self._window.append(value)
            return False
        self.exceeded = self.level
        self._spikes.append(value)
        if len(self._spikes) >= self._patience:
            self._window.clear()
            self._window.extend(self._spikes)
            self._spikes.clear()
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'window': list(self._window), 'spikes': list(self._spikes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._window.clear()
        self._window.extend(state['window'])
        self._spikes = list(state['spikes'])
