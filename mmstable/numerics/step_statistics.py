"""How the steps of one optimizer went of late."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from mmstable.events import Fault, StepReport
from mmstable.numerics.bad_rate import BadRate


class StepStatistics:
    """Counts of steps, and whether too many of them are bad.

    Overflows while the loss scale finds its level alarm nobody: those at the
    start of a run, and the first one after the scale has grown.

    Args:
        window (int): How many steps to look back.
        max_rate (float): The share of bad ones that is too high.
        max_consecutive_bad (int): So many bad ones in a row are too many.
        calibration_steps (int): Overflows before so many steps were applied
            belong to the start.
        least (int): Steps that it takes before a share says anything.
            Defaults to 20.
    """

    def __init__(
        self,
        window: int,
        max_rate: float,
        max_consecutive_bad: int,
        calibration_steps: int,
        least: int = 20,
    ) -> None:
        # All bad steps, and those that are not part of finding a scale.
        self.overall = BadRate(window, max_rate, max_consecutive_bad, least)
        self.alarming = BadRate(window, max_rate, max_consecutive_bad, least)
        self._calibration_steps = calibration_steps
        self._faults: deque[str | None] = deque(maxlen=window)
        self._has_grown = False
        self.applied = 0
        self.skipped = 0

    def add(self, report: StepReport) -> bool:
        """Hear of a step; whether it is bad, and not part of a search."""
        fault = None if self._is_searching(report) else report.fault
        self.applied += report.applied
        self.skipped += report.skipped
        self.overall.add(report.fault is not None)
        self.alarming.add(fault is not None)
        self._faults.append(None if fault is None else fault.value)
        return fault is not None

    def _is_searching(self, report: StepReport) -> bool:
        """Whether the loss scale only finds out what is too large."""
        overflow = report.fault is Fault.OVERFLOW
        has_grown = self._has_grown
        if overflow:
            self._has_grown = False
        elif report.next_loss_scale > report.loss_scale:
            self._has_grown = True
        return overflow and (
            has_grown or self.applied < self._calibration_steps
        )

    def commonest_fault(self) -> Fault:
        """What most of the alarming steps suffer from."""
        counts = Counter(fault for fault in self._faults if fault)
        return Fault(counts.most_common(1)[0][0])

    def start_over(self) -> None:
        """Forget the recent steps, but not how many there were."""
        self.overall.clear()
        self.alarming.clear()
        self._faults.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return dict(
            overall=self.overall.state_dict(),
            alarming=self.alarming.state_dict(),
            faults=list(self._faults),
            applied=self.applied,
            skipped=self.skipped,
            has_grown=self._has_grown,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.overall.load_state_dict(state['overall'])
        self.alarming.load_state_dict(state['alarming'])
        self._faults.clear()
        self._faults.extend(state['faults'])
        self.applied = state['applied']
        self.skipped = state['skipped']
        self._has_grown = state['has_grown']
