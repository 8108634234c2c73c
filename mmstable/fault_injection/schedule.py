"""When is a fault due?"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from mmstable.messages import _
from mmstable.settings import integers, number, refuse

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
                    _(
                        'one of `at`, `between` and `probability` must say '
                        'when.'
                    )
                )
        elif self.at is not None and not (
            self.between is None and self.probability is None
        ):
            raise ValueError(
                _(
                    '`at` names iterations by itself; `between` and '
                    '`probability` do not go with it.'
                )
            )
        self._set('at', _whole_numbers('at', self.at, least=1))
        self._set('rank', _whole_numbers('rank', self.rank, least=0))
        self._set('between', _first_and_last(self.between))
        if self.probability is not None:
            number('', 'probability', self.probability, above=0, at_most=1)

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


def draw(*numbers: int) -> float:
    """A random number in [0, 1) that depends on these numbers only."""
    text = ' '.join(map(str, numbers)).encode()
    digest = hashlib.blake2b(text, digest_size=7).digest()
    return int.from_bytes(digest, 'big') / 2.0**56


def _whole_numbers(name: str, value: Any, least: int) -> frozenset | None:
    if value is None:
        return None
    return frozenset(integers('', name, value, least))


def _first_and_last(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    first, last = integers('', 'between', value) if is_pair else (1, 0)
    if first > last:
        refuse(
            '', 'between', _('(first, last) with 1 <= first <= last'), value
        )
    return first, last
