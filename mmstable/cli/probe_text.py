"""What a run has answered, as lines for its user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmstable.memory.sizes import readable
from mmstable.messages import _
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
    return _(
        'rank {rank} (pid {pid}): iteration {iteration} of {most}, in '
        "'{phase}'{line}",
        rank=status['rank'],
        pid=status['pid'],
        iteration=status['iteration'],
        most=status['max_iters'],
        phase=status['phase'],
        line=_(', at {line}', line=line) if line else '',
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
    return _(
        '  {name}: lr {lr:g}{factor}, clip {clip}, loss scale {scale}, '
        '{skipped:bad step|bad steps} skipped',
        name=name,
        lr=status['lr'][name],
        factor=''
        if factor == 1.0
        else _(' (x{factor:g} of the schedule)', factor=factor),
        clip=_or_dash(status['clip'].get(name)),
        scale=_or_dash(status['loss_scale'].get(name)),
        skipped=status['skipped'].get(name, 0),
    )


def describe_checkpoint(status: Mapping[str, Any]) -> str:
    """The newest one."""
    if not status['checkpoint']:
        return _('  no checkpoint yet')
    return _('  newest checkpoint: {path}', path=status['checkpoint'])


def describe_stacks(found: Mapping[str, Any]) -> list[str]:
    """What all threads are calling, the innermost last."""
    lines = []
    for name, calls in found['threads']:
        lines += [_('thread {name}:', name=name), *(f'  {c}' for c in calls)]
    for pid, state, function in found['children']:
        facts = dict(pid=pid, state=state, function=function)
        lines.append(
            _('child process {pid}: {state} {function}', **facts).rstrip()
        )
    return lines


def describe_bad_steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The newest ones, and where to look."""
    if not steps:
        return [_('no bad step since this process began to train')]
    lines = [
        _(
            'iteration {iteration}: {wrapper}: {fault}, {outcome}, loss '
            'scale {scale:g}, {culprits}',
            iteration=one['iteration'],
            wrapper=one['wrapper'],
            fault=one['fault'],
            outcome=one['outcome'],
            scale=one['loss_scale'],
            culprits=one['culprits'],
        )
        for one in steps
    ]
    return [
        *lines,
        _(
            'Between two steps gradients are cleared, so looking at them '
            'finds nothing. See stability/faults/ for the operation a NaN '
            'comes from.'
        ),
    ]


def describe_speed(seconds: float | None) -> list[str]:
    """How long an iteration takes, if one has ended."""
    return (
        []
        if seconds is None
        else [_('{seconds:.4f} s for an iteration', seconds=seconds)]
    )


def describe_memory(found: Mapping[str, Any]) -> str:
    """What a process and its children hold."""
    sizes = {
        key: readable(found[key])
        for key in ('main', 'tree', 'workers', 'left', 'limit')
    }
    return _(
        'training process {main}, with its {count:child|children} {tree} (of '
        'these {workers}); {left} of {limit} left; {files} open files',
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
