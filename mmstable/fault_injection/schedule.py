"""When is a fault due?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SETTINGS = ('at', 'between', 'probability', 'rank')


@dataclass(frozen=True)
class Schedule:
    """The iterations and ranks of one fault.

    Nothing is remembered: a resumed run is asked the same questions and gets
    the same answers.

    Args:
        at (int or Sequence[int], optional): Iterations, counted from 1 as in
            the log. Defaults to None.
        between (Sequence[int], optional): The first and the last iteration.
            Defaults to None.
        probability (float, optional): The chance in every iteration, of all
            or of those ``between``, drawn on every rank for itself.
            Defaults to None, which means 1.
        rank (int or Sequence[int], optional): The only ranks to act on.
            Defaults to None, which means all.
    """

    at: Any = None
    between: Any = None
    probability: float | None = None
    rank: Any = None

    def __post_init__(self) -> None:
        if self.at is None and self.between is None:
            if self.probability is None:
                raise ValueError(
                    'one of `at`, `between` and `probability` must say when'
                )
        elif self.at is not None and not (
            self.between is None and self.probability is None
        ):
            raise ValueError(
                '`at` names iterations by itself; `between` and '
                '`probability` do not go with it'
            )
        self._set('at', _whole_numbers('at', self.at, least=1))
        self._set('rank', _whole_numbers('rank', self.rank, least=0))
        self._set('between', _first_and_last(self.between))
        _check_probability(self.probability)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def is_due(self, iteration: int, rank: int, *luck: int) -> bool:
        """Whether the fault happens now and here.

        Args:
            iteration (int): The iteration, counted from 1.
            rank (int): The rank of this process.
            *luck (int): What a probability is drawn from, besides these two.
        """
        if self.rank is not None and rank not in self.rank:
            return False
        if self.at is not None:
            return iteration in self.at
        if self.between is not None:
            first, last = self.between
            if not first <= iteration <= last:
                return False
        if self.probability is None:
            return True
        return draw(*luck, iteration, rank) < self.probability

    def begins_after(self, last_iteration: int) -> bool:
        """Whether a run of this length ends before the fault is due."""
        if self.at is not None:
            return min(self.at) > last_iteration
        return self.between is not None and self.between[0] > last_iteration

    def __str__(self) -> str:
        parts = []
        if self.at is not None:
            parts.append(f'at {_listed("iteration", self.at)}')
        if self.between is not None:
            first, last = self.between
            parts.append(f'in iterations {first} to {last}')
        if self.probability is not None:
            parts.append(f'with probability {self.probability}')
        if self.rank is not None:
            parts.append(f'on {_listed("rank", self.rank)}')
        return ', '.join(parts)


def draw(*numbers: int) -> float:
    """A random number in [0, 1) that depends on these numbers only."""
    text = ' '.join(map(str, numbers)).encode()
    digest = hashlib.blake2b(text, digest_size=7).digest()
    return int.from_bytes(digest, 'big') / 2.0**56


def _whole_numbers(name: str, value: Any, least: int) -> frozenset | None:
    if value is None:
        return None
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    numbers = list(value) if is_list else [value]
    if not numbers or not all(_is_whole(one, least) for one in numbers):
        raise ValueError(
            f'`{name}` must be an int of at least {least} or a list of '
            f'these, got {value!r}'
        )
    return frozenset(numbers)


def _first_and_last(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    if (
        not is_pair
        or not all(_is_whole(one, 1) for one in value)
        or value[0] > value[1]
    ):
        raise ValueError(
            '`between` must be (first, last) with 1 <= first <= last, got '
            f'{value!r}'
        )
    return value[0], value[1]


def _check_probability(value: Any) -> None:
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:
        raise ValueError(
            '`probability` must be a number above 0 and up to 1, got '
            f'{value!r}'
        )


def _is_whole(value: Any, least: int) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= least
    )


def _listed(noun: str, numbers: frozenset[int]) -> str:
    plural = 's' if len(numbers) > 1 else ''
    return f'{noun}{plural} {", ".join(map(str, sorted(numbers)))}'
