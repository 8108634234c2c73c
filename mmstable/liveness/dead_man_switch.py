"""Writes the stacks of a process in which no thread of Python can run.

While a function in C holds Python's lock, a watching thread cannot report
anything. So another process expects a sign of life from that thread. If none
comes, it sends a signal, whose handler in C writes the stacks. The timer of
``faulthandler`` is no alternative: it also reads the stacks of threads that
run, as all do when a suspended process continues, and that can crash the
process.
"""

from __future__ import annotations

import faulthandler
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmstable.files import append
from mmstable.liveness import sentinel

_HEADER = 'Timeout ('
# Seconds to wait for the end of the other process.
_PATIENCE = 5.0
# A signal that neither schedulers nor users send. macOS and Windows have
# none of these.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, 'SIGRTMIN') else 0
# What the handler writes to, as long as this process lives: a signal that
# comes late must not end the process, and its stacks must not go to another
# file that has got the same number.
_target: IO[str] | None = None


class DeadManSwitch:
    """Has all stacks written at intervals, unless it is armed again in time.

    Time in which the process is suspended does not count.

    Args:
        path (Path): The file to write to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._sentinel: subprocess.Popen | None = None
        self._interval = self._armed_at = 0.0
        # A full disk must not keep a run from training.
        with suppress(OSError):
            if _SIGNAL:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(  # noqa: SIM115
                    path, 'a+', encoding='utf-8', opener=append
                )
                _write_to(self._file)
                # In this thread, which trains, it would interrupt calls.
                signal.pthread_sigmask(signal.SIG_BLOCK, [_SIGNAL])
                self._sentinel = _start(path)

    def take_signals(self) -> None:
        """Let the calling thread handle the signal."""
        if _SIGNAL:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [_SIGNAL])

    def arm(self, interval: float) -> None:
        """Start to count again, unless that was done just now.

        To be called by the watching thread. Time in which it could run does
        not count.

        Args:
            interval (float): Seconds until stacks are written, and from then
                on between two times.
        """
        now = time.monotonic()
        if now - self._armed_at < interval / 2:
            return
        self._armed_at = now
        self._set(interval)

    def pause(self) -> None:
        """Write nothing until it is armed again."""
        self._armed_at = -math.inf
        self._set(math.inf)

    def read(self) -> tuple[float, str]:
        """Seconds without a sign of life, and the last stacks of them."""
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
        """End the other process, so that no signal comes, and the file."""
        one, self._sentinel = self._sentinel, None
        file, self._file = self._file, None
        if one is not None:
            _end(one)
        if file is not None:
            _empty(file)
        with suppress(OSError):
            self._path.unlink()

    def _set(self, interval: float) -> None:
        self._interval = interval
        with suppress(OSError):
            if self._file is not None:
                self._file.truncate(0)
            if self._sentinel is not None and self._sentinel.stdin:
                words = threading.get_native_id(), interval
                self._sentinel.stdin.write(b'%d %f\n' % words)


def _start(path: Path) -> subprocess.Popen:
    words = [sys.executable, '-I', '-S', sentinel.__file__]
    one = subprocess.Popen(
        [*words, str(os.getpid()), str(int(_SIGNAL)), str(path)],
        stdin=subprocess.PIPE,
        # Closed when it ends.
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    # It has forked the process that watches, and ends.
    one.wait()
    return one


def _end(one: subprocess.Popen) -> None:
    with suppress(OSError), one:
        if one.stdin is not None and one.stdout is not None:
            one.stdin.write(sentinel.END + b'\n')
            # `select.select` fails in a process with a thousand open files.
            closed = select.poll()
            closed.register(one.stdout, select.POLLIN)
            closed.poll(1000 * _PATIENCE)


def _empty(file: IO[str]) -> None:
    """Close a file, but keep its descriptor valid for the handler."""
    with open(os.devnull, 'r+b') as nothing:
        os.dup2(nothing.fileno(), file.fileno(), inheritable=False)


def _write_to(file: IO[str]) -> None:
    global _target  # noqa: PLW0603
    faulthandler.register(_SIGNAL, file, all_threads=True)
    _target = file
