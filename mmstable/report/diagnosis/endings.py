"""How the last start of a run came to its end."""

from __future__ import annotations

import time

from mmstable.finding import Finding, Severity
from mmstable.messages import say
from mmstable.report.history import History
from mmstable.report.plain import text
from mmstable.report.start import Start

# Seconds without a record after which nobody seems to be at work.
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
    trace = text((last.end or {}).get('traceback')[-500:])  # type: ignore[index]
    lines = [line for line in trace.splitlines() if line.strip()]
    return Finding(
        id='bad_end',
        severity=Severity.ERROR,
        path='',
        what=say('diagnosis.failed', iteration=iteration),
        why=say('diagnosis.place_why', text=lines[-1] if lines else ''),
        fix=say('diagnosis.end_fix'),
    )
