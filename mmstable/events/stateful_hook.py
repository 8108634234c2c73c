"""What hooks that a resumed run has to know of have in common."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view


class StatefulHook(Hook):
    """A hook whose state is part of every checkpoint.

    What :meth:`state_dict` gives is saved below ``checkpoint['mmstable']``,
    where mmengine does not look.
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the state of this hook."""
        state = self.state_dict()
        if state:
            ours = checkpoint.setdefault('mmstable', {})
            ours[type(self).__name__] = state

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the state of this hook, if the run is resumed."""
        # As mmengine's EMAHook does: weights alone start a new run.
        if not run_view.is_resuming(runner):
            return
        state = checkpoint.get('mmstable', {}).get(type(self).__name__)
        if state is not None:
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know, in plain Python types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
