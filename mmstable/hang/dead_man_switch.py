"""Writes the stack of a training thread that holds the GIL for long.

While a C function holds the GIL, no watching thread can report anything. So
:mod:`mmstable.hang.watchdog_process` expects heartbeats. Without one, it sends
a signal to the training thread, whose C handler writes the stack of that
thread alone: reading the frames of other threads without the GIL crashes the
process, so ``faulthandler`` must never dump all threads from a handler or by
its timer.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmstable.hang import watchdog_process
from mmstable.io.files import append

_HEADER = 'Silent for '
# Seconds to wait for the end of the other process.
_END_TIMEOUT_S = 5.0
# A signal that neither schedulers nor users send. macOS has none of these.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, 'SIGRTMIN') else 0


class DeadManSwitch:
    """Have the stack of the constructing thread written, unless rearmed.

    Time in which the process is suspended does not count.

    Args:
        path (Path): The file to write to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._process: subprocess.Popen | None = None
        # A full disk must not keep a run from training.
        with suppress(OSError):
            if _SIGNAL:
                self._start()

    def _start(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(  # noqa: SIM115
            self._path, 'a+', encoding='utf-8', opener=append
        )
        # Never unregistered: a late signal must not end this process, nor
        # write to another file of the same descriptor.
        faulthandler.register(_SIGNAL, self._file, all_threads=False)
        words = os.getpid(), threading.get_native_id(), int(_SIGNAL)
        program = [sys.executable, '-I', '-S', watchdog_process.__file__]
        self._process = subprocess.Popen(
            [*program, *map(str, words)],
            stdin=subprocess.PIPE,
            # Closed when it ends.
            stdout=subprocess.PIPE,
            stderr=self._file,
            bufsize=0,
        )
        # It has forked the process that watches, and ends.
        self._process.wait()

    def arm(self, interval: float) -> None:
        """Send a heartbeat, from the watching thread.

        Args:
            interval (float): Seconds until the stack is written, and between
                two stacks. The signal interrupts system calls of the training
                thread, so take no less than counts as a hang.
        """
        with suppress(OSError):
            if self._file is not None:
                self._file.truncate(0)
            if self._process is not None and self._process.stdin:
                words = threading.get_native_id(), interval
                self._process.stdin.write(b'%d %f\n' % words)

    def read(self) -> tuple[float, str]:
        """Read the seconds without a heartbeat, and the last stack."""
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
        process, self._process = self._process, None
        file, self._file = self._file, None
        if process is not None and process.stdin and process.stdout:
            with suppress(OSError), process:
                process.stdin.write(watchdog_process.END + b'\n')
                # `select.select` fails above 1024 open files.
                closed = select.poll()
                closed.register(process.stdout, select.POLLIN)
                closed.poll(1000 * _END_TIMEOUT_S)
        if file is not None:
            # The signal handler keeps the descriptor.
            with open(os.devnull, 'r+b') as nothing:
                os.dup2(nothing.fileno(), file.fileno(), inheritable=False)
        with suppress(OSError):
            self._path.unlink()
