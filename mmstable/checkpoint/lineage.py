"""Which starts of a run does a checkpoint come from?

Clocks can be set back, files be copied and numbers of iterations come again.
So a checkpoint says of itself which run it belongs to, and how often that run
was started before it was saved, and where each start began.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from mmstable.checked_json import count, list_of, record, text, tuple_of

# A run that was started more often forgets the oldest starts.
_MOST_STARTS = 500
_LARGEST = 2**53
_CHECK = record(run=text(64), starts=list_of(tuple_of(count, count)))


@dataclass(frozen=True)
class Lineage:
    """The past of a checkpoint.

    Args:
        run (str): The run, by a name that no other has.
        starts (tuple[tuple[int, int]]): All starts, the oldest first: a
            number that is higher than that of any start before it in this
            folder, and the iterations done when it began.
    """

    run: str
    starts: tuple[tuple[int, int], ...]

    @classmethod
    def begin(cls, number: int, iteration: int = 0) -> Lineage:
        """That of a run which is not known to continue another."""
        return cls(secrets.token_hex(8), ((number, iteration),))

    @classmethod
    def after(
        cls, number: int, resumed: Lineage | None, iteration: int
    ) -> Lineage:
        """That of the next start in a folder.

        Args:
            number (int): Of the last start there.
            resumed (Lineage, optional): Of the checkpoint that was loaded.
            iteration (int): Iterations done: 0 for a new run that only takes
                the weights.
        """
        if resumed is None or iteration == 0:
            return cls.begin(number + 1, iteration)
        return resumed.resume(1 + max(number, resumed.number), iteration)

    @classmethod
    def read(cls, content: Any) -> Lineage | None:
        """What :meth:`as_dict` gave, from a file; None if it is not sound."""
        try:
            known = _CHECK(content)
        except ValueError:
            return None
        return (
            cls(known['run'], tuple(known['starts']))
            if all(known.values())
            else None
        )

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {'run': self.run, 'starts': [list(one) for one in self.starts]}

    @property
    def number(self) -> int:
        """The number of the last start."""
        return self.starts[-1][0]

    def resume(self, number: int, iteration: int) -> Lineage:
        """That of a run which continues this one at an iteration."""
        starts = (*self.starts, (number, iteration))
        return Lineage(self.run, starts[-_MOST_STARTS:])

    def includes(self, other: Lineage | None, iteration: int) -> bool:
        """Whether a checkpoint is of the past, or the future, of this start.

        Not so if it is of another run, or if a later start has begun before
        it: then the run went back, and has left it behind.

        Args:
            other (Lineage, optional): The lineage of that checkpoint; None if
                it was saved by others, whose run this one may continue.
            iteration (int): Iterations done in it.
        """
        if other is None:
            return iteration <= self.starts[0][1]
        if other.run != self.run:
            return False
        ends = [begin for _, begin in self.starts[1:]]
        for (number, _), end in zip(self.starts, [*ends, _LARGEST]):
            if number == other.number:
                return iteration <= end
        # Forgotten: older than all others.
        return other.number < self.starts[0][0]
