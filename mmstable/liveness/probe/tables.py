"""Steps and events as rows, whose columns never change their type.

``probing`` shows a table as empty if one value has another type than those
above it, or none at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from mmstable.events.event import Event
from mmstable.events.json_lines import encode
from mmstable.events.step_report import StepReport

STEPS = 'mmstable_steps'
STEP_COLUMNS = (
    'iteration',
    'time',
    'wrapper',
    'rank',
    'outcome',
    'fault',
    'loss',
    'loss_scale',
    'next_loss_scale',
    'grad_norm',
    'clip_coef',
    'culprits',
)
EVENTS = 'mmstable_events'
EVENT_COLUMNS = ('iteration', 'time', 'event', 'facts')
# Culprits and characters that a row can have.
_MOST_CULPRITS, _LONGEST = 5, 4000


def step_row(report: StepReport) -> list[Any]:
    """A step as a row."""
    culprits = [one.name for one in report.culprits[:_MOST_CULPRITS]]
    return [
        int(report.iteration),
        float(report.time),
        str(report.wrapper),
        int(report.rank),
        str(report.outcome),
        _text(report.fault),
        _number(report.loss),
        _number(report.loss_scale),
        _number(report.next_loss_scale),
        _number(report.grad_norm),
        _number(report.clip_coef),
        ' '.join(culprits),
    ]


def event_row(event: Event) -> list[Any]:
    """An event as a row; all that it says as JSON, which may be cut."""
    facts = encode(event).decode('ascii').strip()
    return [
        int(event.iteration),
        float(event.time),
        str(event.event),
        facts[:_LONGEST],
    ]


class Tables:
    """The tables of a process.

    Args:
        make (Callable): Makes a table of a name and its columns, or gives
            the one that is there; it has ``append``.
    """

    def __init__(self, make: Callable[[str, Sequence[str]], Any]) -> None:
        self._steps = make(STEPS, STEP_COLUMNS)
        self._events = make(EVENTS, EVENT_COLUMNS)

    def add_step(self, report: StepReport) -> None:
        """Add a step."""
        self._steps.append(step_row(report))

    def add_event(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event_row(event))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _text(value: object) -> str:
    return '' if value is None else str(value)
