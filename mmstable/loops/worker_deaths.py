"""The death of a data loader's worker, told when it can do no harm."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling


class WorkerDeaths:
    """Keeps torch from raising in the middle of an update or a save.

    When a worker dies, torch raises in the main thread, wherever that is.
    This waits for :meth:`raise_pending`, unless the main thread waits for
    data anyway.
    """

    def __init__(self) -> None:
        self.is_pending = False
        self._raise: Any = None

    def install(self) -> None:
        """Start, from the main thread."""
        # Once in a process; torch would do it with the first worker.
        signal_handling._set_SIGCHLD_handler()
        other = getattr(signal.getsignal(signal.SIGCHLD), '__self__', None)
        if isinstance(other, WorkerDeaths):
            # Of a run that an error has ended, which nobody told the hooks.
            other.uninstall()
        self.is_pending = False
        self._raise = signal.signal(signal.SIGCHLD, self._handle)

    def uninstall(self) -> None:
        """Leave it to torch again."""
        if self._raise is not None:
            signal.signal(signal.SIGCHLD, self._raise)
            self._raise = None

    def raise_pending(self) -> None:
        """Raise what torch has to say, if a worker has died."""
        self.is_pending = False
        if callable(self._raise):
            self._raise(signal.SIGCHLD, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if _waits_for_data(frame):
            self.raise_pending()
        else:
            self.is_pending = True


def _waits_for_data(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == dataloader.__file__:
            return True
        frame = frame.f_back
    return False
