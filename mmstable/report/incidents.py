"""What happened to a run, as many of it as a page can show."""

from __future__ import annotations

from collections import deque
from typing import Any

from mmstable.report.plain import finite, shorten, whole

# Events of each kind that are kept: the first ones and the last ones. Those
# between them are only counted.
FIRST, LAST = 300, 300
MOST_KINDS = 40

# The lane that an event is drawn in; others have a lane in common.
LANES = {
    'step_fault': 'faults',
    'poisoned': 'faults',
    'fault_explained': 'faults',
    'replicas_diverged': 'faults',
    'intervention': 'actions',
    'live_change': 'actions',
    'out_of_memory': 'machine',
    'memory_alarm': 'machine',
    'hang': 'machine',
    'checkpoint_failed': 'machine',
    'low_headroom': 'machine',
    'iteration_profile': 'machine',
    'injected_fault': 'injected',
}


class Incidents:
    """The first and the last events of each kind."""

    def __init__(self) -> None:
        self._first: dict[str, list[dict[str, Any]]] = {}
        self._last: dict[str, deque[dict[str, Any]]] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Keep an event, perhaps until later ones come."""
        kind = record['event']
        first = self._first.get(kind)
        if first is None:
            if len(self._first) >= MOST_KINDS:
                return
            first = self._first[kind] = []
            self._last[kind] = deque(maxlen=LAST)
        if len(first) < FIRST:
            first.append(shorten(record))
        else:
            self._last[kind].append(record)

    def all(self) -> list[dict[str, Any]]:
        """All that are kept, by time."""
        kept = [
            one
            for kind, first in self._first.items()
            for one in [*first, *map(shorten, self._last[kind])]
        ]
        return sorted(kept, key=lambda one: finite(one.get('time')) or 0.0)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All of one kind that are kept."""
        last = self._last.get(kind, ())
        return [*self._first.get(kind, []), *map(shorten, last)]


def iteration_of(record: dict[str, Any]) -> int:
    """The iteration of an event."""
    return whole(record.get('iteration'))
