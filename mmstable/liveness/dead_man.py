"""A switch that goes off if nobody keeps it from doing so.

While a function in C holds Python's lock no thread of Python can run, so none
can tell. Another process can: it sends a signal, whose handler in C writes
the stacks. ``faulthandler`` has a timer of its own, but that reads the stacks
of threads that run, as all do when a suspended process continues, and that
crashes the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmstable.files import append
from mmstable.liveness import sentinel

_HEADER = 'Timeout ('
# None that a scheduler or a user would take; not everywhere.
_SIGNAL = getattr(signal, 'SIGRTMIN', 0) + 9 if os.name == 'posix' else 0
# What the handler writes to, as long as this process lives: a signal that
# comes late must neither end it nor go to another file.
_target: IO[str] | None = None


class DeadMan:
    """Has all stacks written again and again, until it is armed again.

    Time in which the process is suspended does not count.

    Args:
        path (Path): The file to write to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._sentinel: subprocess.Popen | None = None
        self._interval = self._armed_at = 0.0
        # Hanging matters more than a disk that is full.
        with suppress(OSError):
            if hasattr(signal, 'SIGRTMIN'):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(  # noqa: SIM115
                    path, 'a+', encoding='utf-8', opener=append
                )
                _write_to(self._file)
                # It would interrupt what this thread, which trains, waits in.
                signal.pthread_sigmask(signal.SIG_BLOCK, [_SIGNAL])
                self._sentinel = _start(path)

    def take_signals(self) -> None:
        """Have them handled in the calling thread."""
        if self._sentinel is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [_SIGNAL])

    def arm(self, interval: float) -> None:
        """Start anew, unless that was done just now.

        Args:
            interval (float): Seconds until stacks are written, and from then
                on between two times.
        """
        now = time.monotonic()
        if now - self._armed_at < interval / 2:
            return
        self._interval, self._armed_at = interval, now
        with suppress(OSError):
            if self._file is not None:
                self._file.truncate(0)
            if self._sentinel is not None and self._sentinel.stdin:
                self._sentinel.stdin.write(b'%f\n' % interval)

    def read(self) -> tuple[float, str]:
        """For how long nobody came, and the last stacks of that time."""
        if self._file is None or (
            time.monotonic() - self._armed_at < self._interval
        ):
            return 0.0, ''
        with suppress(OSError):
            self._file.seek(0)
            _, *dumps = self._file.read().split(_HEADER)
            if dumps:
                return len(dumps) * self._interval, dumps[-1]
        return 0.0, ''

    def close(self) -> None:
        """End it; nothing is left behind."""
        one, self._sentinel = self._sentinel, None
        self._file = None
        with suppress(OSError):
            if one is not None and one.stdin is not None:
                one.stdin.close()
            self._path.unlink()


def _start(path: Path) -> subprocess.Popen:
    words = [sys.executable, '-I', '-S', sentinel.__file__]
    one = subprocess.Popen(
        [*words, str(os.getpid()), str(int(_SIGNAL)), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    # It goes on as another one.
    one.wait()
    return one


def _write_to(file: IO[str]) -> None:
    global _target  # noqa: PLW0603
    faulthandler.register(_SIGNAL, file, all_threads=True)
    _target = file
