"""A process that asks another one for its stacks when that falls silent.

Run as a script, without anything of mmstable: it must be small, and must not
be stopped by what stops the other. Arguments: the process, the signal, and
the file for the stacks. Each line of stdin is a sign of life: the seconds
until the next one.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

# Seconds between two looks. Of a time in which this process itself was
# stopped, no more counts.
SLICE = 0.1


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended, or in a debugger."""
    try:
        with open(f'/proc/{pid}/stat', errors='replace') as file:
            return file.read().rpartition(')')[2].split()[0] in 'Tt'
    except OSError:
        return False


def watch(pid: int, number: int, path: str) -> None:
    """Ask for stacks each time that the limit is over."""
    ask = asker(pid)
    silent, limit, last = 0.0, float('inf'), time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], SLICE)
        now = time.monotonic()
        spent, last = min(now - last, 2 * SLICE), now
        if ready:
            words = os.read(0, 65536).split()
            if not words:
                return
            silent, limit = 0.0, float(words[-1])
        elif not is_stopped(pid):
            silent += spent
        if silent > limit:
            silent = 0.0
            with open(path, 'a', encoding='utf-8') as file:
                file.write(f'Timeout ({limit:g} s)!\n')
            ask(number)


def asker(pid: int) -> Callable[[int], None]:
    """Sends signals to a process, and never to another one of its number."""
    if not hasattr(signal, 'pidfd_send_signal'):
        return lambda number: os.kill(pid, number)
    process = os.pidfd_open(pid)
    return lambda number: signal.pidfd_send_signal(process, number)


if __name__ == '__main__':
    # No child of the process that it watches, which may count those.
    if os.fork() == 0:
        os.setsid()
        # It may have ended.
        with suppress(OSError):
            watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
