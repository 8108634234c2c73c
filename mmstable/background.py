"""Threads that end before Python does, and what all threads do."""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
from types import FrameType
from typing import Callable

_running: set[BackgroundThread] = set()


class BackgroundThread:
    """A thread beside the training, which ends with the process.

    When Python shuts down, it stops daemon threads wherever they are, and one
    that is inside of torch crashes the process then. So those that still run
    are told to end before that, and waited for.

    Args:
        name (str): The name of the thread.
        run (Callable): What it does, until the event that it gets is set.
        wake (Callable, optional): Called from another thread after the event
            was set, if the thread waits for something else. Defaults to None.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[threading.Event], None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._run, self._wake = run, wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._work, name=name, daemon=True
        )

    def start(self) -> None:
        """Start it."""
        _running.add(self)
        self._thread.start()

    def stop(self, patience: float = 5.0) -> None:
        """Tell it to end, and wait for that; it may call this itself.

        Args:
            patience (float): Seconds to wait at most. Defaults to 5.0.
        """
        self._end()
        if self.is_alive and threading.current_thread() is not self._thread:
            self._thread.join(patience)

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stopped.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def _end(self) -> None:
        self._stopped.set()
        # In a forked process it does not run.
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
    """Number, name and frame of all threads. Not to be kept.

    Whoever calls this has Python's lock. Without it, the frames of another
    thread can change while they are read, which crashes the process.

    Args:
        first (int, optional): The thread to begin with.
    """
    names = {one.ident: one.name for one in threading.enumerate()}
    frames = sys._current_frames()
    order = sorted(frames, key=lambda one: one != first)
    return [(one, names.get(one, str(one)), frames[one]) for one in order]


def all_stacks() -> str:
    """The calls of all threads, as ``faulthandler`` writes them.

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
