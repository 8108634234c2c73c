"""The largest batch that fits, found by few measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Measurements to find it at most.
_TRIALS = 12
_LARGEST = 1 << 16


class Line(NamedTuple):
    """Bytes as a line over the size of a batch.

    Args:
        fixed (float): What an empty batch would take.
        each (float): What every sample takes.
    """

    fixed: float
    each: float

    @classmethod
    def through(cls, first: tuple[int, int], second: tuple[int, int]) -> Line:
        """The line through two measured (size, bytes)."""
        (small, low), (large, high) = first, second
        each = (high - low) / (large - small)
        return cls(low - each * small, each)

    def at(self, size: int) -> float:
        """The bytes of a batch of this size."""
        return self.fixed + self.each * size

    def fitting(self, limit: int) -> int:
        """The largest batch within a limit; 0 if none is."""
        if self.each <= 0:
            return _LARGEST if self.fixed <= limit else 0
        return max(0, min(_LARGEST, int((limit - self.fixed) / self.each)))


def largest_batch(
    line: Line, limit: int, measure: Callable[[int], int]
) -> int:
    """The largest batch that fits, measured, not only extrapolated.

    Args:
        line (Line): A first guess.
        limit (int): What there is, in bytes.
        measure (Callable): Bytes of a batch of a size.
    """
    fits, fails = 0, _LARGEST + 1
    guess = line.fitting(limit)
    for _ in range(_TRIALS):
        guess = min(max(guess, fits + 1), fails - 1)
        if guess <= fits:
            break
        needed = measure(guess)
        if needed <= limit:
            fits = guess
            step = (limit - needed) / line.each if line.each > 0 else guess
            guess = fits + max(1, int(step))
        else:
            fails = guess
            step = (needed - limit) / line.each if line.each > 0 else guess / 2
            guess = fails - max(1, int(step))
    return fits
