"""Do things in order, in another thread, without ever waiting for it."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_Call = Callable[[], Any]
# Seconds without a call after which the thread ends: many runs in one process
# must not leave one each.
_IDLE = 5.0


class CallQueue:
    """Calls that may fail or never end.

    Args:
        most (int): How many calls may wait; more are dropped.
        most_bytes (int): What they may need together.
        on_error (Callable): Told, in that thread, of what a call has raised.
        leave_after (float): Seconds that the end of the process may wait for
            calls that nobody has waited for.
    """

    def __init__(
        self,
        most: int,
        most_bytes: int,
        on_error: Callable[[Exception], None],
        leave_after: float = 5.0,
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._on_error = on_error
        self._leave_after = leave_after
        self._waiting: deque[tuple[_Call, int]] = deque()
        self._bytes = 0
        self._is_busy = False
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_registered = False

    def put(self, call: _Call, size: int = 0) -> bool:
        """Let a call wait for its turn; False if there are too many.

        Args:
            call (Callable): The call.
            size (int): Bytes that it keeps in memory. Defaults to 0.
        """
        with self._state:
            is_full = len(self._waiting) >= self._most or (
                self._waiting and self._bytes + size > self._most_bytes
            )
            if is_full:
                return False
            self._waiting.append((call, size))
            self._bytes += size
            self._start()
            self._state.notify_all()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until all calls are done; False if that takes too long."""
        end = time.monotonic() + seconds
        with self._state:
            while self._waiting or self._is_busy:
                left = end - time.monotonic()
                if left <= 0 or not self._state.wait(left):
                    return False
        return True

    def clear(self) -> int:
        """Forget the calls that wait, and say how many they were."""
        with self._state:
            count = len(self._waiting)
            self._waiting.clear()
            self._bytes = 0
        return count

    def _start(self) -> None:
        if self._thread is not None:
            return
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._leave, os.getpid())
        # It must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._work, name='mmstable-vis', daemon=True
        )
        self._thread.start()

    def _work(self) -> None:
        while True:
            with self._state:
                self._is_busy = False
                self._state.notify_all()
                if not self._waiting:
                    self._state.wait(_IDLE)
                if not self._waiting:
                    # The next call starts another one.
                    self._thread = None
                    return
                call, size = self._waiting.popleft()
                self._bytes -= size
                self._is_busy = True
            try:
                call()
            except Exception as error:
                self._on_error(error)
            # Not kept until the next one comes.
            del call

    def _leave(self, pid: int) -> None:
        # A forked process has the queue, but not the thread.
        if pid == os.getpid():
            self.wait(self._leave_after)
