"""What does this process hang on?  Asked once, when it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from mmstable.batches import batch_size, name_sample
from mmstable.liveness import loader as loaders
from mmstable.liveness.calls import blamed, read_dump
from mmstable.liveness.processes import ask_for_stacks, state_of, waits_in
from mmstable.liveness.watchdog import Stall
from mmstable.messages import N_, _

# Samples that are named.
_MOST_NAMED = 4
# States of workers that can give no batch at all.
_UNABLE = ('stopped', 'dead', 'disk')
_STATES = {
    'running': N_('is busy'),
    'sleeping': N_('is blocked'),
    'disk': N_('waits for a disk or a network file system'),
    'stopped': N_('is stopped (`kill -CONT` lets it continue)'),
    'traced': N_('is held by a debugger'),
    'dead': N_('is dead'),
    'unknown': N_('gives no batch'),
}


@dataclass(frozen=True)
class Finding:
    """What a process hangs on.

    Args:
        where (str): In words, to be put behind what it does. Defaults to ''.
        line (str): The line to blame. Defaults to ''.
        stacks (tuple[str]): Stacks of other processes. Defaults to ().
    """

    where: str = ''
    line: str = ''
    stacks: tuple[str, ...] = ()


def inspect(
    stall: Stall, frame: FrameType | None, batch: Any, stacks: Path
) -> Finding:
    """Find out what a process hangs on.

    Args:
        stall (Stall): What is known.
        frame (FrameType, optional): Where the thread is that trains.
        batch (Any): The batch that it trains with.
        stacks (Path): Where workers write their stacks to.
    """
    loader = None if stall.is_over else loaders.asked_loader(frame)
    if loaders.worker_pids(loader):
        return _inspect_workers(loader, stacks)
    call = blamed(stall.calls)
    line = '' if call is None else str(call)
    where = _(': at {line}', line=line) if line else ''
    names: list[Any] = []
    if stall.phase.name == 'data':
        names = list(loaders.asked_samples(frame))
    elif stall.phase.name in ('forward', 'backward'):
        names = _names(batch)
    if names:
        where += _(' (samples {samples})', samples=names[:_MOST_NAMED])
    return Finding(where, line)


def _inspect_workers(loader: Any, stacks: Path) -> Finding:
    pids = loaders.worker_pids(loader)
    dumps = ask_for_stacks(pids, stacks)
    texts = [
        f'worker {number} of {len(pids)}, pid {pid}, '
        f'{state_of(pid) or "?"} {waits_in(pid)}\n{dumps[pid]}'
        for number, pid in enumerate(pids, 1)
    ]
    awaited = loaders.awaited_worker(loader)
    unable = [n for n, p in enumerate(pids) if state_of(p) in _UNABLE]
    if unable and awaited not in unable:
        awaited = unable[0]
    number = awaited or 0
    pid = pids[number]
    call = blamed(read_dump(dumps[pid]))
    line = '' if call is None else str(call)
    where = _(
        ': worker {number} of {count} (pid {pid}) {state}{line}, batch '
        '{batch} of this pass over the data',
        number=number + 1,
        count=len(pids),
        pid=pid,
        state=_describe_state(pid),
        line=_(' at {line}', line=line) if line else '',
        batch=loaders.batches_read(loader) + 1,
    )
    return Finding(where, line, tuple(texts))


def _describe_state(pid: int) -> str:
    state = state_of(pid) or 'unknown'
    text = _(_STATES[state])
    function = waits_in(pid)
    if state in ('sleeping', 'disk') and function:
        text += _(' ({function})', function=function)
    return text


def _names(batch: Any) -> list[str]:
    names = (name_sample(batch, n) for n in range(batch_size(batch)))
    return [name for name in names if name]
