"""Jobs of other threads that the training thread does between two steps."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Callable


class Job:
    """A piece of work that is done once, by whichever thread comes first.

    Args:
        work (Callable): What to do.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def run(self) -> bool:
        """Do it; False if somebody else does, or has done it."""
        if not self._claim.acquire(blocking=False):
            return False
        try:
            self._value = self._work()
        except Exception as error:
            self._error = error
        finally:
            self._done.set()
        return True

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is done within some seconds; None for no limit."""
        return self._done.wait(seconds)

    def result(self) -> Any:
        """What came out of it, or the error that it has ended with."""
        if self._error is not None:
            raise self._error
        return self._value


class Boundary:
    """Jobs that wait for the end of a step.

    The thread that trains asks ``waiting``, and calls :meth:`visit` only if
    there is something.
    """

    def __init__(self) -> None:
        self.waiting: deque[Job] = deque()
        self._is_open = True

    def post(self, work: Callable[[], Any]) -> Job:
        """Add a job; it is done here and now if training is over."""
        job = Job(work)
        self.waiting.append(job)
        if not self._is_open:
            self.visit()
        return job

    def visit(self) -> None:
        """Do all jobs that wait."""
        while True:
            try:
                job = self.waiting.popleft()
            except IndexError:
                return
            job.run()

    def close(self) -> None:
        """Training is over: do the jobs that still wait."""
        self._is_open = False
        self.visit()
