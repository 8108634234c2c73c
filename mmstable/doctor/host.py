"""Has the host what data loading and training take?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from mmstable.doctor.items import Fact, Item, Plan, fact, found, not_seen
from mmstable.finding import Severity
from mmstable.memory.host_limit import Room, host_room, usable_cores
from mmstable.memory.sizes import readable
from mmstable.messages import N_, _

_SHM = Path('/dev/shm')
# Docker gives a container 64 MiB.
_LEAST_SHM = 1 << 30
_LEAST_RAM = 2 << 30
_MOST_SWAP = 0.5
# Limits of a process, and what a training should have.
_LEAST = {'NOFILE': 4096, 'NPROC': 1024, 'FSIZE': 1 << 40, 'AS': 1 << 40}
_ROOMS = {
    'machine': N_('of the machine'),
    'cgroup': N_('limit of the control group'),
}


def host(plan: Plan) -> Iterator[Item]:
    """Look at memory, shared memory, swap and limits."""
    yield fact('cores', usable_cores())
    yield from memory(host_room())
    yield from shared_memory()
    yield from swap(psutil.swap_memory().total, psutil.swap_memory().used)
    yield from limits()


def memory(room: Room) -> Iterator[Item]:
    """What is left of the RAM that this process may use.

    Args:
        room (Room): Of the machine, or of a control group.
    """
    sizes = dict(left=readable(room.left), limit=readable(room.limit))
    source = _(_ROOMS[room.source])
    yield fact(
        'ram', _('{left} left of {limit} ({source})', source=source, **sizes)
    )
    if room.left < max(_LEAST_RAM, room.limit // 20):
        yield found('little_ram', Severity.WARNING, 'RAM', **sizes)


def shared_memory(folder: Path = _SHM) -> Iterator[Item]:
    """How much workers can hand over at a time.

    Args:
        folder (Path): Where it is. Defaults to /dev/shm.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        yield not_seen('shm', error)
        return
    yield from shared_memory_of(usage.total, usage.free)


def shared_memory_of(total: int, free: int) -> Iterator[Item]:
    """What that much shared memory means.

    Args:
        total (int): All of it, in bytes.
        free (int): What is free, in bytes.
    """
    sizes = dict(free=readable(free), total=readable(total))
    yield fact('shm', _('{free} free of {total}', **sizes))
    if free < _LEAST_SHM:
        yield found('small_shm', Severity.WARNING, '/dev/shm', **sizes)


def swap(total: int, used: int) -> Iterator[Item]:
    """Whether the machine lives on its disk.

    Args:
        total (int): Swap, in bytes.
        used (int): What of it is used.
    """
    sizes = dict(used=readable(used), total=readable(total))
    yield fact('swap', _('{used} used of {total}', **sizes))
    if total and used > _MOST_SWAP * total:
        yield found('swapping', Severity.WARNING, 'swap', **sizes)


def limits() -> Iterator[Item]:
    """What ``ulimit`` allows."""
    try:
        import resource
    except ImportError as error:
        # Windows has none.
        yield not_seen('limits', error)
        return
    for name in _LEAST:
        soft, hard = resource.getrlimit(getattr(resource, f'RLIMIT_{name}'))
        if soft == resource.RLIM_INFINITY:
            soft = -1
        if hard == resource.RLIM_INFINITY:
            hard = -1
        yield from limit(name, soft, hard)


def limit(name: str, soft: int, hard: int) -> Iterator[Item]:
    """What one limit means.

    Args:
        name (str): As 'NOFILE'.
        soft (int): What holds; -1 if nothing does.
        hard (int): What a user may raise it to.
    """
    shown = _('unlimited') if soft < 0 else str(soft)
    yield Fact(f'limit_{name.lower()}', shown, f'ulimit {name}')
    if 0 <= soft < _LEAST[name]:
        most = _('unlimited') if hard < 0 else hard
        yield found(
            'low_limit',
            Severity.WARNING,
            f'ulimit {name}',
            soft=soft,
            least=_LEAST[name],
            hard=most,
        )
