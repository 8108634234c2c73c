"""Can checkpoints be written, quickly enough, and read again?"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from mmstable.doctor.items import Item, Plan, fact, found
from mmstable.finding import Severity
from mmstable.memory.sizes import readable
from mmstable.messages import _

_SIZES = {False: 64 << 20, True: 1 << 30}
_CHUNK = 4 << 20
_NO_SPACE = 1 << 30
_LITTLE_SPACE = 20 << 30
_SLOW = 50e6


class Written(NamedTuple):
    """What became of a file.

    Args:
        speed (float): Bytes per second, until they were on the disk.
        is_same (bool): Whether the same was read.
    """

    speed: float
    is_same: bool


def disk(plan: Plan) -> Iterator[Item]:
    """Look at the space, write a file and read it again."""
    folder = os.path.abspath(plan.folder)
    usage = shutil.disk_usage(folder)
    yield from space(folder, usage.total, usage.free)
    yield from inodes(folder)
    size = _SIZES[plan.is_long]
    if usage.free < 2 * size:
        # Writing would take what is left.
        return
    try:
        written = write(folder, size)
    except OSError as error:
        yield found('disk_write', Severity.ERROR, folder, error=error)
        return
    yield from judge(folder, written)


def space(folder: str, total: int, free: int) -> Iterator[Item]:
    """What that much space means.

    Args:
        folder (str): Where.
        total (int): All of it, in bytes.
        free (int): What is free, in bytes.
    """
    sizes = dict(free=readable(free), total=readable(total))
    yield fact('disk', _('{free} free of {total}', **sizes), folder)
    if free < _NO_SPACE:
        yield found('no_space', Severity.ERROR, folder, **sizes)
    elif free < min(_LITTLE_SPACE, total // 20):
        yield found('little_space', Severity.WARNING, folder, **sizes)


def inodes(folder: str) -> Iterator[Item]:
    """Whether files can be created although there is space."""
    if not hasattr(os, 'statvfs'):
        return
    state = os.statvfs(folder)
    # Some file systems count none.
    if state.f_files and state.f_favail < 1000:
        yield found('no_inodes', Severity.ERROR, folder, left=state.f_favail)


def write(folder: str, size: int) -> Written:
    """Write a file, and read it again.

    Args:
        folder (str): Where. The file has no name, or is deleted.
        size (int): Its bytes.
    """
    chunk = os.urandom(_CHUNK)
    sums = [hashlib.sha256(), hashlib.sha256()]
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.monotonic()
        for __ in range(size // _CHUNK):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        took = time.monotonic() - start
        if hasattr(os, 'posix_fadvise'):
            # Else it would be read from memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        for __ in range(size // _CHUNK):
            sums[0].update(chunk)
            sums[1].update(file.read(_CHUNK))
    is_same = sums[0].digest() == sums[1].digest()
    return Written(size / max(took, 1e-9), is_same)


def judge(folder: str, written: Written) -> Iterator[Item]:
    """What that speed means.

    Args:
        folder (str): Where it was written.
        written (Written): What became of it.
    """
    speed = f'{readable(written.speed)}/s'
    yield fact('disk_speed', speed, folder)
    if not written.is_same:
        yield found('disk_corrupt', Severity.ERROR, folder)
    if written.speed < _SLOW:
        yield found('slow_disk', Severity.WARNING, folder, speed=speed)
