"""How the last start of a run came to its end."""

from __future__ import annotations

import time
from typing import Any

from mmstable.errors import TrainingHangs, TrainingOutOfMemory
from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.messages.shell_command import shell_command
from mmstable.report.find_runs import log_folder
from mmstable.report.history import History
from mmstable.report.incidents import iteration_of
from mmstable.report.plain import mapping, text, whole
from mmstable.report.start import Start

# Seconds without a record after which a run that cannot be asked counts as
# dead.
_SILENCE = 600.0
# Characters that a terminal shows of a finding, less those around it.
_LONGEST_COMMAND = 300


def state_of(start: Start, now: float | None = None) -> str:
    """What became of a start: 'finished', 'stopped', 'exception', ...

    Args:
        start (Start): The start.
        now (float, optional): The time, for tests. Defaults to None.

    Returns:
        str: As in its last record; without one 'running' or 'killed' if its
        process can be asked, else 'running' if it has told something
        lately, and 'silent' if not.
    """
    if start.end is not None:
        reason = text(start.end.get('reason'))
        known = ('finished', 'stopped', 'exception')
        return reason if reason in known else 'stopped'
    if start.process is not None and start.process.can_be_asked():
        # However long it is silent: a validation may take an hour.
        return 'running' if start.process.is_alive() else 'killed'
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
    if state in ('killed', 'silent'):
        return _without_end(last, state)
    return _failed(history) if state == 'exception' else None


def _without_end(start: Start, state: str) -> Finding:
    iteration = start.last_iteration
    severity = Severity.WARNING
    what = _(
        'The run fell silent at iteration {iteration}.', iteration=iteration
    )
    why = _(
        'There is no last record: it was killed, or the machine went down.'
    )
    if state == 'killed':
        severity = Severity.ERROR
        what = _(
            'The run was killed after iteration {iteration}.',
            iteration=iteration,
        )
        host = text(start.header.host)
        why = _(
            'Process {pid} on {host} is gone, and has left no last record: '
            'it was killed (out of memory? see `dmesg`), it crashed, or the '
            'machine was started again.',
            pid=start.header.pid,
            host=host,
        )
    command = _resume_command(start)
    fix = _(
        'With --max-restarts a run starts again by itself. Resume this one: '
        '{command}',
        command=command,
    )
    if start.header.restarts:
        # Who has used up the restarts knows of them.
        fix = _(
            'It was started again before, and ended again: find out why, '
            'then resume it: {command}',
            command=command,
        )
    return Finding('bad_end', severity, path='', what=what, why=why, fix=fix)


def _resume_command(start: Start) -> str:
    command = start.header.resume_command
    # Half a command is worse than a general one.
    is_fit = 0 < len(command) <= _LONGEST_COMMAND and command.isprintable()
    if not is_fit:
        folder = log_folder(start.path).parent
        command = shell_command(
            ['mmstable', 'train', 'CONFIG', '--work-dir', str(folder)]
        )
    return f'{command} --resume auto'


def _failed(history: History) -> Finding | None:
    last = history.starts[-1]
    error = _error_of(last)
    if any(error.startswith(name) for name in _explained(history)):
        # There is a finding about it, which says more.
        return None
    return Finding(
        id='bad_end',
        severity=Severity.ERROR,
        path='',
        what=_(
            'The run ended with an error at iteration {iteration}.',
            iteration=last.last_iteration,
        ),
        why=_('{text}', text=error),
        fix=_(
            'Mend what it says, then resume: mmstable train CONFIG --resume '
            'auto. What does not happen again is survived by --max-restarts.'
        ),
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
        what=_(
            'The guard has stopped the run at iteration {iteration}: {fault} '
            'since iteration {since}, and {rollbacks:rollback|rollbacks} did '
            'not help.',
            iteration=iteration_of(stop),
            fault=text(stop.get('fault')),
            since=since,
            rollbacks=len(rollbacks),
        ),
        why=_('{text}', text=text(stop.get('reason'))),
        fix=_(
            'Mend what is named here first, then resume from before it: '
            'mmstable train CONFIG --resume --before-iter {since}.',
            since=since,
        ),
    )
