"""What the event files of the demo say about each planted fault."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmstable.report import read_events


def read_story(folder: Path) -> dict[int, str]:
    """What was done about each fault, by the iteration it was planted in.

    Args:
        folder (Path): The work directory, of any number of starts.
    """
    paths = sorted(folder.rglob('events.jsonl'))
    return tell_story(event for path in paths for event in read_events(path))


def tell_story(events: Iterable[Any]) -> dict[int, str]:
    """The same for events in the order of their files.

    Whatever is written between two faults is because of the first of them.
    Not by their times: a bad step has that of its beginning.
    """
    story: dict[int, dict[str, None]] = {}
    now: dict[str, None] | None = None
    for event in events:
        if event.event == 'injected_fault':
            # A run that resumes from before a fault has it once more.
            now = story.setdefault(event.iteration, {})
        elif now is not None and (text := _describe(event)):
            now[text] = None
    return {at: ', '.join(words) for at, words in story.items()}


def _describe(event: Any) -> str:
    kind = event.event
    if kind == 'step_fault':
        names = event.loss_terms or [c.name for c in event.culprits[:1]]
        return f'step skipped: {event.fault.value} {" ".join(names)}'.strip()
    if kind == 'intervention' and event.action.value == 'rollback':
        name = event.culprits[0].name if event.culprits else event.subject
        short = name.replace('state_dict.', '', 1)
        return f'rolled back to {event.restored}: {short}'
    if kind == 'out_of_memory':
        return f'batch done again ({event.gradients} gradients)'
    if kind == 'hang':
        return f'told after {event.seconds:.0f} s: {event.phase}'
    if kind == 'run_end' and event.reason == 'exception':
        lines = (event.traceback or '').strip().splitlines()
        name = lines[-1].split(':')[0].rpartition('.')[2] if lines else ''
        return '' if name == 'TrainingHangs' else f'told: {name}'
    if kind == 'run_start' and event.restarts:
        return f'restarted from {event.iteration}'
    return ''
