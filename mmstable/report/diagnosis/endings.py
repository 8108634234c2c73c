"""How the last start of a run came to its end."""

from __future__ import annotations

import time
from typing import Any

from mmstable.errors import TrainingHangs, TrainingOutOfMemory
from mmstable.finding import Finding, Severity
from mmstable.messages import say
from mmstable.report.history import History
from mmstable.report.incidents import iteration_of
from mmstable.report.plain import mapping, text, whole
from mmstable.report.start import Start

# Seconds without a record after which a run counts as dead.
_SILENCE = 600.0


def state_of(start: Start, now: float | None = None) -> str:
    """What became of a start: 'finished', 'stopped', 'exception', ...

    Args:
        start (Start): The start.
        now (float, optional): The time, for tests. Defaults to None.

    Returns:
        str: As in its last record; without one 'running' if it has told
        something lately, else 'silent'.
    """
    if start.end is not None:
        reason = text(start.end.get('reason'))
        known = ('finished', 'stopped', 'exception')
        return reason if reason in known else 'stopped'
    age = (time.time() if now is None else now) - start.last_time
    return 'running' if age < _SILENCE else 'silent'


def bad_end(history: History) -> Finding | None:
    """The run has failed, or was killed."""
    last = history.starts[-1]
    state = state_of(last)
    stops = [
        one
        for one in last.incidents.of('intervention')
        if one.get('action') == 'stop'
    ]
    if state == 'stopped' and stops:
        return _stopped_by_guard(last, stops[-1])
    if state not in ('exception', 'silent'):
        return None
    iteration = last.last_iteration
    if state == 'silent':
        return Finding(
            id='bad_end',
            severity=Severity.WARNING,
            path='',
            what=say('diagnosis.silent', iteration=iteration),
            why=say('diagnosis.silent_why'),
            fix=say('diagnosis.end_fix'),
        )
    error = _error_of(last)
    if any(error.startswith(name) for name in _explained(history)):
        # There is a finding about it, which says more.
        return None
    return Finding(
        id='bad_end',
        severity=Severity.ERROR,
        path='',
        what=say('diagnosis.failed', iteration=iteration),
        why=say('diagnosis.place_why', text=error),
        fix=say('diagnosis.failed_fix'),
    )


def _explained(history: History) -> list[str]:
    kinds = {'hang': TrainingHangs, 'out_of_memory': TrainingOutOfMemory}
    return [
        f'{error.__module__}.{error.__name__}: '
        for kind, error in kinds.items()
        if history.incidents(kind)
    ]


def _error_of(start: Start) -> str:
    """The line of a traceback that says what happened."""
    trace = mapping(start.end).get('traceback')
    lines = trace.splitlines() if isinstance(trace, str) else []
    error = ''
    for line in lines:
        if line.startswith(('  File "', 'Traceback (')):
            error = ''
        elif not error and line.strip() and not line.startswith(' '):
            error = line
    return text(error)


def _stopped_by_guard(start: Start, stop: dict[str, Any]) -> Finding:
    rollbacks = [
        one
        for one in start.incidents.of('intervention')
        if one.get('action') == 'rollback'
    ]
    since = whole(stop.get('since'))
    return Finding(
        id='bad_end',
        severity=Severity.ERROR,
        path='',
        what=say(
            'diagnosis.guard_stop',
            iteration=iteration_of(stop),
            fault=text(stop.get('fault')),
            since=since,
            rollbacks=len(rollbacks),
        ),
        why=say('diagnosis.place_why', text=text(stop.get('reason'))),
        fix=say('diagnosis.guard_stop_fix', since=since),
    )
