"""A thread that looks at the process tree now and then."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Callable

from mmstable.background import BackgroundThread
from mmstable.memory.process_tree import Reading

# Looking takes at most one part of so many of the time.
_RARELY = 200


class TreeSampler:
    """Reads the process tree in the background.

    Args:
        read (Callable): Gives a reading.
        interval (float): Seconds between two. It gets longer by itself where
            a reading takes more than 0.5 % of it.
    """

    def __init__(self, read: Callable[[], Reading], interval: float) -> None:
        self._read, self._interval = read, interval
        self._thread: BackgroundThread | None = None
        self._newest: Reading | None = None
        # Whether there is a reading, or a failure, that nobody has seen.
        self.has_news = False
        # What ended the thread, if something did.
        self.failure: Exception | None = None

    def start(self, is_over: Callable[[], bool]) -> None:
        """Begin to look; the first reading comes after one interval.

        Args:
            is_over (Callable): Whether nobody needs readings any more: asked
                before each of them.
        """
        self.stop()
        self._newest = self.failure = None
        self.has_news = False
        self._thread = BackgroundThread(
            'mmstable memory', partial(self._run, is_over)
        )
        self._thread.start()

    def stop(self) -> None:
        """End, after the reading that is under way."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    @property
    def is_alive(self) -> bool:
        """Whether it still looks."""
        return self._thread is not None and self._thread.is_alive

    def take(self) -> Reading | None:
        """The newest reading, once."""
        # In this order: a newer one that comes in between is not lost.
        self.has_news = False
        newest, self._newest = self._newest, None
        return newest

    def _run(
        self, is_over: Callable[[], bool], stopped: threading.Event
    ) -> None:
        pause = self._interval
        while not stopped.wait(pause) and not is_over():
            start = time.thread_time()
            try:
                self._newest = self._read()
            except Exception as error:
                # Training matters more; whoever looks next tells of it.
                self.failure = error
            self.has_news = True
            if self.failure is not None:
                return
            spent = time.thread_time() - start
            pause = max(self._interval, _RARELY * spent)
