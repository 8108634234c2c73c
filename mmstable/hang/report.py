"""Reports about a run that hangs: ranks, workers, lines, stacks."""

from __future__ import annotations

import os
import re
import subprocess
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Callable

from mmstable.batch import batch_size, name_sample
from mmstable.checkpoint.signals import catches
from mmstable.dist.failure import RankStatus, behind
from mmstable.hang.watchdog import Call, Stall, blamed_line, read_dump
from mmstable.hang.watchdog_process import signal_thread
from mmstable.io.files import append, read_only
from mmstable.io.process import all_stacks, state_of, waits_in
from mmstable.loops.workers import ALL_STACKS, MAIN_STACK
from mmstable.messages import N_, _
from mmstable.torch_internals import (
    asked_loader,
    asked_samples,
    awaited_worker,
    batches_read,
    worker_pids,
)

# Seconds to wait for all stacks, for that of a main thread, and for py-spy.
_PATIENCE, _LAST_PATIENCE, _SPY_PATIENCE = 1.0, 5.0, 5.0
# Seconds between two looks.
_PAUSE = 0.01
_MAX_STACK_BYTES = 1 << 17
_ANSWER = re.compile(r'Process (\d+)\n(.*?)End of process \1\n', re.DOTALL)
# States of processes that handle no signal; one that waits for a disk does
# so later.
_CANNOT_ANSWER = ('stopped', 'traced', 'dead')


def ask_for_stacks(pids: Sequence[int], file: Path) -> dict[int, str]:
    """Collect the stacks of processes, from themselves or from py-spy.

    Args:
        pids (Sequence[int]): The processes.
        file (Path): The file they write to when they get the signals of
            :func:`mmstable.loops.workers.use_signal_safe_workers`.

    Returns:
        dict[int, str]: The main thread first, or alone; '' if unknown.
    """
    able = [
        pid
        for pid in pids
        # A stopped process would write when it continues, unread.
        if catches(pid, MAIN_STACK) and state_of(pid) not in _CANNOT_ANSWER
    ]
    found: dict[int, str] = {}
    with suppress(OSError), open(file, 'rb', opener=read_only) as answers:
        answers.seek(0, os.SEEK_END)
        # The listening threads answer once they get the GIL.
        for pid in able:
            os.kill(pid, ALL_STACKS)
        text = _read_until(
            lambda text: len(_ANSWER.findall(text)) >= len(able),
            answers,
            _PATIENCE,
        )
        found = {int(pid): stacks for pid, stacks in _ANSWER.findall(text)}
        for pid in able:
            unable = state_of(pid) in (*_CANNOT_ANSWER, 'disk')
            if pid not in found and not unable:
                found[pid] = _ask_for_main(pid, answers)
    return {
        pid: (found.get(pid) or _spy(pid))[:_MAX_STACK_BYTES] for pid in pids
    }


def _ask_for_main(pid: int, answers: IO[bytes]) -> str:
    """Interrupt the main thread, which may hold the GIL for long."""
    signal_thread(pid, pid, MAIN_STACK)
    text = _read_until(
        # A late answer of another process is not the handler's output.
        lambda text: (
            _ANSWER.sub('', text) and not _is_handling(pid, MAIN_STACK)
        ),
        answers,
        _LAST_PATIENCE,
    )
    return _ANSWER.sub('', text)


def _read_until(
    is_complete: Callable[[str], object], answers: IO[bytes], seconds: float
) -> str:
    text, deadline = '', time.monotonic() + seconds
    while not is_complete(text) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        text += answers.read().decode(errors='replace')
    return text + answers.read().decode(errors='replace')


def _is_handling(pid: int, number: int) -> bool:
    """Whether the handler of a signal runs, and blocks it meanwhile."""
    text = Path(f'/proc/{pid}/status').read_text(errors='replace')
    mask = re.search(r'^SigBlk:\s*([0-9a-f]+)$', text, re.M)
    return mask is not None and bool(int(mask[1], 16) >> number - 1 & 1)


def _spy(pid: int) -> str:
    command = ['py-spy', 'dump', '--nonblocking', '--pid', str(pid)]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SPY_PATIENCE,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ''


_MAX_NAMED_SAMPLES = 4
# States of workers that cannot deliver a batch.
_UNABLE = ('stopped', 'dead', 'disk')
_STATES = {
    'running': N_('is busy'),
    'sleeping': N_('is blocked'),
    'disk': N_('waits for a disk or a network file system'),
    'stopped': N_('is stopped (`kill -CONT` lets it continue)'),
    'traced': N_('is held by a debugger'),
    'dead': N_('is dead'),
}
_OTHER_STATE = N_('delivers no batch')
# Where Python waits for locks, and where a worker waits for work.
_LOCKS = ('multiprocessing/synchronize.py', '/threading.py', '/filelock.py')
_QUEUES = 'multiprocessing/queues.py'


@dataclass(frozen=True)
class StallCause:
    """The cause of a hang.

    Args:
        where (str): A clause for the log. Defaults to ''.
        line (str): The line to blame. Defaults to ''.
        stacks (tuple[str]): Stacks of other processes. Defaults to ().
    """

    where: str = ''
    line: str = ''
    stacks: tuple[str, ...] = ()


def inspect(
    stall: Stall, frame: FrameType | None, batch: Any, stacks: Path
) -> StallCause:
    """Find the cause of a hang.

    Args:
        stall (Stall): The report of the watchdog.
        frame (FrameType, optional): Frame of the training thread.
        batch (Any): The batch that it trains with.
        stacks (Path): The file that workers write their stacks to.
    """
    loader = None if stall.is_over else asked_loader(frame)
    if worker_pids(loader):
        return _inspect_workers(loader, stacks)
    line = blamed_line(stall.calls)
    where = _(': at {line}', line=line) if line else ''
    names: list[Any] = []
    if stall.phase.name == 'data':
        names = list(asked_samples(frame))
    elif stall.phase.name in ('forward', 'backward'):
        samples = (name_sample(batch, n) for n in range(batch_size(batch)))
        names = [name for name in samples if name]
    if names:
        where += _(' (samples {samples})', samples=names[:_MAX_NAMED_SAMPLES])
    return StallCause(where, line)


def _waits_for_lock(function: str, calls: Sequence[Call]) -> bool:
    """Return whether a process waits for a lock of threads or processes."""
    is_inside = bool(calls) and calls[-1].file.endswith(_LOCKS)
    return is_inside or 'lock' in function


def _inspect_workers(loader: Any, stacks: Path) -> StallCause:
    pids = worker_pids(loader)
    # Before they are asked, which wakes them up.
    states = {pid: (state_of(pid), waits_in(pid)) for pid in pids}
    dumps = ask_for_stacks(pids, stacks)
    texts = [
        f'worker {number} of {len(pids)}, pid {pid}, '
        f'{states[pid][0] or "?"} {states[pid][1]}\n{dumps[pid]}'
        for number, pid in enumerate(pids, 1)
    ]
    calls = {pid: read_dump(dumps[pid]) for pid in pids}
    waiting = {p: _waits_for_lock(states[p][1], calls[p]) for p in pids}
    number = awaited_worker(loader) or 0
    unable = [n for n, p in enumerate(pids) if states[p][0] in _UNABLE]
    if waiting[pids[number]]:
        # It is not the one to blame, but another that is inside a sample.
        unable += [
            n
            for n, p in enumerate(pids)
            if calls[p] and not waiting[p]
            if not any(one.file.endswith(_QUEUES) for one in calls[p])
        ]
    if unable and number not in unable:
        number = unable[0]
    pid = pids[number]
    line = blamed_line(calls[pid])
    state, function = states[pid]
    text = _(_STATES.get(state, _OTHER_STATE))
    if state in ('sleeping', 'disk') and function:
        text += _(' ({function})', function=function)
    where = _(
        ': worker {number} of {count} (pid {pid}) {state}{line}, batch '
        '{batch} of this pass over the data',
        number=number + 1,
        count=len(pids),
        pid=pid,
        state=text,
        line=_(' at {line}', line=line) if line else '',
        batch=batches_read(loader) + 1,
    )
    return StallCause(where, line, tuple(texts))


_MAX_RANKS = 8


def describe_ranks(ranks: Mapping[int, RankStatus | None]) -> list[str]:
    """Describe each rank in a clause, first the rank that blocks the others.

    Args:
        ranks (Mapping): Status by rank; None for those that do not respond.
    """
    known = [status for status in ranks.values() if status is not None]
    silent = sorted(rank for rank, status in ranks.items() if status is None)
    last = behind(known)
    known.sort(key=lambda one: (one.rank != last, one.rank))
    waits_for = last is not None or bool(silent)
    clauses = [
        _(
            'no response from rank {rank}: it holds the GIL, is stopped or '
            'dead, or is not overdue yet',
            rank=rank,
        )
        for rank in silent[:_MAX_RANKS]
    ]
    for status in known[:_MAX_RANKS]:
        # Without a count of calls the phase is all that is known.
        place = status.waits_in or (status.phase if status.begun < 0 else '')
        if place and status.rank != last and waits_for:
            clauses.append(
                _(
                    'rank {rank} waits for it in {collective}',
                    rank=status.rank,
                    collective=place,
                )
            )
        else:
            clauses.append(
                _(
                    "rank {rank} has been in '{phase}' for {seconds:.0f} s, "
                    'after iteration {iteration}{where}',
                    rank=status.rank,
                    phase=status.phase,
                    seconds=status.seconds,
                    iteration=status.iteration,
                    where=status.where,
                )
            )
    left = len(ranks) - len(clauses)
    if left:
        clauses.append(_('and {count} more ranks', count=left))
    return clauses


def write_exception(folder: Path, rank: int, error: BaseException) -> None:
    """Append the traceback of an exception to the stacks file.

    Args:
        folder (Path): Folder of the file.
        rank (int): The rank that it happened on.
        error (BaseException): The exception.
    """
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    _append(folder, rank, ''.join(lines))


def write_stacks(
    folder: Path, rank: int, reason: object, more: Sequence[str] = ()
) -> None:
    """Append the stacks of all threads of this process to the stacks file.

    Args:
        folder (Path): Folder of the file.
        rank (int): The rank of this process.
        reason (object): Why they are written.
        more (Sequence[str]): More texts, such as stacks of workers. Defaults
            to ().
    """
    texts = [f'{reason}\n\n{all_stacks()}']
    texts += [f'\n{text.rstrip()}\n' for text in more]
    _append(folder, rank, ''.join(texts))


def stacks_file(folder: Path, rank: int) -> Path:
    """Path of the stacks file of a rank."""
    return folder / f'stacks.rank{rank}.txt'


def _append(folder: Path, rank: int, text: str) -> None:
    # The reason why the run ends matters more than a full disk.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path = stacks_file(folder, rank)
        with open(path, 'a', encoding='utf-8', opener=append) as file:
            file.write(text)
