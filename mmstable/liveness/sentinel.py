"""A process that asks another one for a stack when that falls silent.

Run as a script, without anything of mmstable: it must be small, and must not
be stopped by what stops the other. Arguments: the process, the thread to ask,
and the signal for that. Each line of stdin is a sign of life: the thread that
sends it, and the seconds until the next one. The line 'end' ends it: the end
of stdin may not come, since processes that the other one has forked keep it
open. The seconds of silence go to stderr, ahead of the stack.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from contextlib import suppress

END = b'end'
# Seconds between two looks. Of a time in which this process itself was
# stopped, no more counts.
SLICE = 0.1


def state_of(pid: int, thread: int) -> str:
    """The letter that the kernel has for the state of a thread.

    Raises:
        OSError: If there is no such thread.
    """
    path = f'/proc/{pid}/task/{thread}/stat'
    with open(path, errors='replace') as file:
        return file.read().rpartition(')')[2].split()[0]


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Send a signal that one thread of a process handles.

    Raises:
        OSError: If there is no such thread.
    """
    send = getattr(ctypes.CDLL(None, use_errno=True), 'tgkill', None)
    if send is None:
        # Before glibc 2.30. The kernel prefers the main thread.
        os.kill(pid, number)
    elif send(pid, thread, number):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def watch(pid: int, asked: int, number: int) -> None:
    """Ask for a stack each time that the limit is over.

    Time only counts while the thread that should send a sign of life waits,
    as it does for Python's lock. A process that is suspended, in a debugger,
    or only gets no time of a busy machine does not hang.

    Raises:
        OSError: If the process, or the thread, has ended.
    """
    watched, thread = [0], pid
    # Before Linux 5.3 there is none.
    with suppress(AttributeError, OSError):
        # Tells that the process has ended: its number may be another's then.
        watched.append(os.pidfd_open(pid))
    silent, limit, last = 0.0, float('inf'), time.monotonic()
    due = limit
    while True:
        ready, _, _ = select.select(watched, [], [], SLICE)
        now = time.monotonic()
        spent, last = min(now - last, 2 * SLICE), now
        if ready:
            words = os.read(0, 65536).split() if ready == [0] else []
            if not words or words[-1] == END:
                return
            thread, silent, limit = int(words[-2]), 0.0, float(words[-1])
            due = limit
        elif state_of(pid, thread) == 'S':
            silent += spent
        if silent > due:
            due += limit
            os.write(2, b'Silent for %f s\n' % silent)
            signal_thread(pid, asked, number)


if __name__ == '__main__':
    # No child of the process that it watches, which may count those.
    if os.fork() == 0:
        os.setsid()
        # The process that it watches may end at any time.
        with suppress(OSError):
            watch(*map(int, sys.argv[1:]))
