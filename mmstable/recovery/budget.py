"""How often may a run roll back?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.checked_json import count, record


class RollbackBudget:
    """So many rollbacks, until a long stretch of good steps renews them.

    Args:
        most (int): How many.
        renewed_after (int): Good steps after which all are there again.
    """

    saved = staticmethod(record(spent=count, good_steps=count))

    def __init__(self, most: int, renewed_after: int) -> None:
        self.most = most
        self._renewed_after = renewed_after
        self.spent = 0
        self._good_steps = 0

    @property
    def is_spent(self) -> bool:
        """Whether none is left."""
        return self.spent >= self.most

    def spend(self) -> None:
        """Take one."""
        self.spent += 1
        self._good_steps = 0

    def note_good_step(self) -> None:
        """Count a step that was applied."""
        self._good_steps += 1
        if self._good_steps >= self._renewed_after:
            self.spent = 0
            self._good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'spent': self.spent, 'good_steps': self._good_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.spent = state['spent']
        self._good_steps = state['good_steps']
