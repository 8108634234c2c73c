"""What do the workers of a data loader do while training waits for them?"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count

import psutil

from mmstable.background import BackgroundThread
from mmstable.liveness.loader import (
    asked_loader,
    awaited_worker,
    pauses_between_passes,
    starts_loader,
    worker_pids,
)
from mmstable.liveness.processes import state_of, waits_in
from mmstable.liveness.training_thread import TrainingThread

# Seconds between two looks.
_INTERVAL = 0.01
# Looks between two questions whether training is over.
_LOOKS_TO_END = 100
# Shares of looks, and of a core.
_BUSY, _DISK, _MOSTLY = 0.5, 0.3, 0.5
# What the training thread does itself while it waits for a batch.
_OF_ITSELF = {'starting': starts_loader, 'pause': pauses_between_passes}
_IN_MAIN = (*_OF_ITSELF, 'main')


@dataclass(frozen=True)
class Loading:
    """How data came while training waited for it.

    Args:
        state (str): 'busy', 'disk' or 'idle' workers; 'starting' if they were
            just started; 'pause' if the loop of mmengine sleeps between two
            passes over the data; 'main' if training reads by itself; '' if
            nobody knows.
        kernel (str): The function of the kernel that workers were seen in
            most. Defaults to ''.
        cpu (float): Cores that a worker keeps busy. Defaults to 0.0.
    """

    state: str
    kernel: str = ''
    cpu: float = 0.0


class LoadingWatch:
    """Looks at the calling thread, from a thread of its own."""

    def __init__(self) -> None:
        self._training = TrainingThread()
        self._looks: Counter[str] = Counter()
        self._kernel: Counter[str] = Counter()
        # When a worker was first seen, and its CPU time then.
        self._begin: dict[int, tuple[float, float]] = {}
        self._cpu: dict[int, float] = {}
        self._thread = BackgroundThread('mmstable profile', self._run)
        self._thread.start()

    def stop(self) -> Loading:
        """End looking, and tell what was seen."""
        self._thread.stop()
        looks, total = self._looks, sum(self._looks.values())
        if total == 0:
            return Loading('')
        ((kernel, _),) = self._kernel.most_common(1) or [('', 0)]
        cpu = max(self._cpu.values(), default=0.0)
        state = 'idle'
        main = [one for one in _IN_MAIN if looks[one] >= _MOSTLY * total]
        if main:
            state = main[0]
        elif looks['running'] >= _BUSY * total or cpu >= _BUSY:
            state = 'busy'
        elif looks['disk'] >= _DISK * total:
            state = 'disk'
        return Loading(state, kernel, cpu)

    def _run(self, stopped: threading.Event) -> None:
        for number in count(1):
            if stopped.wait(_INTERVAL):
                return
            if number % _LOOKS_TO_END == 0 and self._training.has_ended():
                return
            self._look()

    def _look(self) -> None:
        frame = self._training.frame()
        for state, applies in _OF_ITSELF.items():
            if applies(frame):
                self._looks[state] += 1
                return
        loader = asked_loader(frame)
        del frame
        if loader is None:
            return
        pids = worker_pids(loader)
        if not pids:
            self._looks['main'] += 1
            return
        number = awaited_worker(loader) or 0
        del loader
        pid = pids[number % len(pids)]
        state = state_of(pid)
        self._looks[state] += 1
        if state in ('sleeping', 'disk'):
            self._kernel[waits_in(pid)] += 1
        self._note_cpu(pid)

    def _note_cpu(self, pid: int) -> None:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return
        now, spent = time.monotonic(), times.user + times.system
        since, before = self._begin.setdefault(pid, (now, spent))
        if now - since > 10 * _INTERVAL:
            self._cpu[pid] = (spent - before) / (now - since)
