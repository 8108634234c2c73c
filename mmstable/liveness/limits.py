"""How long may a phase of training take?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mmstable.liveness.phases import BUSY, DEBUGGER, RARE, Phase

PHASES = (*BUSY, *RARE)
# Iterations of a process that are slow by nature.
FIRST_ITERATIONS = 3


class PhaseLimits:
    """Limits that are learned from the run, or set by hand.

    The second longest time of every phase is remembered, so that a single
    outlier does not raise its limit. The first iterations are slow by nature;
    but what takes long in all of them is expected to do so later. Phases that
    are too short to be seen need not be remembered: the least limit is enough
    for them.

    Args:
        by_hand (Mapping): Phases, or classes of hooks, and their limits in
            seconds.
        least (float): The least limit of what is part of every iteration.
        least_rare (float): The same of all else, and of first iterations.
        factor (float): How much longer than ever before is too long.
    """

    def __init__(
        self,
        by_hand: Mapping[str, float],
        least: float,
        least_rare: float,
        factor: float,
    ) -> None:
        self._by_hand = dict(by_hand)
        self._least, self._least_rare = least, least_rare
        self._factor = factor
        self._longest: dict[Phase, tuple[float, float]] = {}
        self._first: dict[Phase, list[float]] = {}

    @property
    def shortest(self) -> float:
        """No limit is ever less."""
        return min(self._least, self._least_rare, *self._by_hand.values())

    def learn(self, phase: Phase, seconds: float, is_first: bool) -> None:
        """Remember how long a phase has lasted.

        Args:
            phase (Phase): The phase.
            seconds (float): How long.
            is_first (bool): Whether it was in one of the first iterations.
        """
        if is_first and phase.name in BUSY:
            self._first.setdefault(phase, []).append(seconds)
            return
        first, second = self._longest.get(phase, (0.0, 0.0))
        *_, second, first = sorted((first, second, seconds))
        self._longest[phase] = first, second

    def of(self, phase: Phase, is_first: bool) -> float:
        """The limit of a phase, in seconds.

        Args:
            phase (Phase): The phase.
            is_first (bool): Whether it is in one of the first iterations.
        """
        if phase.name == DEBUGGER:
            return math.inf
        for name in (phase.part, phase.name):
            # Not 'data' for the data of a validation.
            if name in self._by_hand and (
                name == phase.name or name not in PHASES
            ):
                return self._by_hand[name]
        is_rare = is_first or phase.name not in BUSY
        least = self._least_rare if is_rare else self._least
        seen = self._longest.get(phase, (0.0, 0.0))[1]
        first = self._first.get(phase, [])
        if len(first) >= FIRST_ITERATIONS:
            seen = max(seen, sorted(first)[-FIRST_ITERATIONS])
        return max(least, self._factor * seen)
