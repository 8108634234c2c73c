"""The largest numbers of a series, and steps that are far above them."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from mmstable.events.saved import Saved
from mmstable.io.schema import count, within

if TYPE_CHECKING:
    from mmstable.events import Fault
    from mmstable.optim.pending_step import PendingStep


class SortedWindow:
    """Remembers the newest numbers and knows their quantiles.

    Args:
        maxlen (int): How many to remember.
    """

    def __init__(self, maxlen: int) -> None:
        self._values: deque[float] = deque(maxlen=maxlen)
        self._ordered: list[float] = []

    @property
    def maxlen(self) -> int | None:
        """How many are remembered at most."""
        return self._values.maxlen

    def append(self, value: float) -> int:
        """Remember one more, and forget the oldest if there are too many.

        Returns:
            int: How many are remembered now.
        """
        values = self._values
        if len(values) == values.maxlen:
            del self._ordered[bisect.bisect_left(self._ordered, values[0])]
        values.append(value)
        bisect.insort(self._ordered, value)
        return len(values)

    def extend(self, values: Iterable[float]) -> None:
        """Remember several."""
        for value in values:
            self.append(value)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._ordered.clear()

    def quantile(self, share: float) -> float:
        """The value that so large a share of all is below, interpolated."""
        place = (len(self._ordered) - 1) * share
        below = int(place)
        above = min(below + 1, len(self._ordered) - 1)
        rest = place - below
        return self._ordered[below] * (1 - rest) + self._ordered[above] * rest

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)


class Peak(Saved):
    """The largest magnitude of a series so far, which fades slowly.

    Args:
        factor (float): A number above so many peaks is suspicious. Defaults
            to 10.0.
        warmup (int): Numbers before any is suspicious. Defaults to 50.
    """

    state = dict(peak=within(0), count=count)
    # What is left of the peak after one more number: a third after 10,000.
    _KEPT = math.exp(-1 / 10_000)

    def __init__(self, factor: float = 10.0, warmup: int = 50) -> None:
        self._factor, self._warmup = factor, warmup
        self.count = 0
        self.peak = 0.0
        # A number above this is suspicious.
        self.limit = math.inf

    def observe(self, value: float) -> None:
        """Take a finite number of the series into account."""
        self.count += 1
        self.peak = max(self.peak * self._KEPT, abs(value))
        self._set_limit()

    def _set_limit(self) -> None:
        if self.count >= self._warmup:
            # A series of zeros has no peak yet.
            self.limit = self._factor * self.peak or math.inf

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self._set_limit()


@dataclass
class StepHold:
    """Which steps are held before their update, and what judges them.

    Args:
        loss (Peak): Of the losses.
        norm (Peak): Of the norms of gradients after clipping.
        judge (Callable): Called with the held step, its norm and its loss:
            the fault to skip it for, or None to apply it.
    """

    loss: Peak
    norm: Peak
    judge: Callable[[PendingStep, float, float], Fault | None]
