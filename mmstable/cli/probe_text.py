"""What a run has answered, as lines for its user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmstable.memory.sizes import readable
from mmstable.messages import say
from mmstable.messages.printable import printable

_LONGEST = 4000
_WIDEST = 60


def show(lines: Iterable[str]) -> None:
    """Print lines, which may quote what others wrote."""
    for line in lines:
        print(printable(line, _LONGEST))


def describe_position(status: Mapping[str, Any]) -> str:
    """Where a rank is."""
    line = status['line']
    return say(
        'probe.position',
        rank=status['rank'],
        pid=status['pid'],
        iteration=status['iteration'],
        most=status['max_iters'],
        phase=status['phase'],
        line=say('probe.line', line=line) if line else '',
    )


def describe_run(status: Mapping[str, Any]) -> list[str]:
    """Where a rank is, and what it trains with."""
    return [
        describe_position(status),
        *(_describe_wrapper(status, name) for name in status['lr']),
        describe_checkpoint(status),
    ]


def _describe_wrapper(status: Mapping[str, Any], name: str) -> str:
    factor = status['lr_factors'].get(name, 1.0)
    return say(
        'probe.wrapper',
        name=name,
        lr=status['lr'][name],
        factor='' if factor == 1.0 else say('probe.factor', factor=factor),
        clip=_or_dash(status['clip'].get(name)),
        scale=_or_dash(status['loss_scale'].get(name)),
        skipped=status['skipped'].get(name, 0),
    )


def describe_checkpoint(status: Mapping[str, Any]) -> str:
    """The newest one."""
    if not status['checkpoint']:
        return say('probe.no_checkpoint')
    return say('probe.checkpoint', path=status['checkpoint'])


def describe_stacks(found: Mapping[str, Any]) -> list[str]:
    """What all threads are calling, the innermost last."""
    lines = []
    for name, calls in found['threads']:
        lines += [say('probe.thread', name=name), *(f'  {c}' for c in calls)]
    for pid, state, function in found['children']:
        facts = dict(pid=pid, state=state, function=function)
        lines.append(say('probe.child', **facts).rstrip())
    return lines


def describe_bad_steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The newest ones, and where to look."""
    if not steps:
        return [say('probe.no_bad_steps')]
    lines = [
        say(
            'probe.bad_step',
            iteration=one['iteration'],
            wrapper=one['wrapper'],
            fault=one['fault'],
            outcome=one['outcome'],
            scale=one['loss_scale'],
            culprits=one['culprits'],
        )
        for one in steps
    ]
    return [*lines, say('probe.nan_advice')]


def describe_speed(seconds: float | None) -> list[str]:
    """How long an iteration takes, if one has ended."""
    return [] if seconds is None else [say('probe.speed', seconds=seconds)]


def describe_memory(found: Mapping[str, Any]) -> str:
    """What a process and its children hold."""
    sizes = {
        key: readable(found[key])
        for key in ('main', 'tree', 'workers', 'left', 'limit')
    }
    return say(
        'probe.memory',
        **sizes,
        count=found['worker_count'],
        files=found['files'],
    )


def describe_table(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Rows below the names of their columns."""
    rows = [
        list(columns),
        *(map(_cell, row) for row in zip(*columns.values())),
    ]
    cells = [[printable(cell, _WIDEST) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return [
        '  '.join(c.ljust(w) for c, w in zip(row, widths)).rstrip()
        for row in cells
    ]


def _cell(value: Any) -> str:
    return f'{value:g}' if isinstance(value, float) else str(value)


def _or_dash(value: Any) -> str:
    return '-' if value is None else _cell(value)
