"""Memory, files and cores of the host: limits, and use by a run."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from mmstable.messages import N_

# `mmstable doctor` reads host memory where torch cannot be imported.
if TYPE_CHECKING:
    import torch


# Origins of a limit on memory.
SOURCES = {
    'cgroup': N_('of the control group'),
    'machine': N_('of the machine'),
    'setting': N_('set by `host_limit`'),
}


class Room(NamedTuple):
    """A limit on memory, and the bytes left.

    Args:
        limit (int): The limit in bytes.
        left (int): Bytes that are left.
        source (str): Origin of the limit, of :data:`SOURCES`.
    """

    limit: int
    left: int
    source: str


# Files with the limit and the use of a control group, and the reclaimable
# entries of its `memory.stat`.
_VERSION_1 = (
    'memory.limit_in_bytes',
    'memory.usage_in_bytes',
    ('total_inactive_file', 'total_active_file'),
)
_VERSION_2 = (
    'memory.max',
    'memory.current',
    ('inactive_file', 'active_file', 'slab_reclaimable'),
)
_GroupFiles = tuple[str, str, tuple[str, ...]]


def host_room(root: Path = Path('/')) -> Room:
    """Find the tightest limit on the memory of this process.

    That is the limit of its control group, or of a group around it, or the
    memory of the machine. The page cache counts as left.

    Args:
        root (Path): Parent of ``proc`` and ``sys``. Defaults to '/'.
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
            rooms += _walk(mounted, path, _VERSION_2)
        elif 'memory' in controllers.split(','):
            rooms += _walk(mounted / 'memory', path, _VERSION_1)
    return rooms


def _walk(mounted: Path, path: str, files: _GroupFiles) -> list[Room]:
    """Read the limits of a group and of all groups around it."""
    group = mounted / path.strip('/')
    around = [group, *group.parents]
    # In a container the path may be that outside, and not exist.
    inside = [o for o in around if o == mounted or mounted in o.parents]
    return [room for one in inside if (room := _room(one, files)) is not None]


def _room(group: Path, files: _GroupFiles) -> Room | None:
    *sizes, reclaimable = files
    limit, used = (_read(group / name) for name in sizes)
    if not limit.strip().isdigit() or not used.strip().isdigit():
        # No limit is 'max'.
        return None
    stat = _read(group / 'memory.stat').splitlines()
    pairs = [words for line in stat if len(words := line.split()) == 2]
    cached = sum(
        int(count)
        for name, count in pairs
        if name in reclaimable and count.isdigit()
    )
    held = max(0, int(used) - cached)
    return Room(int(limit), max(0, int(limit) - held), 'cgroup')


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError):
        return ''


def usable_cores() -> int:
    """Count the CPU cores this process may use, within container limits."""
    count = os.cpu_count() or 1
    if hasattr(os, 'sched_getaffinity'):
        count = len(os.sched_getaffinity(0))
    # Such as 'max 100000' or '150000 100000': microseconds in a period.
    with suppress(OSError, ValueError):
        quota, period = Path('/sys/fs/cgroup/cpu.max').read_text().split()
        count = max(1, min(count, int(quota) // int(period)))
    return count


_SHARED = '/dev/shm'


@dataclass(frozen=True)
class Reading:
    """The resources of a process tree at one moment.

    Args:
        seconds (float): Monotonic time.
        main (int): Resident bytes of the training process. Unlike its
            proportional share they do not change when workers come and go.
        tree (int): Bytes of the whole tree; shared memory counts once.
        workers (int): The part of it that belongs to workers, and other
            processes started by the training process.
        worker_pids (frozenset[int]): Their process ids.
        room (Room): Host memory.
        main_files (int): Open file descriptors of the training process.
        worker_files (int): Those of the worker with the most.
        max_files (int): Limit of a process; 0 for no limit.
        shared (Room, optional): Shared memory; None if there is none.
    """

    seconds: float
    main: int
    tree: int
    workers: int
    worker_pids: frozenset[int]
    room: Room
    main_files: int
    worker_files: int
    max_files: int
    shared: Room | None


def read_tree(host_limit: int | None = None) -> Reading:
    """Read this process and all below it, in milliseconds for each.

    Args:
        host_limit (int, optional): A limit on the tree in bytes, if tighter
            than those of the machine. Defaults to None.
    """
    process = psutil.Process()
    main, main_files = _own_memory(process), process.num_fds()
    workers: dict[int, int] = {}
    files = [0]
    for child in process.children(recursive=True):
        try:
            workers[child.pid] = _own_memory(child)
            files.append(child.num_fds())
        except (psutil.Error, OSError):
            # It has just ended, or belongs to another user.
            continue
    tree = main + sum(workers.values())
    room = host_room()
    if host_limit is not None and host_limit - tree < room.left:
        room = Room(host_limit, max(0, host_limit - tree), 'setting')
    max_files, __ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Reading(
        seconds=time.monotonic(),
        main=process.memory_info().rss,
        tree=tree,
        workers=sum(workers.values()),
        worker_pids=frozenset(workers),
        room=room,
        main_files=main_files,
        worker_files=max(files),
        max_files=0 if max_files == resource.RLIM_INFINITY else max_files,
        shared=_shared_room(),
    )


def _own_memory(process: psutil.Process) -> int:
    info = process.memory_full_info()
    # Only Linux has a proportional share of common memory.
    return getattr(info, 'pss', info.uss)


def _shared_room() -> Room | None:
    if not os.path.isdir(_SHARED):
        return None
    use = psutil.disk_usage(_SHARED)
    return Room(use.total, use.free, 'machine') if use.total else None


def read_device(device: torch.device) -> dict[str, int]:
    """Read the allocator of a device; {} on a CPU.

    Returns:
        dict: Bytes in tensors, 'allocated', with their 'peak', and
        'reserved' from the device; and how often the allocator had to empty
        its cache and retry, 'retries'.
    """
    from mmstable.events.samples import device_memory
    from mmstable.state.device import device_module

    allocated, peak = device_memory(device)
    module = device_module(device)
    if allocated is None or peak is None:
        return {}
    reserved = getattr(module, 'memory_reserved', None)
    stats = getattr(module, 'memory_stats', None)
    counts = {} if stats is None else stats(device)
    return dict(
        allocated=allocated,
        peak=peak,
        reserved=allocated if reserved is None else int(reserved(device)),
        retries=int(counts.get('num_alloc_retries', 0)),
    )


_MIB = 1 << 20


def figures_of(reading: Reading, device: dict[str, int]) -> dict[str, float]:
    """Return scalars for dashboards; sizes in MiB.

    Args:
        reading (Reading): Reading of the host.
        device (dict): What :func:`read_device` gave.
    """
    figures: dict[str, float] = {
        'host_mib': reading.tree / _MIB,
        'host_left_mib': reading.room.left / _MIB,
        'workers_mib': reading.workers / _MIB,
        'descriptors': max(reading.main_files, reading.worker_files),
    }
    if reading.shared is not None:
        used = reading.shared.limit - reading.shared.left
        figures['shared_mib'] = used / _MIB
    for name, value in device.items():
        if name == 'retries':
            figures['device_retries'] = value
        else:
            figures[f'device_{name}_mib'] = value / _MIB
    return {f'train/stable/memory/{k}': v for k, v in figures.items()}


# Default of torch.
_PREFETCH = 2


class Prefetch(NamedTuple):
    """The settings of a data loader that take host memory.

    Args:
        workers (int): Processes that read data.
        prefetch (int): Batches that each of them reads ahead.
    """

    workers: int = 0
    prefetch: int = 0


def loading_of(loader: Any) -> Prefetch:
    """Read the settings of a data loader."""
    from mmstable.state.data_position import has_workers

    if not has_workers(loader):
        return Prefetch()
    return Prefetch(loader.num_workers, loader.prefetch_factor or _PREFETCH)


def batches_of_data(loader: Any, world_size: int) -> int:
    """Count the iterations that read all data once; 0 if unknown."""
    try:
        samples = len(loader.dataset)
    except (AttributeError, TypeError):
        return 0
    batch_size = getattr(loader, 'batch_size', None)
    if batch_size is None:
        # A batch sampler of its own: a pass of that is the best guess.
        return len(loader) if hasattr(loader, '__len__') else 0
    return -(-samples // (batch_size * world_size))
