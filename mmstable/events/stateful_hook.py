"""What hooks that a resumed run has to know of have in common."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import Check, anything
from mmstable.errors import CheckpointError
from mmstable.messages import _

# The checks of what is saved below ``checkpoint['mmstable']``, by its key.
SAVED_STATES: dict[str, Check] = {}


def read_state(checkpoint: dict[str, Any], name: str) -> Any:
    """One state below ``checkpoint['mmstable']``, checked.

    Args:
        checkpoint (dict): The checkpoint.
        name (str): The key of the state.

    Returns:
        Any: The state; None if there is none.

    Raises:
        CheckpointError: If it cannot have been saved by mmstable.
    """
    state = checkpoint.get('mmstable', {}).get(name)
    try:
        return None if state is None else SAVED_STATES[name](state)
    except ValueError as error:
        reason = f'`mmstable`: `{name}`: {error}'
        raise CheckpointError(
            _('no run saves this: {reason}', reason=reason)
        ) from error


class StatefulHook(Hook):
    """A hook whose state is part of every checkpoint.

    What :meth:`state_dict` gives is saved below ``checkpoint['mmstable']``,
    where mmengine does not look. ``saved`` is the check of it: a checkpoint
    is verified by it, and :meth:`load_state_dict` gets what it returns.
    """

    saved: Check = staticmethod(anything)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        SAVED_STATES[cls.__name__] = cls.saved

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
        state = read_state(checkpoint, type(self).__name__)
        if state is not None:
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know, in plain Python types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
