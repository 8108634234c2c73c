"""The process that requests a stack of a silent training process.

Run as a script that imports nothing of mmstable: it must be small, and must
not be stopped together with the training. Arguments: the process, the thread
to signal, and the signal. Each line of stdin is a heartbeat: the thread
that sends it, and the seconds until the next one. The line 'end' ends this
process; stdin may stay open, since forks of the training process hold it. The
seconds of silence go to stderr, ahead of the stack.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from contextlib import suppress

END = b'end'
# Seconds between two looks. If this process was stopped itself, that time
# counts no more than two of them.
SLICE = 0.1


def thread_state(pid: int, thread: int) -> str:
    """Read the kernel's letter for the state of a thread.

    Raises:
        OSError: If there is no such thread.
    """
    path = f'/proc/{pid}/task/{thread}/stat'
    with open(path, errors='replace') as file:
        return file.read().rpartition(')')[2].split()[0]


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread of a process.

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
    """Request a stack each time the interval passes without a heartbeat.

    Time counts only while the thread that sends heartbeats sleeps, as it does
    when it waits for the GIL. A process that is suspended, in a debugger, or
    gets no CPU time does not hang.

    Raises:
        OSError: If the process, or the thread, has ended.
    """
    watched, thread = [0], pid
    # Linux before 5.3 has no pidfd.
    with suppress(AttributeError, OSError):
        # Readable once the process has ended: its pid may be reused then.
        watched.append(os.pidfd_open(pid))
    silent, interval, last = 0.0, float('inf'), time.monotonic()
    due = interval
    while True:
        ready, _, _ = select.select(watched, [], [], SLICE)
        now = time.monotonic()
        spent, last = min(now - last, 2 * SLICE), now
        if ready:
            words = os.read(0, 65536).split() if ready == [0] else []
            if not words or words[-1] == END:
                return
            thread, silent, interval = int(words[-2]), 0.0, float(words[-1])
            due = interval
        elif thread_state(pid, thread) == 'S':
            silent += spent
        if silent > due:
            due += interval
            os.write(2, b'Silent for %f s\n' % silent)
            signal_thread(pid, asked, number)


if __name__ == '__main__':
    # Forked, so that the training process has no child that it may count.
    if os.fork() == 0:
        os.setsid()
        # The training process may end at any time.
        with suppress(OSError):
            watch(*map(int, sys.argv[1:]))
