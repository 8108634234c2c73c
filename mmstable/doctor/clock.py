"""Does the clock tell the time, and the same as others?"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

from mmstable.doctor.items import Item, Plan, fact, found, not_seen
from mmstable.doctor.programs import ProgramFailed, output_of
from mmstable.finding import Severity
from mmstable.messages import _

# No machine that runs this has been there: 2024-01-01.
_PAST = 1704067200
_MOST_APART = 5.0
_MOST_JUMP = 0.5
_SYNC = ['timedatectl', 'show', '--property=NTPSynchronized', '--value']


def clock(plan: Plan) -> Iterator[Item]:
    """Look at the clock, and compare it with others."""
    now = time.time()
    shown = time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(now))
    yield fact('time', shown)
    if now < _PAST:
        yield found('wrong_clock', Severity.ERROR, 'clock', time=shown)
    yield from against_disk(plan.folder)
    yield from steady()
    yield from synchronized()


def against_disk(folder: str) -> Iterator[Item]:
    """A network file system has its own clock.

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
        yield not_seen('disk_clock', error)
        return
    yield from apart_from_disk(folder, apart)


def apart_from_disk(folder: str, seconds: float) -> Iterator[Item]:
    """What that difference means.

    Args:
        folder (str): Where the file was made.
        seconds (float): By how much its time is later.
    """
    if abs(seconds) > _MOST_APART:
        yield found('disk_clock', Severity.WARNING, folder, seconds=seconds)


def steady(pause: float = 0.2) -> Iterator[Item]:
    """A clock that jumps is being set, or the machine is a paused one.

    Args:
        pause (float): Seconds to look at it. Defaults to 0.2.
    """
    start = time.time() - time.monotonic()
    time.sleep(pause)
    jump = time.time() - time.monotonic() - start
    if abs(jump) > _MOST_JUMP:
        yield found('clock_jumps', Severity.WARNING, 'clock', seconds=jump)


def synchronized() -> Iterator[Item]:
    """Whether the clock is set by others over the network."""
    try:
        answer = output_of(_SYNC, seconds=5).strip()
    except ProgramFailed as error:
        yield not_seen('clock_sync', error)
        return
    if answer == 'yes':
        yield fact('clock_sync', _('yes'))
    elif answer == 'no':
        yield found('clock_sync', Severity.HINT, 'clock')
    else:
        yield not_seen('clock_sync', 'timedatectl')
