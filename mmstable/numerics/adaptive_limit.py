"""Limits on gradient norms that follow the norms of late."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

from mmstable.numerics.sorted_window import SortedWindow


class _RecentNorms(ABC):
    """Norms of applied steps, finite ones only.

    Args:
        window (int): How many to remember.
        warmup (int): How many it takes before there is a limit.
        max_norm (float, optional): A limit at any time.
    """

    def __init__(
        self, window: int, warmup: int, max_norm: float | None
    ) -> None:
        self.norms: deque[float] | SortedWindow = deque(maxlen=window)
        self._warmup = warmup
        self._max_norm = max_norm

    def current(self) -> float | None:
        """The limit for the next step; None for no limit."""
        if len(self.norms) < self._warmup:
            return self._max_norm
        learned = self._learned_limit()
        # All norms were zero: that is no reason to stop for good.
        if learned <= 0:
            return self._max_norm
        return min(learned, self._max_norm or math.inf)

    @abstractmethod
    def _learned_limit(self) -> float:
        """What the remembered norms say."""

    def observe(self, norm: float) -> None:
        """Hear of the norm, before clipping, of an applied step."""
        if math.isfinite(norm):
            self.norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """The remembered norms."""
        return {'norms': list(self.norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over remembered norms; the newest if there are too many."""
        self.norms.clear()
        self.norms.extend(state['norms'])


class PercentileLimit(_RecentNorms):
    """Clip at a percentile of the recent norms.

    Args:
        percentile (float): Which one, in (0, 100]. Defaults to 90.0.
        window (int): How many norms to remember. Defaults to 1000.
        warmup (int): How many it takes before there is a limit.
            Defaults to 20.
        max_norm (float, optional): A limit at any time. Defaults to None.
    """

    def __init__(
        self,
        percentile: float = 90.0,
        window: int = 1000,
        warmup: int = 20,
        max_norm: float | None = None,
    ) -> None:
        super().__init__(window, warmup, max_norm)
        self._percentile = percentile
        self.norms: SortedWindow = SortedWindow(window)

    def _learned_limit(self) -> float:
        return self.norms.quantile(self._percentile / 100)

    def __str__(self) -> str:
        return f'percentile={self._percentile:g} of {self.norms.maxlen}'


class ZScoreLimit(_RecentNorms):
    """Clip norms that are too many standard deviations above the mean.

    What is remembered of a clipped norm is the limit, not the norm: one
    spike does not lift the next limits, while a lasting rise does.

    Args:
        zscore (float): How many standard deviations. Defaults to 2.5.
        window (int): How many norms to remember. Defaults to 100.
        warmup (int): How many it takes before there is a limit.
            Defaults to 20.
        max_norm (float, optional): A limit at any time. Defaults to None.
    """

    # Norms that hardly vary would otherwise pin the limit to their mean.
    _LEAST_DEVIATION = 0.1

    def __init__(
        self,
        zscore: float = 2.5,
        window: int = 100,
        warmup: int = 20,
        max_norm: float | None = None,
    ) -> None:
        super().__init__(window, warmup, max_norm)
        self._zscore = zscore

    def _learned_limit(self) -> float:
        mean = sum(self.norms) / len(self.norms)
        variance = sum((n - mean) ** 2 for n in self.norms) / len(self.norms)
        deviation = math.sqrt(variance)
        return mean + self._zscore * max(
            deviation, self._LEAST_DEVIATION * mean
        )

    def observe(self, norm: float) -> None:
        """Hear of the norm, before clipping, of an applied step."""
        if math.isfinite(norm):
            super().observe(min(norm, self.current() or math.inf))

    def __str__(self) -> str:
        return f'zscore={self._zscore:g} of {self.norms.maxlen}'
