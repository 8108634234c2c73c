"""From when to when did a part of an iteration run?"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Callable, NamedTuple

import torch

# Kinds of spans besides the stages of hooks.
BACKWARD, STEP, MODULE, VALIDATION = 'backward', 'step', 'module', 'validation'


def device_clock(device: torch.device) -> Callable[[], float]:
    """A clock that waits for all that a device was given to do.

    A GPU computes while Python is somewhere else already: without waiting,
    the time would be put down to whoever reads a result first.

    Args:
        device (torch.device): Where the model is.
    """
    backend = getattr(torch, device.type, None)
    synchronize = getattr(backend, 'synchronize', None)
    if device.type == 'cpu' or synchronize is None:
        return time.perf_counter

    def clock() -> float:
        synchronize()
        return time.perf_counter()

    return clock


class Span(NamedTuple):
    """A part of an iteration.

    Args:
        kind (str): The stage of a hook, or :data:`BACKWARD`, :data:`STEP`,
            :data:`MODULE` or :data:`VALIDATION`.
        name (str): The class of the hook, or the name of the module.
        start (float): When it began, in seconds.
        stop (float): When it ended.
        cpu (float): CPU time of the thread when it began.
        is_inner (bool): Whether it is a part of another span that is no
            module.
    """

    kind: str
    name: str
    start: float
    stop: float
    cpu: float
    is_inner: bool


class _Open(NamedTuple):
    kind: str
    name: str
    start: float
    cpu: float
    is_inner: bool
    range: Any


class SpanRecorder:
    """Takes the times of the thread that has made it.

    Args:
        clock (Callable): What the time is read from.
        annotates (bool): Whether torch's profiler is told of all spans.
            Defaults to False.
    """

    def __init__(
        self, clock: Callable[[], float], annotates: bool = False
    ) -> None:
        self.clock = clock
        self._annotates = annotates
        self._thread = threading.get_ident()
        self.spans: list[Span] = []
        self._open: list[_Open] = []

    def begin(self, kind: str, name: str) -> object | None:
        """Begin a span; give what it was given to :meth:`end`."""
        if threading.get_ident() != self._thread:
            # A backward pass may run modules again, in threads of its own.
            return None
        open_kinds = [one.kind for one in self._open]
        if kind == MODULE and BACKWARD in open_kinds:
            return None
        found = None
        if self._annotates:
            found = torch.profiler.record_function(f'{kind}: {name}')
            found.__enter__()
        inner = any(one != MODULE for one in open_kinds)
        cpu = time.thread_time()
        span = _Open(kind, name, self.clock(), cpu, inner, found)
        self._open.append(span)
        return span

    def end(self, token: object | None) -> None:
        """End a span, and all that an exception has left open inside."""
        if token is None or not any(one is token for one in self._open):
            return
        stop = self.clock()
        while True:
            one = self._open.pop()
            if one.range is not None:
                # Out of order after an exception.
                with suppress(RuntimeError):
                    one.range.__exit__(None, None, None)
            if one is token:
                break
        self.spans.append(
            Span(one.kind, one.name, one.start, stop, one.cpu, one.is_inner)
        )

    def end_module(self, name: str) -> None:
        """End the innermost open span of a module."""
        if threading.get_ident() != self._thread:
            return
        for one in reversed(self._open):
            if (one.kind, one.name) == (MODULE, name):
                self.end(one)
                return
