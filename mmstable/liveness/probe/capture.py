"""Captures what one thread prints; others print as before."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _OfOneThread:
    """Stands in for standard output."""

    def __init__(self, original: Any, captured: io.StringIO) -> None:
        self._original, self._captured = original, captured
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return self._captured.write(text)
        return self._original.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@contextmanager
def captured_output() -> Iterator[io.StringIO]:
    """Collect what this thread prints."""
    out, before = io.StringIO(), sys.stdout
    stand_in: Any = _OfOneThread(before, out)
    sys.stdout = stand_in
    try:
        yield out
    finally:
        # Another thread may have begun meanwhile, and goes through this one.
        if sys.stdout is stand_in:
            sys.stdout = before
