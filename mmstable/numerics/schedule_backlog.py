"""When does a schedule wait, and when does it catch up?"""

from __future__ import annotations

from typing import Any

from mmstable.checked_json import integer, optional, record, tuple_of

# Each is made up for by a call: more than a run could ever lose.
_STEPS = integer(0, 10**6)


class ScheduleBacklog:
    """The steps that a schedule is behind the run, made up for until its end.

    A schedule has as many steps as the run has iterations. It waits while an
    optimizer step is lost, so that the next one gets the same value. Its
    backlog is spread evenly over the iterations that are left. If the last
    iteration is good, nothing is left of it.
    """

    saved = staticmethod(
        record(
            owed=_STEPS,
            hold=_STEPS,
            plan=optional(tuple_of(_STEPS, integer(1, 2**53))),
            left=integer(0, 2**53),
        )
    )

    def __init__(self) -> None:
        self.steps = 0
        # Iterations that it still waits.
        self._hold = 0
        # The backlog, and the iterations left, when catching up began.
        self._plan: tuple[int, int] | None = None
        self._left = 0

    @property
    def is_idle(self) -> bool:
        """Whether the schedule is where the run is."""
        return self.steps == self._hold == 0

    def add(self, steps: int) -> None:
        """Note that the schedule is behind by so many steps more."""
        self.steps += steps
        self._plan = None

    def advance(self, left: int, lost: int = 0) -> int:
        """How many steps of the schedule to take after an iteration.

        Args:
            left (int): Iterations that come after this one.
            lost (int): If an optimizer step was skipped in this iteration,
                how many iterations it stands for. Defaults to 0.
        """
        # A loop of somebody else may continue after its end.
        left = max(left, 0)
        if left != self._left - 1:
            # The run has got another length.
            self._plan = None
        self._left = left
        self._hold = max(self._hold, lost)
        # Without a loss it waits only if there is time to catch up.
        if lost or (self._hold and self.steps < left):
            self._hold -= 1
            self.add(1)
            return 0
        self._hold = 0
        return 1 + self._catch_up(left)

    def _catch_up(self, left: int) -> int:
        if self.steps == 0:
            return 0
        if self._plan is None:
            self._plan = (self.steps, left + 1)
        owed, length = self._plan
        # A straight line down to 0, rounded: one step is paid half-way.
        still_owed = (2 * owed * left + length) // (2 * length)
        paid, self.steps = self.steps - still_owed, still_owed
        return paid

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know; nothing if nothing is owed."""
        if self.is_idle:
            return {}
        return dict(
            owed=self.steps,
            hold=self._hold,
            plan=None if self._plan is None else list(self._plan),
            left=self._left,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.steps, self._hold = state['owed'], state['hold']
        self._plan, self._left = state['plan'], state['left']
