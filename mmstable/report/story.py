"""What happened, one entry for each mark of the timeline."""

from __future__ import annotations

from typing import Any

from mmstable.messages.shell_command import shell_command
from mmstable.report.diagnosis.endings import state_of
from mmstable.report.history import History
from mmstable.report.incidents import LANES
from mmstable.report.plain import finite, text
from mmstable.report.start import Start

# The most entries on a page; others are only counted.
_MOST = 2500


def tell_story(history: History) -> dict[str, Any]:
    """Everything that is drawn in the timeline, by time."""
    starts = [*history.earlier, *history.starts]
    found = [one for start in starts for one in _of_start(start)]
    for start in history.other_ranks:
        found += [_entry(one) for one in start.incidents.all()]
    found += [_of_checkpoint(path, one) for path, one in history.checkpoints]
    found = _joined(sorted(found, key=lambda one: one['t']))
    counts = sum(sum(one.counts.values()) for one in starts)
    shown = _thinned(found)
    return {
        'entries': shown,
        'left_out': len(found) - len(shown),
        'all': counts,
    }


def _of_start(start: Start) -> list[dict[str, Any]]:
    header = start.header
    kind = 'start' if header.iteration == 0 else 'resume'
    if header.restarts:
        kind = 'restart'
    first = {
        'kind': kind,
        'lane': 'runs',
        'it': header.iteration,
        't': header.time,
        'data': {'host': header.host, 'pid': header.pid}
        | (
            {'reason': header.restarted_after}
            if header.restarted_after
            else {}
        ),
    }
    last = {
        'kind': 'end',
        'lane': 'runs',
        'it': start.last_iteration,
        't': start.last_time,
        'word': state_of(start),
        'data': {'traceback': text((start.end or {}).get('traceback'))},
    }
    return [first, *map(_entry, start.incidents.all()), last]


def _entry(record: dict[str, Any]) -> dict[str, Any]:
    """One event; its name and place are what this page knows of it."""
    kind = record['event']
    data = {
        key: value
        for key, value in record.items()
        if key not in ('event', 'iteration', 'time')
        and value not in (None, '', [], {})
    }
    entry = {
        'kind': kind,
        'lane': LANES.get(kind, 'other'),
        'it': record['iteration'],
        't': finite(record.get('time')) or 0.0,
        'data': data,
    }
    if kind == 'fault_explained' and text(record.get('bundle')):
        entry['replay'] = replay_command(text(record['bundle']))
    return entry


def replay_command(bundle: str) -> str:
    """What to type to see a fault again."""
    return shell_command(['mmstable', 'replay', bundle, '--trust-config'])


def _of_checkpoint(path: Any, manifest: Any) -> dict[str, Any]:
    return {
        'kind': 'checkpoint',
        'lane': 'checkpoints',
        'it': manifest.iteration,
        't': manifest.time,
        'word': manifest.kind,
        'data': {'file': str(path), 'finite': manifest.finite},
    }


def _joined(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A bad step and what was found out about it are one entry."""
    steps: dict[Any, dict[str, Any]] = {}
    rest = []
    # By time, because an iteration can be done again.
    for one in entries:
        key = one['it'], str(one['data'].get('fault'))
        step = steps.get(key)
        if one['kind'] == 'fault_explained' and step is not None:
            step['cause'] = one['data']
            step['replay'] = one.get('replay')
            continue
        if one['kind'] == 'step_fault':
            steps[key] = one
        rest.append(one)
    return rest


def _thinned(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many; those with a cause, and the runs, stay."""
    if len(entries) <= _MOST:
        return entries
    kept = [one for one in entries if _matters(one)][:_MOST]
    others = [one for one in entries if not _matters(one)]
    room = max(1, _MOST - len(kept))
    stride = max(1, -(-len(others) // room))
    return sorted(kept + others[::stride], key=lambda one: one['t'])


def _matters(entry: dict[str, Any]) -> bool:
    return 'cause' in entry or entry['lane'] in ('runs', 'actions')
