"""Notices a stop signal that a training which stands still cannot obey."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection
from functools import cache
from typing import Callable

_INTERVAL_S = 0.2


def await_standstill(timeout_s: float) -> None:
    """Wait until the main thread executes no Python, but not for ever."""
    main = threading.main_thread().ident or 0
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = _place(main)
        time.sleep(2 * _INTERVAL_S)
        if _place(main) == before:
            return


def _place(thread: int) -> tuple[int, int]:
    frame = sys._current_frames()[thread]
    return id(frame), frame.f_lasti


class StopWatch:
    """Call a function if a signal is not obeyed in time.

    Python's handlers run in the main thread, between two instructions: while
    it waits for a device, none does. The handler in C writes the number of
    the signal to a socket that this thread reads.

    Args:
        numbers (Collection[int]): The signals.
        patience_s (float): Seconds until the function is called, and
            between two calls.
        react (Callable): Called with the signal, from the thread.
    """

    def __init__(
        self,
        numbers: Collection[int],
        patience_s: float,
        react: Callable[[int], None],
    ) -> None:
        self._numbers = numbers
        self._patience_s = patience_s
        self._react = react
        self._previous = -1
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start to listen, from the main thread."""
        self._sockets = read, write = socket.socketpair()
        write.setblocking(False)
        _forget_in_children()
        self._previous = signal.set_wakeup_fd(
            write.fileno(), warn_on_full_buffer=False
        )
        threading.Thread(
            target=self._listen,
            args=(read,),
            name='mmstable stop watch',
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Stop to listen, from the main thread."""
        sockets, self._sockets = self._sockets, None
        self._stopped.set()
        if sockets is not None:
            signal.set_wakeup_fd(self._previous)
            for one in sockets:
                # Ends the thread, too, which may be reading.
                one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _listen(self, read: socket.socket) -> None:
        while True:
            try:
                numbers = read.recv(64)
            except OSError:
                return
            if not numbers:
                return
            for number in {*numbers} & {*self._numbers}:
                # Until it is obeyed, which ends this watch.
                while not self._stopped.wait(self._patience_s):
                    self._react(number)


@cache
def _forget_in_children() -> None:
    """Let no signal to a forked worker be taken for one to this process."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
