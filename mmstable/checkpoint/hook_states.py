"""The state of hooks that do not save it themselves."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.runner import Runner

# Attributes that a resumed run needs, of hooks that save nothing.
_SAVED: dict[type[Hook], tuple[str, ...]] = {
    EarlyStoppingHook: ('wait_count', 'best_score')
}
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, set, dict, deque)
# Hooks of these packages save what they need, or need nothing.
_KNOWN = ('mmengine', 'mmstable')


class HookStates:
    """Saves the state of mmengine's hooks, and names hooks without any."""

    def __init__(self) -> None:
        self._at_start: dict[int, dict[str, Any]] = {}

    def begin(self, runner: Runner) -> None:
        """Remember what hooks of others look like before they train."""
        self._at_start = {
            id(hook): _attributes(hook) for hook in _unsaved(runner)
        }

    def state_dict(self, runner: Runner) -> dict[str, Any]:
        """Return attributes to restore, and names of hooks to report."""
        state: dict[str, Any] = {}
        saved = {
            type(hook).__name__: {
                name: float(getattr(hook, name)) for name in names
            }
            for hook, names in _saved(runner)
        }
        changed = {
            type(hook).__name__
            for hook in _unsaved(runner)
            if _attributes(hook) != self._at_start.get(id(hook))
        }
        if saved:
            state['hooks'] = saved
        if changed:
            state['unsaved_hooks'] = sorted(changed)
        return state

    def load_state_dict(
        self, runner: Runner, state: Mapping[str, Any]
    ) -> None:
        """Restore the attributes that :meth:`state_dict` returned."""
        saved = state.get('hooks', {})
        for hook, names in _saved(runner):
            own = saved.get(type(hook).__name__, {})
            for name in names:
                if name in own:
                    kind = type(getattr(hook, name))
                    setattr(hook, name, kind(own[name]))


def _saved(runner: Runner) -> list[tuple[Hook, tuple[str, ...]]]:
    return [
        (hook, names)
        for hook in runner.hooks
        for kind, names in _SAVED.items()
        if isinstance(hook, kind) and not _saves_itself(hook)
    ]


def _unsaved(runner: Runner) -> list[Hook]:
    return [
        hook
        for hook in runner.hooks
        if type(hook).__module__.partition('.')[0] not in _KNOWN
        and not isinstance(hook, tuple(_SAVED))
        and not _saves_itself(hook)
    ]


def _saves_itself(hook: Hook) -> bool:
    own = type(hook).before_save_checkpoint
    return own is not Hook.before_save_checkpoint


def _attributes(hook: Hook) -> dict[str, Any]:
    """Copy numbers, texts and containers of these."""
    return {
        name: copy.copy(value)
        for name, value in vars(hook).items()
        if isinstance(value, _PLAIN)
        or (
            isinstance(value, _CONTAINERS)
            and all(isinstance(one, _PLAIN) for one in value)
        )
    }
