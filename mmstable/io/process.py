"""Processes and threads: identity, liveness, stacks, orderly exit."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Callable

import psutil

# A zombie keeps its number until its parent waits for it.
_SHORT = {'disk-sleep': 'disk', 'tracing-stop': 'traced', 'zombie': 'dead'}


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinguished from later ones with the same number.

    Args:
        host (str): The machine.
        pid (int): The process id.
        space (str): The pid namespace; a container has its own.
        born (str): Start time of the process in ticks since boot.
    """

    host: str
    pid: int
    space: str
    born: str

    @classmethod
    def of_this_process(cls) -> ProcessIdentity:
        """Return the identity of the calling process."""
        pid = os.getpid()
        return cls(platform.node(), pid, _space(), _born(pid))

    def can_be_asked(self) -> bool:
        """Whether its process id is valid on this host and namespace."""
        return (self.host, self.space) == (platform.node(), _space())

    def is_alive(self) -> bool:
        """Whether the process runs; only if :meth:`can_be_asked`."""
        return is_alive(self.pid) and _born(self.pid) == self.born


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    return state_of(pid) != 'dead'


def state_of(pid: int) -> str:
    """Return the state of a process; '' if it belongs to another user.

    Returns:
        str: 'running', 'sleeping', 'disk', 'stopped', 'traced', 'dead', or
        one of psutil's rarer states.
    """
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return 'dead'
    except (psutil.Error, OverflowError):
        return ''
    return _SHORT.get(status, status)


def waits_in(pid: int) -> str:
    """Return the kernel function that a process waits in; '' if unknown."""
    try:
        text = Path(f'/proc/{pid}/wchan').read_text(errors='replace')
    except OSError:
        return ''
    return '' if text == '0' else text


def _space() -> str:
    try:
        return os.readlink('/proc/self/ns/pid')
    except OSError:
        return ''


def _born(pid: int) -> str:
    # psutil's `create_time` changes when the clock of the machine is set.
    try:
        text = Path(f'/proc/{pid}/stat').read_text(errors='replace')
    except OSError:
        return ''
    # The name of the process, in brackets, may contain spaces.
    return text.rpartition(')')[2].split()[19]


_running: set[BackgroundThread] = set()


class BackgroundThread:
    """A thread beside the training that is joined before Python shuts down.

    At shutdown Python stops daemon threads wherever they are, and a thread
    inside torch crashes the process. So running threads are stopped and
    joined first.

    Args:
        name (str): The name of the thread.
        run (Callable): Work of the thread; gets an event, and returns soon
            after it is set.
        wake (Callable, optional): Called from another thread after the event
            was set, for a thread that waits for something else. Defaults to
            None.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[threading.Event], None],
        wake: Callable[[], object] | None = None,
    ) -> None:
        self._run, self._wake = run, wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._work, name=name, daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        _running.add(self)
        self._thread.start()

    def stop(self, patience: float = 5.0) -> None:
        """Stop the thread and join it; the thread may call this itself.

        Args:
            patience (float): Seconds to wait at most. Defaults to 5.0.
        """
        self._end()
        if self.is_alive and threading.current_thread() is not self._thread:
            self._thread.join(patience)

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _end(self) -> None:
        self._stopped.set()
        # A forked process has no such thread.
        if self._wake is not None and self.is_alive:
            self._wake()

    def _work(self) -> None:
        try:
            self._run(self._stopped)
        finally:
            _running.discard(self)


@atexit.register
def _stop_all() -> None:
    threads = list(_running)
    for one in threads:
        one._end()
    for one in threads:
        one.stop()


def thread_frames(first: int | None) -> list[tuple[int, str, FrameType]]:
    """List number, name and frame of all threads. Do not keep the frames.

    The caller must hold the GIL: without it, the frames of another thread
    can change while they are read, which crashes the process.

    Args:
        first (int, optional): The thread to begin with.
    """
    names = {one.ident: one.name for one in threading.enumerate()}
    frames = sys._current_frames()
    order = sorted(frames, key=lambda one: one != first)
    return [(one, names.get(one, str(one)), frames[one]) for one in order]


def all_stacks() -> str:
    """Format the calls of all threads, as ``faulthandler`` does.

    The main thread comes first, and the innermost call of each.
    """
    lines = []
    for _, name, frame in thread_frames(threading.main_thread().ident):
        lines.append(f'Thread {name} (most recent call first):')
        for one, line in traceback.walk_stack(frame):
            file, function = one.f_code.co_filename, one.f_code.co_name
            lines.append(f'  File "{file}", line {line} in {function}')
        lines.append('')
    return '\n'.join(lines)
