"""A switch that goes off if nobody keeps it from doing so.

While a function in C holds Python's lock no thread of Python can run, so none
can tell. ``faulthandler`` has a timer in C that can.
"""

from __future__ import annotations

import faulthandler
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmstable.files import append

_HEADER = 'Timeout ('


class DeadMan:
    """Has all stacks written again and again, until it is armed again.

    A process that was suspended writes them once; one in which the lock is
    held writes them as often as the time allows. There is one such timer in
    a process.

    Args:
        path (Path): The file to write to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._interval = self._armed_at = 0.0
        # Hanging matters more than a disk that is full.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(  # noqa: SIM115
                path, 'a+', encoding='utf-8', opener=append
            )

    def arm(self, interval: float) -> None:
        """Start anew, unless that was done just now.

        Args:
            interval (float): Seconds until stacks are written, and from then
                on between two times.
        """
        now = time.monotonic()
        if self._file is None or now - self._armed_at < interval / 2:
            return
        self._interval, self._armed_at = interval, now
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError):
            self._file.truncate(0)
        faulthandler.dump_traceback_later(
            interval, repeat=True, file=self._file
        )

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
        faulthandler.cancel_dump_traceback_later()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
                self._path.unlink()
