"""Is this number far above those of late?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mmstable.checked_json import count, list_of, number, record, within
from mmstable.numerics.outliers import Outliers, Recurrence
from mmstable.numerics.sorted_window import SortedWindow
from mmstable.numerics.yardstick import HIGHEST, LEAST_DEVIATION, Yardstick


class Learned(NamedTuple):
    """Numbers far above all others that were found to recur.

    Args:
        times (int): How many have come.
        among (int): Among how many numbers.
        value (float): How large they are.
        level (float): The level then.
    """

    times: int
    among: int
    value: float
    level: float


def _usual(value: Any) -> float:
    known = number(value)
    if known == 0:
        raise ValueError('must not be 0')
    return known


class SpikeDetector:
    """Tells numbers that jump above their recent level.

    The level is the median of the window. A spike is above both of these:

    - ``threshold`` deviations over the level. They are judged by the
      quartiles of the window, in logarithms, so that a few outliers change
      nothing.
    - ``1 + threshold / 10`` times the peak: the largest multiple of the level
      that was no spike. It is nearly never forgotten, so that series with a
      long tail or with rare hard batches are known after a while.

    A thousand times the level is a spike until such numbers are known, unless
    that is less than four deviations, as found in the long run; then five
    are. Zeros, as hinge losses have them, say nothing and are left out. What
    is found to be a spike is not remembered, with three exceptions: those
    that the series falls back from and that recur are rare hard batches;
    more than one in ten are usual, too: they raise the peak; and where
    nothing but spikes comes any more, the level has moved: they become the
    new window.

    Args:
        window (int): How many numbers to remember. Defaults to 100.
        threshold (float): How many deviations above the median are too many.
            Defaults to 10.0.
        warmup (int): How many numbers it takes before any can be a spike.
            Defaults to 50.
        patience (int): So many spikes in a row are a new level. Defaults to
            20.
    """

    saved = staticmethod(
        record(
            window=list_of(_usual),
            spikes=list_of(_usual),
            peak=within(0, HIGHEST),
            known=within(0, HIGHEST),
            moderate_outliers=Outliers.saved,
            high_outliers=Outliers.saved,
            place=count,
            spread=within(0),
            spike_count=within(0),
        )
    )
    # Numbers after which the limit is found anew.
    _LIMIT_LASTS = 10
    # What of the peak is left after one more number: half after 200,000.
    _KEPT = 0.5 ** (1 / 200_000)
    # So many outliers among so many numbers are known: those below the
    # ceiling, those above it, and either kind if it takes longer.
    _OFTEN, _FEW, _SELDOM = (3, 200), (5, 200), (10, 10_000)
    # How many spikes a usual number outweighs.
    _SPIKE_SHARE = 0.1
    # What one more deviation counts in the spread: it comes from zero, so
    # that only a long series is found to vary much.
    _SPREAD_SHARE = 0.03

    def __init__(
        self,
        window: int = 100,
        threshold: float = 10.0,
        warmup: int = 50,
        patience: int = 20,
    ) -> None:
        self._window = SortedWindow(window)
        self._threshold = threshold
        self._margin = math.log(1 + threshold / 10)
        self._surely_usual = threshold * LEAST_DEVIATION
        self._warmup = min(warmup, window)
        self._patience = patience
        # Those since the last number that is none.
        self._spikes: list[float] = []
        # What the newest spike was compared with.
        self.exceeded = math.nan
        # As a height of the yardstick.
        self._peak = 0.0
        # The height above the ceiling that numbers were seen to recur at.
        self._known = 0.0
        # The first of them, until somebody has taken note of it.
        self.learned: Learned | None = None
        self._moderate = Outliers(self._OFTEN, self._SELDOM)
        self._high = Outliers(self._FEW, self._SELDOM)
        # The usual numbers so far, and their deviation in the long run.
        self._place = 0
        self._spread = 0.0
        self._spike_count = 0.0
        # What is above this is a spike. Known before the number comes, so
        # that a device can be told; finding it takes longer than comparing.
        self.limit = math.inf

    @property
    def level(self) -> float:
        """The median of what is remembered; NaN if that is nothing."""
        return self._window.quantile(0.5) if len(self._window) else math.nan

    def _find_limit(self) -> None:
        if self._is_warm:
            self.limit = self._yardstick.limit(
                self._peak, self._margin, self._known
            )
        else:
            self.limit = math.inf

    @property
    def _is_warm(self) -> bool:
        return len(self._window) >= self._warmup

    @property
    def _yardstick(self) -> Yardstick:
        return Yardstick.of(self._window, self._threshold, self._spread)

    def is_spike(self, value: float) -> bool:
        """Whether a number is one, without remembering it."""
        return math.isfinite(value) and value > self.limit

    def observe(self, value: float) -> bool:
        """Remember a number; whether it is a spike."""
        if self._is_nothing_new(value):
            # The short way for most numbers; they teach nothing.
            self._peak *= self._KEPT
            self._remember(value)
            return False
        is_spike = self.is_spike(value)
        if not math.isfinite(value) or value == 0:
            return is_spike
        if is_spike:
            self.exceeded = self.level
            self._add_spike(value)
        else:
            self._add_usual(value)
        self._find_limit()
        return is_spike

    def _is_nothing_new(self, value: float) -> bool:
        """Whether a number is below the peak, and far below any limit."""
        height = min(self._peak * self._KEPT, self._surely_usual)
        level = self._window.lower_median()
        return 0 < value <= level * math.exp(height) and not self._spikes

    def _add_usual(self, value: float) -> None:
        if self._is_warm:
            yardstick = self._yardstick
            height = yardstick.height(value)
            self._peak = max(self._peak * self._KEPT, height)
            self._learn_outlier(yardstick)
        self._spikes.clear()
        self._remember(value)

    def _remember(self, value: float) -> None:
        count = self._window.append(value)
        self._place += 1
        self._spike_count = max(0.0, self._spike_count - self._SPIKE_SHARE)
        if self._place % self._LIMIT_LASTS == 0:
            if self._is_warm:
                more = self._yardstick.deviation - self._spread
                self._spread += self._SPREAD_SHARE * more
            self._find_limit()
        elif count == self._warmup:
            self._find_limit()

    def _learn_outlier(self, yardstick: Yardstick) -> None:
        """Learn from spikes that the series has just fallen back from."""
        height = yardstick.height(max(self._spikes, default=-math.inf))
        if height <= 0:
            return
        is_high = height >= yardstick.ceiling
        outliers = self._high if is_high else self._moderate
        found = outliers.add(self._place, height)
        if found is not None:
            self._learn(found, yardstick)

    def _learn(self, found: Recurrence, yardstick: Yardstick) -> None:
        self._peak = max(self._peak, found.height)
        if found.height < yardstick.ceiling:
            return
        if not self._known:
            value = yardstick.number(found.height)
            self.learned = Learned(*found[:2], value, self.level)
        self._known = max(self._known, found.height)

    def _add_spike(self, value: float) -> None:
        self._spikes.append(value)
        self._spike_count += 1
        if len(self._spikes) >= self._patience:
            self._window.clear()
            self._window.extend(self._spikes)
            self._spikes.clear()
            self._spike_count = 0.0
        elif self._spike_count >= self._patience:
            yardstick = self._yardstick
            among = round(self._patience / self._SPIKE_SHARE)
            height = yardstick.height(value)
            self._learn(Recurrence(self._patience, among, height), yardstick)
            self._spike_count = 0.0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'window': list(self._window),
            'spikes': list(self._spikes),
            'peak': self._peak,
            'known': self._known,
            'moderate_outliers': self._moderate.state(),
            'high_outliers': self._high.state(),
            'place': self._place,
            'spread': self._spread,
            'spike_count': self._spike_count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._window.clear()
        self._window.extend(state['window'])
        self._spikes = list(state['spikes'])
        self._peak, self._known = state['peak'], state['known']
        self._moderate.load(state['moderate_outliers'])
        self._high.load(state['high_outliers'])
        self._place, self._spread = state['place'], state['spread']
        self._spike_count = state['spike_count']
        self._find_limit()
