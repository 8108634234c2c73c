"""What every event has."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

_E = TypeVar('_E', bound='Event')


@dataclass(frozen=True)
class Event:
    """Something that happened to a run, and a line of its event file.

    The fields of its subclasses are the schema of that file. An event is
    announced by :meth:`mmstable.events.run_monitor.RunMonitor.emit`.

    Args:
        iteration (int): Training iterations done so far, the one that the
            event is about included.
        time (float): Seconds since 1970. Events that differ in nothing else
            are equal.
    """

    event: ClassVar[str]

    iteration: int
    time: float = field(compare=False)

    @classmethod
    def now(cls: type[_E], iteration: int, **facts: Any) -> _E:
        """The event that happens at this moment."""
        return cls(iteration=iteration, time=time.time(), **facts)
