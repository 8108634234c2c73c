"""Iterations that came to nothing."""

from __future__ import annotations

from typing import NamedTuple

from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.report.history import History, iteration_seconds
from mmstable.report.incidents import iteration_of
from mmstable.report.plain import finite, number
from mmstable.report.start import Start

# The share of all iterations that is reported, and the fewest iterations of
# a run that is judged.
_MANY = 0.05
_LEAST = 20
# Seconds that are not worth a finding.
_LITTLE = 60.0
# The interval of checkpoints that is recommended.
_CHECKPOINT_SECONDS = 600.0


class Wasted(NamedTuple):
    """Iterations whose result was lost, each counted once.

    Args:
        skipped (int): Of skipped steps that no rollback has undone.
        undone (int): Undone by rollbacks.
        again (int): Done again after a restart.
    """

    skipped: int
    undone: int
    again: int


def wasted_iterations(history: History) -> Wasted:
    """What was trained for nothing."""
    skipped, undone = 0, 0
    for start in history.starts:
        spans = _undone(start)
        undone += sum(last - first for first, last in spans)
        x, is_skipped = start.skipped.arrays()
        x = x[is_skipped > 0]
        for first, last in spans:
            x = x[(x <= first) | (x > last)]
        skipped += len(x)
    again = sum(
        max(0, before.last_iteration - after.header.iteration)
        for before, after in zip(history.starts, history.starts[1:])
    )
    # A step may be of several iterations, and an iteration of several steps.
    share = _total(history) / max(1, history.steps)
    return Wasted(round(skipped * share), undone, again)


def _undone(start: Start) -> list[tuple[int, int]]:
    """From where to where; a rollback may reach beyond an earlier one."""
    spans: list[tuple[int, int]] = []
    for one in start.incidents.of('intervention'):
        restored = finite(one.get('restored'))
        if restored is None or restored >= iteration_of(one):
            continue
        first = max(int(restored), start.header.iteration)
        while spans and spans[-1][1] >= first:
            first = min(first, spans.pop()[0])
        spans.append((first, iteration_of(one)))
    return spans


def _total(history: History) -> int:
    return sum(one.done for one in history.starts)


def wasted_work(history: History) -> Finding | None:
    """How much was trained for nothing, and how long nothing was trained."""
    parts, total = wasted_iterations(history), _total(history)
    wasted = min(sum(parts), total)
    is_only_skipped = parts.undone == parts.again == 0
    if total < _LEAST or is_only_skipped and wasted < _MANY * total:
        return None
    seconds = iteration_seconds(history) or 0.0
    share, time = wasted / total, wasted * seconds
    change = {}
    if parts.again * seconds > _CHECKPOINT_SECONDS:
        change = {
            'default_hooks.checkpoint.interval': max(
                1, round(_CHECKPOINT_SECONDS / seconds)
            ),
            'default_hooks.checkpoint.by_epoch': False,
        }
    is_dear = share >= _MANY and (time >= _LITTLE or not seconds)
    return Finding(
        id='wasted_work',
        severity=Severity.WARNING if is_dear else Severity.HINT,
        path='',
        what=_(
            '{wasted:iteration|iterations} ({share:.1%}, about {time}) came '
            'to nothing.',
            wasted=wasted,
            share=share,
            time=duration(time) if seconds else '?',
        ),
        why=_(
            '{skipped} skipped, {undone} undone by rollbacks, {again} done '
            'again after restarts; {pause} between the starts.',
            **parts._asdict(),
            pause=duration(_pause(history)),
        ),
        fix=_('Save checkpoints more often, so that a restart loses less.')
        if change
        else '',
        change=change,
    )


def _pause(history: History) -> float:
    return sum(
        max(0.0, after.header.time - before.last_time)
        for before, after in zip(history.starts, history.starts[1:])
    )


def duration(seconds: float) -> str:
    """A time for people, as '2 h 05 min'."""
    if 0.05 <= seconds < 0.95:
        return f'{seconds:.1f} s'
    if seconds < 59.5:
        return f'{seconds:.0f} s'
    minutes, rest = divmod(round(number(seconds) or 0), 60)
    if minutes < 60:
        return f'{minutes} min {rest:02d} s'
    return f'{minutes // 60} h {minutes % 60:02d} min'
