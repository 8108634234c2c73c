"""Writes the stack of a training thread that keeps all others from running.

While a function in C holds Python's lock, a watching thread cannot report
anything. So another process expects a sign of life from that thread. If none
comes, it sends a signal to the thread that trains, whose handler in C writes
the stack of this thread alone. The frames of other threads may change while
they are read without the lock, which crashes the process: ``faulthandler``
must never write those from a handler or by its timer.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from mmstable.files import append
from mmstable.liveness import sentinel

_HEADER = 'Silent for '
# Seconds to wait for the end of the other process.
_PATIENCE = 5.0
# A signal that neither schedulers nor users send. macOS and Windows have
# none of these.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, 'SIGRTMIN') else 0


class DeadManSwitch:
    """Has the stack of the thread that makes it written at intervals.

    Unless it is armed again in time. Time in which the process is suspended
    does not count.

    Args:
        path (Path): The file to write to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._sentinel: subprocess.Popen | None = None
        # A full disk must not keep a run from training.
        with suppress(OSError):
            if _SIGNAL:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(  # noqa: SIM115
                    path, 'a+', encoding='utf-8', opener=append
                )
                # It keeps the file: a signal that comes late must not end
                # this process, nor write to a file of the same number.
                faulthandler.register(_SIGNAL, self._file, all_threads=False)
                words = os.getpid(), threading.get_native_id(), int(_SIGNAL)
                program = [sys.executable, '-I', '-S', sentinel.__file__]
                self._sentinel = subprocess.Popen(
                    [*program, *map(str, words)],
                    stdin=subprocess.PIPE,
                    # Closed when it ends.
                    stdout=subprocess.PIPE,
                    stderr=self._file,
                    bufsize=0,
                )
                # It has forked the process that watches, and ends.
                self._sentinel.wait()

    def arm(self, interval: float) -> None:
        """Start to count again. To be called by the watching thread.

        Args:
            interval (float): Seconds until the stack is written, and from
                then on between two times. The signal interrupts what the
                training thread waits for: not less than is a hang.
        """
        with suppress(OSError):
            if self._file is not None:
                self._file.truncate(0)
            if self._sentinel is not None and self._sentinel.stdin:
                words = threading.get_native_id(), interval
                self._sentinel.stdin.write(b'%d %f\n' % words)

    def read(self) -> tuple[float, str]:
        """Seconds without a sign of life, and the last stack of them."""
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.seek(0)
                _, *dumps = self._file.read().split(_HEADER)
                if dumps:
                    seconds, _, dump = dumps[-1].partition(' ')
                    return float(seconds), dump
        return 0.0, ''

    def close(self) -> None:
        """End the other process, so that no signal comes, and the file."""
        one, self._sentinel = self._sentinel, None
        file, self._file = self._file, None
        with suppress(OSError), one or nullcontext():
            if one is not None and one.stdin and one.stdout:
                one.stdin.write(sentinel.END + b'\n')
                # `select.select` fails in a process with a thousand open
                # files.
                closed = select.poll()
                closed.register(one.stdout, select.POLLIN)
                closed.poll(1000 * _PATIENCE)
        if file is not None:
            # The handler keeps the descriptor.
            with open(os.devnull, 'r+b') as nothing:
                os.dup2(nothing.fileno(), file.fileno(), inheritable=False)
        with suppress(OSError):
            self._path.unlink()
