"""What a training process and those it has started hold right now."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

import psutil

from mmstable.memory.host_limit import Room, host_room

_SHARED = '/dev/shm'


@dataclass(frozen=True)
class Reading:
    """The resources of a process tree at one moment.

    Args:
        seconds (float): When, by a clock that does not jump.
        main (int): Resident bytes of the training process. Unlike its
            proportional share they do not change when workers come and go.
        tree (int): Bytes of the whole tree; what several processes share
            counts once.
        workers (int): The part of it that belongs to other processes than
            the training process: workers, and whatever else it started.
        worker_pids (frozenset[int]): Who they are.
        room (Room): Host memory, and what is left.
        main_files (int): Open file descriptors of the training process.
        worker_files (int): Those of the worker with the most.
        max_files (int): How many a process may have; 0 if nobody knows.
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
    """Look at this process and all below it. Takes milliseconds for each.

    Args:
        host_limit (int, optional): A limit for the tree, in bytes, if it is
            tighter than those of the machine. Defaults to None.
    """
    process = psutil.Process()
    main, main_files = _own_memory(process), _files(process)
    workers: dict[int, int] = {}
    files = [0]
    for child in process.children(recursive=True):
        try:
            workers[child.pid] = _own_memory(child)
            files.append(_files(child))
        except (psutil.Error, OSError):
            # It has just ended, or belongs to somebody else.
            continue
    tree = main + sum(workers.values())
    room = host_room()
    if host_limit is not None and host_limit - tree < room.left:
        room = Room(host_limit, max(0, host_limit - tree), 'setting')
    return Reading(
        seconds=time.monotonic(),
        main=process.memory_info().rss,
        tree=tree,
        workers=sum(workers.values()),
        worker_pids=frozenset(workers),
        room=room,
        main_files=main_files,
        worker_files=max(files),
        max_files=_max_files(),
        shared=_shared_room(),
    )


def _own_memory(process: psutil.Process) -> int:
    info = process.memory_full_info()
    # Only Linux shares out what processes have in common.
    return getattr(info, 'pss', info.uss)


def _files(process: psutil.Process) -> int:
    return process.num_fds() if hasattr(process, 'num_fds') else 0


def _max_files() -> int:
    if sys.platform == 'win32':
        return 0
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _shared_room() -> Room | None:
    if not os.path.isdir(_SHARED):
        return None
    use = psutil.disk_usage(_SHARED)
    return Room(use.total, use.free, 'machine') if use.total else None
