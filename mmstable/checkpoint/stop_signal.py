"""Signals that ask a run to stop, noted and not obeyed at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any


class StopSignal:
    """Remembers that this process was asked to stop.

    The handler only sets a flag: saving from inside a handler could meet a
    half-made update. A second signal ends the process at once. Forked
    dataloader workers inherit the handler; there Ctrl-C, which a terminal
    sends to the whole group, is left to the main process, and other signals
    do what they do by default.

    Args:
        names (Sequence[str]): The signals, e.g. 'SIGTERM'.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = [signal.Signals[name] for name in names]
        self._previous: dict[int, Any] = {}
        self._pid = 0
        self.received: signal.Signals | None = None

    def install(self) -> bool:
        """Start to listen; False outside the main thread, which cannot."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._pid = os.getpid()
        self.received = None
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._handle)
        return True

    def uninstall(self) -> None:
        """Put the previous handlers back."""
        for number, previous in self._previous.items():
            # None: a handler that was not installed from Python.
            signal.signal(
                number, signal.SIG_DFL if previous is None else previous
            )
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            if number == signal.SIGINT:
                return
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        previous = self._previous.get(number)
        # Python's own handler of Ctrl-C would raise in the middle of a step.
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)
