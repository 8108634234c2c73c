"""Tests of the host: versions, memory, limits, disk and clock."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psutil
from packaging.specifiers import SpecifierSet

from mmstable.doctor import Fact, Item, NotSeen, Plan, found, read_data
from mmstable.finding import Finding, Severity
from mmstable.memory.host import SOURCES, Room, host_room, usable_cores
from mmstable.messages import _, readable

_SHM = Path('/dev/shm')
# Docker gives a container 64 MiB.
_LEAST_SHM = 1 << 30
_LEAST_RAM = 2 << 30
_MOST_SWAP = 0.5
# Limits of a process, and the least that training needs.
_LEAST = {'NOFILE': 4096, 'NPROC': 1024, 'FSIZE': 1 << 40, 'AS': 1 << 40}


def host(plan: Plan) -> Iterator[Item]:
    """Test memory, shared memory, swap and limits."""
    yield Fact('cores', str(usable_cores()), _('cores'))
    yield from memory(host_room())
    yield from shared_memory()
    swapped = psutil.swap_memory()
    yield from swap(swapped.total, swapped.used)
    for name in _LEAST:
        limits = resource.getrlimit(getattr(resource, f'RLIMIT_{name}'))
        yield from limit(name, *limits)


def memory(room: Room) -> Iterator[Item]:
    """Judge the RAM left for this process.

    Args:
        room (Room): Of the machine, or of a control group.
    """
    sizes = dict(left=readable(room.left), limit=readable(room.limit))
    source = _(SOURCES[room.source])
    text = _('{left} left of {limit} ({source})', source=source, **sizes)
    yield Fact('ram', text, _('RAM'))
    if room.left < max(_LEAST_RAM, room.limit // 20):
        yield found('little_ram', 'RAM', **sizes)


def shared_memory(folder: Path = _SHM) -> Iterator[Item]:
    """Judge how much data workers can hand over at a time.

    Args:
        folder (Path): Where it is mounted. Defaults to /dev/shm.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        yield NotSeen(_('shared memory'), str(error))
        return
    sizes = dict(free=readable(usage.free), total=readable(usage.total))
    yield Fact('shm', _('{free} free of {total}', **sizes), _('shared memory'))
    if usage.free < _LEAST_SHM:
        yield found('small_shm', '/dev/shm', **sizes)


def swap(total: int, used: int) -> Iterator[Item]:
    """Judge whether the machine lives on its disk.

    Args:
        total (int): Swap, in bytes.
        used (int): Bytes of it in use.
    """
    sizes = dict(used=readable(used), total=readable(total))
    yield Fact('swap', _('{used} used of {total}', **sizes), _('swap'))
    if total and used > _MOST_SWAP * total:
        yield found('swapping', 'swap', **sizes)


def limit(name: str, soft: int, hard: int) -> Iterator[Item]:
    """Judge one limit of ``ulimit``.

    Args:
        name (str): As 'NOFILE'.
        soft (int): The limit in force.
        hard (int): The limit that a user may raise it to.
    """
    shown, most = (
        _('unlimited') if one == resource.RLIM_INFINITY else str(one)
        for one in (soft, hard)
    )
    yield Fact(f'limit_{name.lower()}', shown, f'ulimit {name}')
    if soft != resource.RLIM_INFINITY and soft < _LEAST[name]:
        yield found(
            'low_limit',
            f'ulimit {name}',
            soft=soft,
            least=_LEAST[name],
            hard=most,
        )


_SIZES = {False: 64 << 20, True: 1 << 30}
_CHUNK = 4 << 20
_NO_SPACE = 1 << 30
_LITTLE_SPACE = 20 << 30
_SLOW = 50e6


class Written(NamedTuple):
    """The result of writing a file and reading it again.

    Args:
        speed (float): Bytes per second, until they were on the disk.
        is_same (bool): Whether the same bytes were read.
    """

    speed: float
    is_same: bool


def disk(plan: Plan) -> Iterator[Item]:
    """Test the free space, write a file and read it again."""
    folder = os.path.abspath(plan.folder)
    usage = shutil.disk_usage(folder)
    yield from space(folder, usage.total, usage.free)
    yield from inodes(folder)
    size = _SIZES[plan.is_long]
    if usage.free < 2 * size:
        # Writing would fill the disk.
        return
    try:
        written = write(folder, size)
    except OSError as error:
        yield found('disk_write', folder, error=error)
        return
    yield from judge(folder, written)


def space(folder: str, total: int, free: int) -> Iterator[Item]:
    """Judge the free space.

    Args:
        folder (str): Where.
        total (int): All of it, in bytes.
        free (int): Free bytes.
    """
    sizes = dict(free=readable(free), total=readable(total))
    text = _('{free} free of {total}', **sizes)
    yield Fact('disk', text, _('space'), folder)
    if free < _NO_SPACE:
        yield found('no_space', folder, **sizes)
    elif free < min(_LITTLE_SPACE, total // 20):
        yield found('little_space', folder, **sizes)


def inodes(folder: str) -> Iterator[Item]:
    """Judge whether files can be created although there is space."""
    state = os.statvfs(folder)
    # Some file systems count none.
    if state.f_files and state.f_favail < 1000:
        yield found('no_inodes', folder, left=state.f_favail)


def write(folder: str, size: int) -> Written:
    """Write a file, and read it again.

    Args:
        folder (str): Where. The file has no name, or is deleted.
        size (int): Its bytes.
    """
    chunk = os.urandom(_CHUNK)
    count = size // _CHUNK
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.monotonic()
        for __ in range(count):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        took = time.monotonic() - start
        if hasattr(os, 'posix_fadvise'):
            # Else it would be read from memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        is_same = all(file.read(_CHUNK) == chunk for __ in range(count))
    return Written(size / max(took, 1e-9), is_same)


def judge(folder: str, written: Written) -> Iterator[Item]:
    """Judge a written file.

    Args:
        folder (str): Where it was written.
        written (Written): Its speed, and whether it was read again.
    """
    speed = f'{readable(written.speed)}/s'
    yield Fact('disk_speed', speed, _('written at'), folder)
    if not written.is_same:
        yield found('disk_corrupt', folder)
    if written.speed < _SLOW:
        yield found('slow_disk', folder, speed=speed)


class ProgramFailed(Exception):
    """A program is not installed, failed or did not end."""


def output_of(words: Sequence[str], seconds: float) -> str:
    """Return the output of a program.

    Args:
        words (Sequence[str]): The program and its arguments.
        seconds (float): How long it may take.
    """
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors='replace',
            timeout=seconds,
            check=False,
            env={**os.environ, 'LC_ALL': 'C'},
        )
    except subprocess.TimeoutExpired:
        raise ProgramFailed(
            _(
                '{name} has not ended within {seconds:g} s',
                name=words[0],
                seconds=seconds,
            )
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProgramFailed(f'{words[0]}: {reason}') from None
    if done.returncode:
        # In one line.
        output = ' '.join(done.stderr[:200].split())
        raise ProgramFailed(f'{words[0]}: {output or done.returncode}')
    return done.stdout


# No machine that runs this has been there: 2024-01-01.
_PAST = 1704067200
_MOST_APART = 5.0
_SYNC = ['timedatectl', 'show', '--property=NTPSynchronized', '--value']


def clock(plan: Plan) -> Iterator[Item]:
    """Test the clock, and compare it with other clocks."""
    now = time.time()
    shown = time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(now))
    yield Fact('time', shown, _('time'))
    if now < _PAST:
        yield found('wrong_clock', 'clock', time=shown)
    yield from against_disk(plan.folder)
    yield from synchronized()


def against_disk(folder: str) -> Iterator[Item]:
    """Compare with the clock of the file system, which may be another's.

    Args:
        folder (str): Where a file is made.
    """
    try:
        before = time.time()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b'0')
            file.flush()
            apart = os.fstat(file.fileno()).st_mtime - before
    except OSError as error:
        yield NotSeen(_('clock of the file system'), str(error))
        return
    if abs(apart) > _MOST_APART:
        yield found('disk_clock', folder, seconds=apart)


def synchronized() -> Iterator[Item]:
    """Check by systemd whether NTP sets the clock."""
    try:
        answer = output_of(_SYNC, seconds=5).strip()
    except ProgramFailed as error:
        answer = str(error)
    if answer == 'yes':
        yield Fact('clock_sync', _('yes'), _('set over the network'))
    elif answer == 'no':
        yield found('clock_sync', 'clock')
    else:
        what = _('synchronization of the clock')
        yield NotSeen(what, answer or 'timedatectl')


_PACKAGES = (
    'torch',
    'torchvision',
    'numpy',
    'mmengine',
    'mmengine-lite',
    'onedl-mmengine',
    'mmcv',
    'mmcv-lite',
    'mmdet',
    'mmsegmentation',
    'mmpretrain',
    'nvidia-ml-py',
)
_DRIVER = Path('/proc/driver/nvidia/version')


def versions(plan: Plan) -> Iterator[Item]:
    """List the versions, and report known bad combinations."""
    here = installed()
    try:
        here.update(_of_torch())
    except Exception as error:
        why = f'{type(error).__name__}: {error}'
        yield found('torch_import', 'torch', error=why)
    for name, one in here.items():
        yield Fact(name, one, name)
    yield from known_bad(here)


def installed() -> dict[str, str]:
    """Return the versions that are known without importing anything."""
    here = {
        'python': platform.python_version(),
        'system': f'{platform.system()} {platform.release()}',
    }
    for name in _PACKAGES:
        try:
            here[name] = version(name)
        except PackageNotFoundError:
            continue
    driver = driver_version()
    return here if driver is None else {**here, 'driver': driver}


def driver_version(path: Path = _DRIVER) -> str | None:
    """Return the NVIDIA driver of the kernel, without asking its library.

    Args:
        path (Path): Where the kernel names it. Defaults to
            /proc/driver/nvidia/version.
    """
    try:
        text = path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None
    line = re.search(r'Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s', text)
    return None if line is None else line[1]


def _of_torch() -> dict[str, str]:
    import torch

    here = {}
    if torch.version.cuda is not None:
        here['cuda'] = torch.version.cuda
    if torch.version.hip is not None:
        here['hip'] = torch.version.hip
    cudnn = torch.backends.cudnn.version()
    if cudnn is not None and torch.version.hip is None:
        here['cudnn'] = cudnn_text(cudnn)
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        here['nccl'] = '.'.join(map(str, torch.cuda.nccl.version()))
    return here


def cudnn_text(number: int) -> str:
    """Format a version of cuDNN, given as 8907 or 91002."""
    major = 1000 if number < 10000 else 10000
    rest = number % major
    return f'{number // major}.{rest // 100}.{rest % 100}'


def known_bad(here: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the known bad combinations that are installed.

    Args:
        here (Mapping[str, str]): Versions by name.
    """
    # Both are imported as mmcv.
    lite = {'mmcv': here['mmcv-lite']} if 'mmcv-lite' in here else {}
    every = {**lite, **here}
    for row in read_data('known_bad.json'):
        for ranges in row['versions']:
            if not all(
                name in every and in_range(every[name], bounds)
                for name, bounds in ranges.items()
            ):
                continue
            names = [f'{name} {every[name]}' for name in ranges]
            yield Finding(
                id='known_bad',
                severity=Severity(row['severity']),
                path=' + '.join(ranges),
                what=_('{names} do not get along.', names=names),
                why=_(row['why']),
                fix=_(row['fix']),
                source=row['source'],
            )


def in_range(text: str, bounds: str) -> bool:
    """Return whether a version is in a range.

    Only its numbers count: a release candidate, a nightly build and a
    vendor's build behave like the release that they are named after.

    Args:
        text (str): As '2.1.0+cu118'.
        bounds (str): As '>=2,<2.3'.
    """
    release = re.match(r'\d+(?:\.\d+)*', text)
    return release is not None and SpecifierSet(bounds).contains(release[0])
