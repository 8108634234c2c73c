"""Time several ways of doing one thing side by side, in one process."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable


def _nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Contender:
    """One of the ways.

    Args:
        name (str): What to call it.
        run (Callable): What is timed.
        prepare (Callable): Called before every run and not timed. Defaults
            to a function that does nothing.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = _nothing


@dataclass(frozen=True)
class Race:
    """Times of all contenders.

    Args:
        seconds (dict[str, list[float]]): Name to the times of its runs.
        control (str): Name of the second, identical entry of the first
            contender.
    """

    seconds: dict[str, list[float]]
    control: str

    def median(self, name: str) -> float:
        """Median time in seconds."""
        return statistics.median(self.seconds[name])

    def best(self, name: str) -> float:
        """Shortest time in seconds."""
        return min(self.seconds[name])

    def ratio(self, name: str, base: str) -> float:
        """Ratio of two medians."""
        return self.median(name) / self.median(base)

    def best_ratio(self, name: str, base: str) -> float:
        """Ratio of two shortest times."""
        return self.best(name) / self.best(base)

    @property
    def noise(self) -> float:
        """Ratio of medians of the first contender to itself."""
        return self.ratio(self.control, next(iter(self.seconds)))

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Median and shortest time of each, in milliseconds."""
        return {
            name: {
                'median_ms': 1e3 * self.median(name),
                'best_ms': 1e3 * self.best(name),
                'runs': len(times),
            }
            for name, times in self.seconds.items()
        }


def race(
    contenders: Sequence[Contender],
    rounds: int,
    warmup: int = 2,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Race:
    """Run everyone once in each round, in an order drawn anew.

    The first contender takes part twice: how far the ratio of its two
    medians is from 1 shows what a ratio of this race is worth.

    Args:
        contenders (Sequence[Contender]): Who takes part.
        rounds (int): Timed rounds.
        warmup (int): Rounds before them that are not counted. Defaults to 2.
        seed (int): Of the order. Defaults to 0.
        clock (Callable): What the time is read from. Defaults to
            time.perf_counter.
    """
    first = contenders[0]
    control = f'{first.name} (again)'
    field = [*contenders, Contender(control, first.run, first.prepare)]
    seconds: dict[str, list[float]] = {one.name: [] for one in field}
    order = random.Random(seed)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(-warmup, rounds):
            for one in order.sample(field, len(field)):
                spent = _timed(one, clock)
                if number >= 0:
                    seconds[one.name].append(spent)
    finally:
        if collecting:
            gc.enable()
    return Race(seconds, control)


def _timed(contender: Contender, clock: Callable[[], float]) -> float:
    contender.prepare()
    start = clock()
    contender.run()
    return clock() - start
