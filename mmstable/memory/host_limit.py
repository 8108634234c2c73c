"""How much of the host may be used: memory, what is left of it, cores."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import psutil


class Room(NamedTuple):
    """What there is, and what is left of it.

    Args:
        limit (int): All of it, in bytes.
        left (int): What is left, in bytes.
        source (str): Who sets the limit: 'cgroup', 'machine' or 'setting'.
    """

    limit: int
    left: int
    source: str


_Reader = Callable[[Path], Optional[Room]]


def host_room(root: Path = Path('/')) -> Room:
    """The tightest limit on the memory of this process.

    That is the one of its control group, or a group around it, or the
    memory of the machine. Files that the kernel keeps in memory as long as
    nobody else wants it count as left.

    Args:
        root (Path): Where ``proc`` and ``sys`` are. Defaults to '/'.
    """
    machine = psutil.virtual_memory()
    rooms = [Room(machine.total, machine.available, 'machine')]
    rooms += _control_groups(root)
    return min(rooms, key=lambda room: room.left)


def _control_groups(root: Path) -> list[Room]:
    rooms = []
    mounted = root / 'sys' / 'fs' / 'cgroup'
    for line in _read(root / 'proc' / 'self' / 'cgroup').splitlines():
        number, _, rest = line.partition(':')
        controllers, _, path = rest.partition(':')
        if number == '0' and not controllers:
            rooms += _walk(mounted, path, _version_2)
        elif 'memory' in controllers.split(','):
            rooms += _walk(mounted / 'memory', path, _version_1)
    return rooms


def _walk(mounted: Path, path: str, read: _Reader) -> list[Room]:
    """The limits of a group and of all groups around it."""
    group = mounted / path.strip('/')
    around = [group, *group.parents]
    # In a container the path may be that outside, and not be there.
    inside = [o for o in around if o == mounted or mounted in o.parents]
    return [room for one in inside if (room := read(one)) is not None]


def _version_2(group: Path) -> Room | None:
    return _room(
        _read(group / 'memory.max'),
        _read(group / 'memory.current'),
        _read(group / 'memory.stat'),
        ('inactive_file', 'active_file', 'slab_reclaimable'),
    )


def _version_1(group: Path) -> Room | None:
    return _room(
        _read(group / 'memory.limit_in_bytes'),
        _read(group / 'memory.usage_in_bytes'),
        _read(group / 'memory.stat'),
        ('total_inactive_file', 'total_active_file'),
    )


def _room(
    limit: str, used: str, stat: str, reclaimable: tuple[str, ...]
) -> Room | None:
    if not limit.strip().isdigit() or not used.strip().isdigit():
        # No limit is 'max'.
        return None
    known = {
        words[0]: int(words[1])
        for line in stat.splitlines()
        if len(words := line.split()) == 2 and words[1].isdigit()
    }
    held = int(used) - sum(known.get(name, 0) for name in reclaimable)
    return Room(int(limit), max(0, int(limit) - max(0, held)), 'cgroup')


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError):
        return ''


def usable_cores() -> int:
    """CPU cores that this process may use, a container's limit included."""
    count = os.cpu_count() or 1
    if hasattr(os, 'sched_getaffinity'):
        count = len(os.sched_getaffinity(0))
    # As 'max 100000' or '150000 100000': microseconds in a period.
    with suppress(OSError, ValueError):
        quota, period = Path('/sys/fs/cgroup/cpu.max').read_text().split()
        count = max(1, min(count, int(quota) // int(period)))
    return count
