"""What the watchdog makes of a dump of the dead man's switch."""

from __future__ import annotations

import pytest

from mmstable.hang import watchdog
from mmstable.hang.watchdog import PhaseLimits, Watchdog

DUMP = """Stack (most recent call first):
  File "/home/me/model.py", line 7 in forward
  File "/site-packages/mmstable/loops/train_step.py", line 1 in run
  File "/site-packages/mmengine/runner/loops.py", line 1 in run
"""


class Switch:
    """Was silent for a while before it is read."""

    def __init__(self, held: float) -> None:
        self.held = held

    def arm(self, interval):
        pass

    def read(self):
        return self.held, DUMP

    def close(self):
        pass


class Reports:
    """Keeps the reports."""

    def __init__(self) -> None:
        self.stalls = []

    def progress(self):
        return 0, None

    def on_look(self, phase, seconds, limit):
        pass

    def on_stall(self, stall):
        self.stalls.append(stall)


class EndedMeanwhile:
    """The run ends before the watching thread gets the GIL back."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def wait(self, interval: float) -> bool:
        self.clock[0] += 10.0
        return True


@pytest.mark.parametrize(('held', 'count'), [(3.0, 1), (1.5, 0)])
def test_a_run_that_ends_after_a_held_lock(monkeypatch, held, count):
    clock, reports = [0.0], Reports()
    monkeypatch.setattr(watchdog.time, 'monotonic', lambda: clock[0])
    dog = Watchdog(reports, PhaseLimits({}, 2.0, 2.0, 1.0), Switch(held))
    dog._watch(EndedMeanwhile(clock))
    assert [one.is_over for one in reports.stalls] == [True] * count
    assert [one.phase.name for one in reports.stalls] == ['forward'] * count
