"""A thread that watches the training thread, and reports when it hangs."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from mmstable.background import BackgroundThread
from mmstable.liveness.calls import Call, read_dump
from mmstable.liveness.dead_man_switch import DeadManSwitch
from mmstable.liveness.limits import FIRST_ITERATIONS, PhaseLimits
from mmstable.liveness.phases import ENDED, Phase, find_phase
from mmstable.liveness.training_thread import TrainingThread

# Seconds between two looks; fewer if a limit is short.
_INTERVAL, _SHORTEST = 1.0, 0.05
# Looks in a row that must find no training until it counts as ended.
_LOOKS_TO_END = 3


@dataclass(frozen=True)
class Stall:
    """A phase that takes too long.

    Args:
        phase (Phase): The phase.
        seconds (float): How long it has taken so far.
        limit (float): How long it may take.
        calls (list[Call]): What the thread that trains is calling.
        is_over (bool): Whether it has ended by now, as it must have if
            Python's lock was held. Defaults to False.
    """

    phase: Phase
    seconds: float
    limit: float
    calls: list[Call]
    is_over: bool = False


class Watched(Protocol):
    """What a watchdog reports to, from its own thread."""

    def progress(self) -> tuple[int, Any]:
        """Iterations of training done, and what else changes with time."""

    def on_look(self, phase: Phase, seconds: float, limit: float) -> None:
        """Called after every look."""

    def on_stall(self, stall: Stall) -> None:
        """Called when a phase takes too long, and again when twice that."""

    def on_recovery(self, phase: Phase, seconds: float) -> None:
        """Called when a phase that took too long has ended."""


class Watchdog:
    """Watches the thread that makes it, from a thread of its own.

    Only time in which the watching thread ran counts: a process that was
    suspended, or got no time of a busy machine, does not hang. Where a
    function in C keeps all threads from running, the switch counts.

    Args:
        watched (Watched): What to call, from the thread.
        limits (PhaseLimits): How long phases may take.
        switch (DeadManSwitch): Knows the time in which the watching thread
            could not run.
    """

    def __init__(
        self, watched: Watched, limits: PhaseLimits, switch: DeadManSwitch
    ) -> None:
        self._watched, self._limits, self._switch = watched, limits, switch
        self.interval = max(_SHORTEST, min(_INTERVAL, limits.shortest / 5))
        self._training = TrainingThread()
        self._first_iteration, _ = watched.progress()
        self._thread = BackgroundThread('mmstable hang watchdog', self._run)
        self._key: Any = None
        self._phase = Phase('other')
        self._is_first = True
        self._seconds = 0.0
        # The next report comes after so many times the limit.
        self._patience = 1.0
        self._looks_without = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it, from the thread that trains."""
        self._thread.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to end."""
        return self._thread.is_stopped

    def frame(self) -> FrameType | None:
        """Where the thread that trains is. Not to be kept."""
        return self._training.frame()

    def _run(self, stopped: threading.Event) -> None:
        try:
            self._watch(stopped)
        finally:
            self._switch.close()
        if self._patience > 1:
            self._watched.on_recovery(self._phase, self._seconds)

    def _watch(self, stopped: threading.Event) -> None:
        self._arm()
        last = time.monotonic()
        while not stopped.wait(self.interval):
            now = time.monotonic()
            late, last = now - last, now
            held, dump = self._switch.read()
            self._judge_dump(min(held, late), dump)
            self._look(min(late, 2 * self.interval))
            if self._looks_without >= _LOOKS_TO_END:
                return
            self._arm()

    def _arm(self) -> None:
        self._switch.arm(max(2 * self.interval, self._limits.shortest))

    def _look(self, spent: float) -> None:
        calls = self._training.calls()
        phase = find_phase(calls)
        if phase.name == ENDED:
            self._looks_without += 1
            return
        self._looks_without = 0
        iteration, rest = self._watched.progress()
        key = phase, iteration, rest
        if key != self._key:
            self._begin(phase, iteration)
            self._key = key
        else:
            self._seconds += spent
        limit = self._limits.of(phase, self._is_first)
        self._watched.on_look(phase, self._seconds, limit)
        if self._seconds > limit * self._patience:
            self._patience *= 2
            self._tell(Stall(phase, self._seconds, limit, calls))

    def _begin(self, phase: Phase, iteration: int) -> None:
        before = self._phase, self._seconds
        self._limits.learn(*before, self._is_first)
        if self._patience > 1:
            self._watched.on_recovery(*before)
        self._phase, self._seconds, self._patience = phase, 0.0, 1.0
        done = iteration - self._first_iteration
        self._is_first = done < FIRST_ITERATIONS

    def _judge_dump(self, held: float, dump: str) -> None:
        """Judge the time in which this thread could not run."""
        if held == 0:
            return
        calls = read_dump(dump)
        phase = find_phase(calls)
        limit = self._limits.of(phase, self._is_first)
        if held > limit and phase.name != ENDED:
            self._tell(Stall(phase, held, limit, calls, is_over=True))

    def _tell(self, stall: Stall) -> None:
        # It may take long to find out more; training may continue meanwhile.
        self._switch.arm(math.inf)
        self._watched.on_stall(stall)
