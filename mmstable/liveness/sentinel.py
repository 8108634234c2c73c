"""A process that asks another one for its stacks when that falls silent.

Run as a script, without anything of mmstable: it must be small, and must not
be stopped by what stops the other. Arguments: the process, the signal, and
the file for the stacks. Each line of stdin is a sign of life: the thread that
sends it, and the seconds until the next one. The line 'end' ends it: the end
of stdin may not come, since processes that the other one has forked keep it
open.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
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


def watch(pid: int, number: int, path: str) -> None:
    """Ask for stacks each time that the limit is over.

    Time only counts while the thread that should send a sign of life waits,
    as it does for Python's lock. While it is suspended, in a debugger, or
    only gets no time of a busy machine, other threads may run: whoever reads
    their stacks then can crash the process.

    Raises:
        OSError: If the process, or the thread, has ended.
    """
    send, thread = signal_sender(pid), pid
    silent, limit, last = 0.0, float('inf'), time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], SLICE)
        now = time.monotonic()
        spent, last = min(now - last, 2 * SLICE), now
        if ready:
            words = os.read(0, 65536).split()
            if not words or words[-1] == END:
                return
            thread, silent, limit = int(words[-2]), 0.0, float(words[-1])
        elif state_of(pid, thread) == 'S':
            silent += spent
        if silent > limit:
            silent = 0.0
            with open(path, 'a', encoding='utf-8') as file:
                file.write(f'Timeout ({limit:g} s)!\n')
            send(number)


def signal_sender(pid: int) -> Callable[[int], None]:
    """Sends signals to a process, and never to another one of its number."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Before Linux 5.3.
        return lambda number: os.kill(pid, number)
    return lambda number: signal.pidfd_send_signal(process, number)


if __name__ == '__main__':
    # No child of the process that it watches, which may count those.
    if os.fork() == 0:
        os.setsid()
        # The process that it watches may end at any time.
        with suppress(OSError):
            watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
