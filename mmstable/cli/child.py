"""A run in a process of its own, and the signs of life that it gives."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmstable.files import read_bounded
from mmstable.liveness.processes import state_of

_INTERVAL = 0.2
# Seconds more than the run itself needs to tell of a hang.
_GRACE = 10.0
_LONGEST = 1000


class Child:
    """A process that is killed if it gives no sign of life any more.

    A run tells by itself that it hangs, and ends. It cannot if a call in C
    holds Python's lock. Time in which it is stopped, or in which this
    process does not run, does not count.

    Args:
        command (Sequence[str]): What to start.
        env (Mapping): Its variables.
        life (Path): What it writes to while it is alive: first of all the
            seconds that it may take until the next time.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], life: Path
    ) -> None:
        self._life = life
        life.unlink(missing_ok=True)
        self.process = subprocess.Popen(command, env=dict(env))
        self.is_stuck = False
        self._touched: int | None = None
        self._silent = 0.0

    def wait(self) -> int:
        """Wait until it ends; its ``returncode``."""
        last = time.monotonic()
        while True:
            try:
                return self.process.wait(_INTERVAL)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                self._look(min(now - last, 2 * _INTERVAL))
                last = now

    def _look(self, spent: float) -> None:
        try:
            touched = self._life.stat().st_mtime_ns
            word = read_bounded(self._life, _LONGEST).split(None, 1)
            limit = float(word[0]) + _GRACE
        except (OSError, ValueError, IndexError):
            # It has not begun, or is about to write.
            return
        if touched != self._touched:
            self._touched, self._silent = touched, 0.0
        elif state_of(self.process.pid) not in ('stopped', 'traced'):
            self._silent += spent
        if self._silent > limit and not self.is_stuck:
            self.is_stuck = True
            self.process.kill()
