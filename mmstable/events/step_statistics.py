"""How often the steps of one optimizer went wrong of late."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from mmstable.checked_json import (
    boolean,
    count,
    list_of,
    one_of,
    optional,
    tuple_of,
    within,
)
from mmstable.events import Fault, StepReport


class StepStatistics:
    """The recent bad steps, and whether these are too many.

    A step that was applied without some of its micro-batches counts by the
    share of these.

    Overflows while the loss scale finds its level alarm nobody: those at the
    start of a run, and the first one after the scale has grown. Steps are
    numbered and only bad ones are remembered, so a good step costs nothing.

    Args:
        window (int): How many steps to look back.
        max_rate (float): The share of bad ones that is too high.
        max_consecutive_bad (int): So many bad ones in a row are too many.
        calibration_steps (int): Overflows before so many steps were applied
            belong to the start.
        least (int): Steps that it takes before a share says anything.
            Defaults to 20.
    """

    checks = dict(
        steps=count,
        bad=list_of(
            tuple_of(
                count,
                optional(one_of(*(fault.value for fault in Fault))),
                within(0, 1),
            )
        ),
        has_grown=boolean,
    )

    def __init__(
        self,
        window: int,
        max_rate: float,
        max_consecutive_bad: int,
        calibration_steps: int,
        least: int = 20,
    ) -> None:
        self._window = window
        self._max_rate = max_rate
        self._max_consecutive_bad = max_consecutive_bad
        self._calibration_steps = calibration_steps
        self._least = least
        self._steps = 0
        # Numbers of bad steps, their fault if that is alarming, and how much
        # of the step was lost.
        self._bad: deque[tuple[int, str | None, float]] = deque()
        self._has_grown = False

    def add(self, report: StepReport, applied: int) -> bool:
        """Take account of a step.

        Args:
            report (StepReport): What became of it.
            applied (int): Steps applied so far, over the whole run.

        Returns:
            bool: Whether it is bad, and not part of finding a scale.
        """
        self._steps += 1
        bad = self._bad
        if bad and bad[0][0] <= self._steps - self._window:
            bad.popleft()
        is_searching = False
        if report.fault is Fault.OVERFLOW:
            is_searching = self._has_grown or applied < self._calibration_steps
            self._has_grown = False
        elif report.next_loss_scale > report.loss_scale:
            self._has_grown = True
        if report.fault is None:
            return False
        fault = None if is_searching else report.fault.value
        bad.append((self._steps, fault, report.bad_share))
        return not is_searching

    @property
    def rate(self) -> float:
        """The share of bad steps, of whatever kind."""
        if not self._bad:
            return 0.0
        lost = sum(share for *_, share in self._bad)
        return lost / min(self._steps, self._window)

    @property
    def in_a_row(self) -> int:
        """Alarming steps, by more than half, since the last other one."""
        count = 0
        for number, fault, share in reversed(self._bad):
            is_bad = fault is not None and share > 0.5
            if not is_bad or number != self._steps - count:
                break
            count += 1
        return count

    @property
    def is_too_high(self) -> bool:
        """Whether this is no longer what healthy training does."""
        if self.in_a_row >= self._max_consecutive_bad:
            return True
        bad, seen = self.counts()
        return seen >= self._least and bad > self._max_rate * seen

    def counts(self) -> tuple[float, int]:
        """Alarming steps, and all that are looked back at."""
        bad = sum(share for _, fault, share in self._bad if fault)
        return bad, min(self._steps, self._window)

    def commonest_fault(self) -> Fault:
        """What most of the alarming steps suffer from."""
        counts = Counter(fault for _, fault, _ in self._bad if fault)
        return Fault(counts.most_common(1)[0][0])

    def start_over(self) -> None:
        """Forget the recent steps."""
        self._bad.clear()
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return dict(
            steps=self._steps,
            bad=[list(one) for one in self._bad],
            has_grown=self._has_grown,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._steps = state['steps']
        self._bad = deque(map(tuple, state['bad']))
        self._has_grown = state['has_grown']
