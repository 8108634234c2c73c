"""When does a schedule wait, and when does it catch up?"""

from __future__ import annotations

from typing import Any


class ScheduleDebt:
    """The steps that a schedule owes to the run, paid back until its end.

    A schedule has as many steps as the run has iterations. It waits while an
    optimizer step is lost, so that the next one gets the same value. What it
    owes then is spread evenly over the iterations that are left. If the last
    iteration is good, nothing is owed after it.
    """

    def __init__(self) -> None:
        self.owed = 0
        # Iterations that it still waits.
        self._hold = 0
        # What was owed, and for how many iterations, when paying began.
        self._plan: tuple[int, int] | None = None
        self._left = 0

    @property
    def is_idle(self) -> bool:
        """Whether the schedule is where the run is."""
        return self.owed == self._hold == 0

    def owe(self, steps: int) -> None:
        """Hear that the schedule is behind by so many steps more."""
        self.owed += steps
        self._plan = None

    def advance(self, left: int, lost: int = 0) -> int:
        """How many steps of the schedule to take after an iteration.

        Args:
            left (int): Iterations that come after this one.
            lost (int): If an optimizer step was skipped in this iteration,
                how many iterations it stands for. Defaults to 0.
        """
        # A loop of somebody else may go on after its end.
        left = max(left, 0)
        if left != self._left - 1:
            # The run has got another length.
            self._plan = None
        self._left = left
        self._hold = max(self._hold, lost)
        # Without a loss it waits only if there is time to catch up.
        if lost or (self._hold and self.owed < left):
            self._hold -= 1
            self.owe(1)
            return 0
        self._hold = 0
        return 1 + self._pay(left)

    def _pay(self, left: int) -> int:
        if self.owed == 0:
            return 0
        if self._plan is None:
            self._plan = (self.owed, left + 1)
        owed, length = self._plan
        # A straight line down to 0, rounded: one step is paid half-way.
        still_owed = (2 * owed * left + length) // (2 * length)
        paid, self.owed = self.owed - still_owed, still_owed
        return paid

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know; nothing if nothing is owed."""
        if self.is_idle:
            return {}
        return dict(
            owed=self.owed,
            hold=self._hold,
            plan=None if self._plan is None else list(self._plan),
            left=self._left,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.owed = state.get('owed', 0)
        self._hold = state.get('hold', 0)
        plan = state.get('plan')
        self._plan = None if plan is None else (plan[0], plan[1])
        self._left = state.get('left', 0)
